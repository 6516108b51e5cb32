"""Iterates over the entries of fetched batches, one at a time or batch by batch."""

from __future__ import annotations

from collections import deque
from typing import Self

from tallybook.core.batch import BatchHeader, Entry, entries
from tallybook.core.buffers import Buffer
from tallybook.runtime.concurrency.async_iterators import ItemReader, ResumableIterator

from .fetcher import FetchedBatches


class EntryGroups:
    """Yields the entries of one batch at a time. A cancelled ``anext`` loses none; the next call continues.

    Close it, or drop it, if it is not read to its end.
    """

    def __init__(self, pieces: ResumableIterator[FetchedBatches]) -> None:
        self._pieces = pieces
        self._batches: deque[tuple[BatchHeader, Buffer]] = deque()
        self._first = self._last = 0

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> list[Entry]:
        await self.ready()
        return self.take()

    @property
    def buffered(self) -> bool:
        """Whether ``take`` gives entries now."""
        return bool(self._batches)

    async def ready(self, within_s: float | None = None) -> bool:
        """Wait for more entries, or the end; ``False`` after ``within_s`` seconds without either.

        Raises:
            As ``ResumableIterator.ready``.
        """
        return bool(self._batches) or await self._pieces.ready(within_s)

    async def is_ready(self) -> bool:
        """Whether ``take`` gives entries without a wait."""
        return bool(self._batches) or await self._pieces.is_ready()

    def take(self) -> list[Entry]:
        """The entries of the next batch, which must be ready.

        Raises:
            As ``ResumableIterator.take``.
        """
        while not self._batches:
            self._take()
        header, batch = self._batches.popleft()
        return entries(batch, header, self._first, self._last)

    def _take(self) -> None:
        batches, self._first, self._last = self._pieces.take()
        self._batches.extend(batches)

    async def aclose(self) -> None:
        """Stop reading."""
        self._batches.clear()
        await self._pieces.aclose()


class Entries(ItemReader[Entry]):
    """Entries, one at a time by ``async for`` or ``next``, or several by ``read_batch``.

    Close it, or drop it, if it is not read to its end.
    """

    def __init__(self, groups: EntryGroups) -> None:
        super().__init__()
        self._groups = groups

    async def _fill(self, within_s: float | None) -> bool:
        if not await self._groups.ready(within_s):
            return False
        self._left.extend(self._groups.take())
        return True

    async def _fill_without_waiting(self) -> bool:
        if not await self._groups.is_ready():
            return False
        self._left.extend(self._groups.take())
        return True

    async def aclose(self) -> None:
        """Stop reading."""
        self._left.clear()
        await self._groups.aclose()
