"""Streams whose writer is gone and has left a segment open: found, and ended after a grace period.

Retention counts from the end of a segment, so one that nobody ends would be kept for ever. A stream counts as abandoned
while nobody owns it, or the session of its owner is over. The keeper then takes it over as a writer does: it fences the
open segments, seals them, and lets go. A writer that is there after all learns that it was fenced.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import partial
from typing import Final

from tallybook.client.client import Client
from tallybook.core.errors import StreamEnded, StreamFenced, StreamOwned
from tallybook.core.marks import sometimes
from tallybook.runtime.clock import Clock
from tallybook.runtime.logging import logger

from .catalog import Catalog
from .head import Head, Owner, release
from .writer.opening import take_over

OPEN_GRACE_SECONDS: Final = 60.0
"""How long a stream is left to a writer that may come back; as long as the repair leaves an open ledger by default."""

_KEEPER: Final = "stream keeper"
_log = logger("stream.keeper")


class AbandonedStreams:
    """Ends what killed writers left open."""

    def __init__(self, catalog: Catalog, client: Client, clock: Clock) -> None:
        self._catalog = catalog
        self._client = client
        self._clock = clock
        self._since: dict[str, tuple[Owner | None, float]] = {}
        """The owner with which each stream was found abandoned, and when for the first time, by the monotonic clock."""

    def forget_all_but(self, stream_ids: Collection[str]) -> None:
        """Other streams are there no more."""
        self._since = {stream_id: seen for stream_id, seen in self._since.items() if stream_id in stream_ids}

    def is_due(self, head: Head, sessions: Collection[str]) -> bool:
        """Whether a stream has been abandoned for the grace period.

        Args:
            sessions: those that are not over.
        """
        owner, now = head.owner, self._clock.monotonic()
        if not head.open_segments or (owner is not None and owner.session in sessions):
            self._since.pop(head.stream_id, None)
            return False
        before = self._since.get(head.stream_id)
        if before is None or before[0] != owner:
            self._since[head.stream_id] = owner, now
            return False
        return now - before[1] >= OPEN_GRACE_SECONDS

    async def end(self, head: Head) -> Head:
        """Seal the open segments of an abandoned stream; if it has another owner by now, nothing changes.

        Raises:
            As ``writer.opening.take_over``: they are not sealed. It is tried again after another grace period.
        """
        # There is no such session: a writer that comes back need not wait for the keeper.
        ours = Owner(self._client.world.rng.uuid(), self._client.world.rng.uuid(), _KEEPER)
        abandoned_by = head.owner

        async def free(what: str, owner: Owner | None) -> bool:
            if owner != abandoned_by:
                raise StreamOwned(f"{what} has another owner by now", owner="" if owner is None else owner.name)
            return True

        stream_id = head.stream_id
        try:
            await take_over(self._catalog, self._client, self._clock, stream_id, ours, free=free)
            sometimes("stream keeper: ends what a killed writer left open")
            _log.info("segments sealed whose writer is gone", stream=head.name, stream_id=stream_id)
        except (StreamOwned, StreamFenced, StreamEnded):
            sometimes("stream keeper: a writer came back to its stream")
        finally:
            self._since.pop(stream_id, None)
            head = await self._catalog.change(stream_id, partial(release, owner=ours))
        return head
