"""Seals the open segments of streams whose writer is gone, after a grace period.

Retention counts from the end of a segment, so an open one would be kept for ever. A stream counts as abandoned while it
has no owner, or its owner's session is over, and no bookie reports a writer that has an open segment attached (a writer
that is only partitioned from the metadata store continues to write). The janitor then takes the stream over as a writer
does: it fences the open segments, seals them, and releases the stream. A writer that is alive after all is fenced.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from functools import partial
from typing import Final

from tallybook.client.client import Client
from tallybook.client.presence import ask_members
from tallybook.core.coverage import sometimes
from tallybook.core.errors import NoSuchLedger, StreamEnded, StreamFenced, StreamOwned, TallybookError, is_defect
from tallybook.runtime.clock import Clock
from tallybook.runtime.logging import logger
from tallybook.wire.batches import WRITER_RETURN_SECONDS

from ..catalog.catalog import StreamCatalog
from ..catalog.head import Head, Owner, release
from ..writer.takeover import take_over

OPEN_GRACE_SECONDS: Final = 60.0
"""Grace period for a writer that may come back; the repair's default for open ledgers is the same."""

MAX_CONCURRENCY: Final = 8
"""Streams that are sealed concurrently."""

END_SECONDS: Final = 60.0
"""Timeout of sealing one stream."""

PASS_SECONDS: Final = 300.0
"""How long a pass starts to seal streams; the janitor's other work waits meanwhile."""

RELEASE_SECONDS: Final = 10.0
"""Timeout of releasing a stream, also after a timeout of sealing it."""

_JANITOR: Final = "stream keeper"
_log = logger("stream.keeper")


class AbandonedStreams:
    """Tracks abandoned streams and seals their open segments."""

    def __init__(self, catalog: StreamCatalog, client: Client, clock: Clock) -> None:
        self._catalog = catalog
        self._client = client
        self._clock = clock
        self._since: dict[str, tuple[Owner | None, float]] = {}
        """Owner of each stream found abandoned, and the monotonic time when it was first found so."""

    def forget_all_but(self, stream_ids: Collection[str]) -> None:
        """Drop streams that no longer exist."""
        self._since = {stream_id: seen for stream_id, seen in self._since.items() if stream_id in stream_ids}

    def is_due(self, head: Head, sessions: Collection[str]) -> bool:
        """Whether a stream has been abandoned for the grace period.

        Args:
            sessions: the live sessions.
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

    async def end_all(self, heads: Collection[Head]) -> set[str]:
        """Seal the open segments of abandoned streams concurrently; return the ids of those that were not sealed.

        A stream that may have a writer after all is skipped. One that cannot be sealed is tried again after another
        grace period, after those that were not tried yet: a pass has limited time.
        """
        turns, until, left = asyncio.Semaphore(MAX_CONCURRENCY), self._clock.monotonic() + PASS_SECONDS, 0

        async def end(head: Head) -> str | None:
            nonlocal left
            async with turns:
                if self._clock.monotonic() >= until:
                    left += 1
                    return head.stream_id
                return None if await self._ended(head) else head.stream_id

        outcomes = await asyncio.gather(*map(end, sorted(heads, key=self._seen_at)), return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome
        if left:
            sometimes("stream janitor: a pass has no time for all abandoned streams")
            _log.warning("streams whose writer is gone are sealed in a later pass", stream_count=left)
        return {outcome for outcome in outcomes if isinstance(outcome, str)}

    def _seen_at(self, head: Head) -> float:
        """When it was first found abandoned since the last attempt."""
        seen = self._since.get(head.stream_id)
        return self._clock.monotonic() if seen is None else seen[1]

    async def _ended(self, head: Head) -> bool:
        """Seal one stream, unless it may have a writer; ``False`` if that failed."""
        try:
            async with asyncio.timeout(END_SECONDS):
                if not await self._may_have_writer(head):
                    await self._end(head)
        except TimeoutError:
            reason = f"not done within {END_SECONDS:g} s"
        except TallybookError as error:
            if is_defect(error):
                raise
            reason = error.message
        else:
            return True
        self._since.pop(head.stream_id, None)
        _log.warning("a stream whose writer is gone is sealed later", stream=head.name, error=reason)
        return False

    async def _may_have_writer(self, head: Head) -> bool:
        """Whether bookies report a writer although its session is over (it is partitioned from the metadata store), or
        cannot tell yet."""
        writers = [writer for segment in head.open_segments for writer in await self._writers(segment.ledger_id)]
        now = self._clock.monotonic()
        if True in writers:
            sometimes("stream janitor: a writer without a session is at its bookies")
            _log.info("a writer without a session is left alone", stream=head.name, stream_id=head.stream_id)
            self._since[head.stream_id] = head.owner, now
            return True
        # An old, unavailable or refusing bookie never answers; that must not keep the stream open for ever.
        _, since = self._since.get(head.stream_id, (head.owner, now))
        return None in writers and now - since < OPEN_GRACE_SECONDS + 2 * WRITER_RETURN_SECONDS

    async def _writers(self, ledger_id: int) -> list[bool | None]:
        """Whether each bookie reports a writer of the ledger; ``None``: no answer."""
        world = self._client.world
        try:
            metadata = (await world.store.read_ledger(ledger_id)).value
            if metadata.closed:
                return []
            said = await ask_members(world.connections, metadata, metadata.last_fragment.bookies)
        except NoSuchLedger:
            return []
        return [None if held is None else held.writer for held in said.values()]

    async def _end(self, head: Head) -> None:
        """Seal the open segments of an abandoned stream; no change if it has another owner by now.

        Raises:
            As ``writer.takeover.take_over``: they are not sealed.
        """
        # The session does not exist, so a writer that comes back need not wait for the janitor.
        ours = Owner(self._client.world.rng.uuid(), self._client.world.rng.uuid(), _JANITOR)
        abandoned_by = head.owner

        async def free(what: str, owner: Owner | None) -> bool:
            if owner != abandoned_by:
                raise StreamOwned(f"{what} has a new owner", owner="" if owner is None else owner.name)
            return True

        stream_id = head.stream_id
        try:
            await take_over(self._catalog, self._client, self._clock, stream_id, ours, free=free)
            sometimes("stream janitor: ends what a killed writer left open")
            _log.info("segments sealed whose writer is gone", stream=head.name, stream_id=stream_id)
        except (StreamOwned, StreamFenced, StreamEnded):
            sometimes("stream janitor: a writer came back to its stream")
        finally:
            self._since.pop(stream_id, None)
            async with asyncio.timeout(RELEASE_SECONDS):
                await self._catalog.change(stream_id, partial(release, owner=ours))
