"""What a client needs of one bookie: the port the writer, reader and recovery drivers speak to.

``bookie_rpc`` implements it over streams; an in-memory bookie implements it directly.
Every wait ends: with an answer, or with an error of ``core.errors`` after the deadline.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from tallybook.core.answers import AddAnswer, FenceAnswer, Incarnation, LacAnswer, ReadAnswer
from tallybook.core.batch import EntrySlice

AddCallback = Callable[[AddAnswer], None]
"""Called on the event loop, once, with the fate of one batch."""


class BookieConnection(Protocol):
    """One bookie, in one of its lives."""

    @property
    def bookie_id(self) -> str:
        """Whom this leads to."""

    @property
    def incarnation(self) -> Incarnation:
        """The life it was opened to; work is refused by any other."""

    def abort(self) -> None:
        """Break the connection: drop what is queued; whoever waits hears ``BookieUnavailable``. Idempotent."""

    def add(self, batch: bytes, key: bytes, on_answer: AddCallback, *, deferred: bool = False) -> None:
        """Send one batch as an ordinary add.

        Never waits: the caller bounds what it has in flight. The answer's code is 0 when the
        batch is durable there, or taken if it is ``deferred``; ``BookieUnavailable``'s code when
        the connection was lost first.
        """

    async def force(self, ledger_id: int, key: bytes) -> None:
        """Return when every batch of the ledger that the bookie has acked is durable there."""

    async def recovery_add(self, batch: bytes, key: bytes) -> None:
        """Send one batch as a recovery add, in the fence's lane; return when it is durable there."""

    async def fence(self, ledger_id: int, key: bytes) -> FenceAnswer:
        """Fence the ledger; the answer means that the fence is durable."""

    async def read_batches(self, ledger_id: int, first: int, last: int, max_bytes: int) -> ReadAnswer:
        """Whole batches from the one that holds ``first``, without a gap, up to ``last`` or about ``max_bytes``.

        Raises:
            EntryAbsent, EntryCorrupt, EntryUnknown: what the bookie knows of entry ``first``.
        """

    async def recovery_read(self, ledger_id: int, entry_id: int, key: bytes) -> ReadAnswer:
        """The batch that holds ``entry_id``; fences first, and is answered only when the fence is durable.

        Raises:
            EntryAbsent, EntryCorrupt, EntryUnknown: what the bookie knows of the entry.
        """

    async def read_entry(self, ledger_id: int, entry_id: int) -> EntrySlice:
        """One entry, cut from its batch and not yet verified.

        Raises:
            EntryAbsent, EntryCorrupt, EntryUnknown: what the bookie knows of the entry.
        """

    async def read_lac(self, ledger_id: int) -> LacAnswer:
        """The highest LAC the bookie saw of the ledger.

        Raises:
            EntryAbsent: the bookie knows nothing of this ledger, and cannot have lost it.
            EntryUnknown: it cannot tell.
        """

    async def wait_lac(self, ledger_id: int, above: int, timeout_ms: int, max_bytes: int = 0) -> LacAnswer:
        """Like ``read_lac``, but waits up to ``timeout_ms`` for a LAC above ``above`` or a fence.

        Args:
            max_bytes: about how much the answer may bring along of what is behind ``above``, up to the LAC.
        """

    async def write_lac(self, ledger_id: int, lac: int, key: bytes) -> None:
        """Tell the bookie a LAC, outside of any batch; durable when it returns."""
