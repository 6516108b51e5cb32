"""Opens the writers of a `StreamStore`, and rolls the old segments of idle ones."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Final

from tallybook.client.client import Client
from tallybook.runtime.concurrency.handle_lifetime import Lifetime
from tallybook.runtime.tasks import Tasks

from ..catalog.catalog import StreamCatalog
from ..catalog.head import Head, Owner, release
from ..load import StreamLoad
from ..namespaces import Namespaces
from ..reader.handle import StreamReader
from ..records.dedup import DedupMemory
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
        tasks, lifetime: of the store.
        read_from: reads a stream from a sequence number on, for the ids of its last records.
        release_later: calls a change in the background, until it succeeds.
    """

    def __init__(
        self,
        catalog: StreamCatalog,
        namespaces: Namespaces,
        client: Client,
        tasks: Tasks,
        lifetime: Lifetime,
        read_from: Callable[[Head, int], StreamReader],
        release_later: Callable[[str, Callable[[], Awaitable[object]]], None],
        load: StreamLoad,
    ) -> None:
        self._catalog = catalog
        self._namespaces = namespaces
        self._client = client
        self._clock = client.world.clock
        self._tasks = tasks
        self._lifetime = lifetime
        self._read_from = read_from
        self._release_later = release_later
        self.load = load
        """Counts the work of writers opened from now on."""
        self.ids: DedupMemory | None = None
        """Bounds the memory for deduplication ids of writers opened from now on."""
        self._writers: Sequence[StreamWriter] = ()
        self._sweeping: asyncio.Task[None] | None = None

    async def open(
        self,
        stream_id: str,
        owner: Owner,
        free: Callable[[str, Owner | None], Awaitable[bool]],
        *,
        accept_loss: bool,
    ) -> StreamWriter:
        """Take a stream over for ``owner``, and open its writer.

        Args:
            free: as for ``take_over``.

        Raises:
            As ``StreamStore.writer``.
        """
        if self.ids is not None:
            head = await self._catalog.read(stream_id)
            await check_ids_fit(head, self.ids, partial(self._read_from, head))
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
        self._release_later(f"stream {stream_id}", change)

    async def _opened(self, head: Head, owner: Owner) -> StreamWriter:
        window = await read_window(head, self.ids, partial(self._read_from, head))
        quota = WriterQuota(self._catalog, self._namespaces, self._clock)
        segments = WriterSegments(self._catalog, self._client, head, owner, quota, self._clock, self._tasks, self.load)
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
            parent=self._lifetime,
        )
        self._writers = [*(other for other in self._writers if not other.ended), writer]
        self.load.taken += 1
        if self._sweeping is None:
            self._sweeping = self._tasks.spawn(self._sweep(), name="sweep of writers")
        return writer

    async def _sweep(self) -> None:
        """Sweep all writers in one task: segments reach their maximum age also without appends."""
        while True:
            await self._clock.sleep(WRITER_SWEEP_SECONDS)
            for writer in self._writers:
                writer.look()

    def abandon(self) -> None:
        """Abandon all open writers."""
        for writer in self._writers:
            writer.abandon()
        self._writers = ()
