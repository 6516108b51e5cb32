"""The reading handle of the blocking client: drives the asyncio handle from other threads.

Ranges and tails are passed to the caller one batch at a time, and read one or two batches ahead. Dropping an iterator
ends its read; wrap an iterator that you keep in ``contextlib.closing``.
"""

from __future__ import annotations

from typing import Final, Self

from tallybook.core.batch import Entry
from tallybook.runtime.blocking.handle import BlockingHandle
from tallybook.runtime.blocking.iteration import ItemIterator, LoopIterator
from tallybook.runtime.blocking.loop_thread import LoopThread

from ..reader import handle

_ENTRIES_TOGETHER: Final = 16
"""Entries passed to the caller at a time if they do not come in batches; each may be of maximum size."""


class LedgerReaderBase(BlockingHandle):
    """Reads one ledger up to its last add confirmed (LAC), which never falls. Several threads may share it."""

    def __init__(self, engine: handle.LedgerReader, loop: LoopThread) -> None:
        super().__init__(loop)
        self._engine = engine

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Do nothing: a reader holds nothing that has to be closed."""

    def _read(self, first: int, last: int) -> ItemIterator[Entry]:
        return ItemIterator(self._iterate(self._engine.read_batches, first, last))

    def _read_unconfirmed(self, first: int, last: int | None) -> LoopIterator[Entry]:
        return self._loop.iterate(self._engine.read_unconfirmed(first, last), together=_ENTRIES_TOGETHER)

    def _tail(self, first: int) -> ItemIterator[Entry]:
        return ItemIterator(self._iterate(self._engine.tail_batches, first))
