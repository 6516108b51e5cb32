"""Opens the writers of a `StreamStore`, and rolls the old segments of idle ones."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Final

from tallybook.runtime.concurrency.backoff import with_drift

from ..catalog.head import Head, Owner, release
from ..load import StreamLoad
from ..namespaces import Namespaces
from ..reader.handle import StreamReader, reader_of
from ..reader.reading import StreamContext
from ..records.dedup import DedupMemory
from ..releasing import OwnershipReleases
from ..sessions import OwnershipWait, StreamSession
from ..start import Start
from .handle import StreamWriter
from .last_ids import check_ids_fit, read_window
from .quota import WriterQuota
from .segments import WriterSegments
from .takeover import take_over

WRITER_SWEEP_SECONDS: Final = 5.0
"""Interval of the sweep that rolls old segments, also of idle writers."""


class StreamWriters:
    """The writers of one store.

    Args:
        context, session, releases: of the store.
        load: counts their work.
        ids: bounds their memory for deduplication ids; ``None``: no bound.
    """

    def __init__(
        self,
        namespaces: Namespaces,
        context: StreamContext,
        session: StreamSession,
        releases: OwnershipReleases,
        load: StreamLoad,
        ids: DedupMemory | None,
    ) -> None:
        self._namespaces = namespaces
        self._context = context
        self._catalog, self._client, self._tasks = context.catalog, context.client, context.tasks
        self._clock = context.clock
        self._pauses = context.client.world.rng.fork("writer sweeps")
        self._session = session
        self._releases = releases
        self._load = load
        self._ids = ids
        self._writers: Sequence[StreamWriter] = ()
        self._sweeping: asyncio.Task[None] | None = None

    def count_in(self, load: StreamLoad) -> None:
        """Count in ``load`` from now on."""
        self._load = load

    def bound_ids(self, ids: DedupMemory) -> None:
        """Bound the memory for deduplication ids of writers opened from now on."""
        self._ids = ids

    async def open(self, stream_id: str, wait_s: float | None, *, accept_loss: bool = False) -> StreamWriter:
        """Take a stream over, and open its writer.

        Raises:
            As ``StreamStore.writer``.
        """
        owner, free = await self._session.begun(), OwnershipWait(self._client.world, wait_s).is_free
        if self._ids is not None:
            head = await self._catalog.read(stream_id)
            await check_ids_fit(head, self._ids, partial(self._read_from, head))
        try:
            head = await take_over(
                self._catalog, self._client, self._clock, stream_id, owner, free=free, accept_loss=accept_loss
            )
            return await self._opened(head, owner)
        except BaseException:
            self._release(stream_id, owner)
            raise

    def _release(self, stream_id: str, owner: Owner) -> None:
        change = partial(self._catalog.change, stream_id, partial(release, owner=owner))
        self._releases.later(f"stream {stream_id}", change)

    async def _opened(self, head: Head, owner: Owner) -> StreamWriter:
        window = await read_window(head, self._ids, partial(self._read_from, head))
        quota = WriterQuota(self._catalog, self._namespaces, self._clock)
        segments = WriterSegments(self._catalog, self._client, head, owner, quota, self._clock, self._tasks, self._load)
        try:
            await segments.begin()
        except BaseException:
            window.clear()
            raise
        writer = StreamWriter(
            segments,
            window,
            self._client.budget,
            release_ownership=partial(self._release, head.stream_id, owner),
            parent=self._context.lifetime,
        )
        self._writers = [*(other for other in self._writers if not other.ended), writer]
        self._load.taken += 1
        if self._sweeping is None:
            self._sweeping = self._tasks.spawn(self._sweep(), name="sweep of writers")
        return writer

    def _read_from(self, head: Head, sequence: int) -> StreamReader:
        return reader_of(self._context, head, Start.sequence(sequence), follow=False)

    async def _sweep(self) -> None:
        """Sweep all writers in one task: segments reach their maximum age also without appends."""
        while True:
            await self._clock.sleep(with_drift(self._pauses, WRITER_SWEEP_SECONDS))
            for writer in self._writers:
                writer.check_age()

    def abandon(self) -> None:
        """Abandon all open writers."""
        for writer in self._writers:
            writer.abandon()
        self._writers = ()
