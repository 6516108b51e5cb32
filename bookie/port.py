"""What one bookie does, apart from how it is reached: the port behind ``bookie/service``.

``bookie/bookie.py`` implements it on a disk; an in-memory bookie implements it for tests and
simulation. Answers are values of ``core.answers``; refusals are errors of ``core.errors``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from tallybook.core.answers import (
    AddAnswer,
    BookieStatus,
    CopyTrace,
    DamagedBatch,
    FenceAnswer,
    HeldAnswer,
    HeldLedgers,
    Incarnation,
    LacAnswer,
    ReadAnswer,
)
from tallybook.core.batch import Buffer, EntrySlice
from tallybook.core.ids import NO_IDENTITY

AddCallback = Callable[[AddAnswer], None]
"""Called on the event loop, exactly once, with the fate of one batch."""


class LedgerStore(Protocol):
    """One bookie's ledgers."""

    @property
    def bookie_id(self) -> str:
        """Its identity in ledger metadata."""

    @property
    def incarnation(self) -> Incarnation:
        """This life of it."""

    @property
    def max_batch_bytes(self) -> int:
        """The largest batch that it takes, in this life."""

    def identified(
        self, ledger_id: int, identity: bytes, *, for_write: bool = False, for_repair: bool = False
    ) -> AbstractAsyncContextManager[None]:
        """Hold a ledger during a request that states its identity.

        Args:
            for_write: of a ledger that is not known here yet, the metadata are asked.
            for_repair: it may be about a ledger of which the identity was lost while its id may have another one.

        Raises:
            OtherLedger: another ledger of this id is held here, or came to be during the request.
            EntryUnknown: that cannot be told.
        """

    async def any_opens(self, ledger_id: int, shown: Sequence[tuple[bytes, bytes]]) -> bool:
        """Whether an ordinary add with one of these keys and identities could be about this ledger.

        Raises:
            NoSuchLedger: it was deleted, or the metadata, read linearizably, does not know it.
            MetadataUnavailable: nothing is known of it here, and the metadata does not answer.
        """

    def add(
        self,
        batch: Buffer,
        key: bytes,
        on_answer: AddCallback,
        *,
        recovery: bool = False,
        deferred: bool = False,
        repair: bool = False,
        beside: bool = False,
        identity: bytes = NO_IDENTITY,
    ) -> None:
        """Take one batch. ``on_answer`` gets code 0 once it is durable, else the code of the refusal.

        ``repair``: a copy that the bookie should have; see ``BookieConnection.repair_add``. ``key`` is not looked at.

        ``beside``: the same client has others under way here. Where room is short, it comes after those who have none.

        ``deferred``: it gets code 0 as soon as the batch is taken; ``force`` makes it durable, or a crash loses it.

        ``identity``: of the ledger that the client means. Where another one of this id is held: ``OtherLedger``.
        The caller keeps ``batch`` unchanged for ever; the bookie may hold a reference.
        """

    async def force(self, ledger_id: int, key: bytes) -> None:
        """Return when every batch of the ledger that was taken before is durable.

        Raises:
            LedgerFenced: a recovery has fenced the ledger.
            EntryUnknown: the ledger is in limbo: something that was taken may have been lost.
            Unauthorized, NoSuchLedger: as for ``fence``.
        """

    async def fence(self, ledger_id: int, key: bytes) -> FenceAnswer:
        """Refuse every ordinary add of the ledger from now on; durable when it returns.

        Raises:
            Unauthorized: the key does not fit the ledger.
            NoSuchLedger: the metadata, read linearizably, does not know the ledger.
        """

    async def read_batches(self, ledger_id: int, first: int, last: int, max_bytes: int) -> ReadAnswer:
        """Whole batches from the one that holds ``first``, without a gap, up to ``last`` or about ``max_bytes``.

        At least one batch, however large.

        Raises:
            EntryAbsent, EntryCorrupt, EntryUnknown: what is known of entry ``first``.
        """

    async def recovery_read(self, ledger_id: int, entry_id: int, key: bytes, max_bytes: int = 0) -> ReadAnswer:
        """Fence, then the batch that holds ``entry_id``, and what follows it without a gap up to about ``max_bytes``.

        Answers, ABSENT included, only when the fence and every add taken before it are durable.

        Raises:
            EntryAbsent, EntryCorrupt, EntryUnknown: what is known of the entry.
            Unauthorized, NoSuchLedger: as for ``fence``.
        """

    async def read_entry(self, ledger_id: int, entry_id: int) -> EntrySlice:
        """One entry, cut out of its batch.

        Raises:
            EntryAbsent, EntryCorrupt, EntryUnknown: what is known of the entry.
        """

    async def read_lac(self, ledger_id: int) -> LacAnswer:
        """The highest LAC seen of the ledger, in batches or on its own.

        Raises:
            EntryAbsent: nothing of this ledger is held, and nothing can have been lost.
            EntryUnknown: it cannot be told.
        """

    async def wait_lac(self, ledger_id: int, above: int, timeout_ms: int) -> LacAnswer:
        """Like ``read_lac``, but waits for a LAC above ``above``, a fence, or the timeout.

        Of a ledger not held yet it answers LAC -1 after the timeout.
        """

    async def write_lac(self, ledger_id: int, lac: int, key: bytes) -> None:
        """Remember an explicit LAC; durable when it returns. A lower one than known changes nothing."""

    async def held(self, ledger_id: int, first: int, last: int) -> HeldAnswer:
        """What is held of the ledger between two entries, all of it durable; no data is read.

        Bounded work: where that ends before ``last``, the answer says where to go on.

        Raises:
            NoSuchLedger: the ledger was deleted.
            EntryUnknown: it cannot be told.
        """

    async def damaged(self, after: tuple[int, int], limit: int) -> tuple[DamagedBatch, ...]:
        """Copies that are known to be damaged and still are, in order, behind this ledger and first entry.

        At most ``limit``, and at most ``limits.MAX_PAGE``. Only an empty page is the last one.

        Raises:
            EntryUnknown: the index cannot be read.
            Busy: it looked at many that are not damaged any more; ask again.
        """

    async def held_ledgers(self, after: int, limit: int) -> HeldLedgers:
        """Ledgers with ids above ``after`` of which a batch is held, without those that were deleted.

        At most ``limit``, and at most ``limits.MAX_PAGE``. A page is empty only where it is complete.

        Raises:
            EntryUnknown: the index cannot be read.
        """

    async def end_limbo(self, ledger_id: int) -> None:
        """All that may have been lost of the ledger was given back; durable when it returns. A closed one is fenced.

        Raises:
            EntryUnknown: an entry is not here for which the metadata name this bookie: the ledger stays in limbo.
            Unauthorized: the metadata, read linearizably, say neither that the ledger is closed, nor that it is open
                and grows at other bookies.
            NoSuchLedger: it was deleted.
            BookieUnavailable: the bookie is not enrolled yet, and more may still be lost.
            MetadataUnavailable: the metadata do not answer.
        """

    async def status(self) -> BookieStatus:
        """How the bookie is doing."""

    async def trace(self, ledger_id: int, entry_id: int) -> CopyTrace:
        """Where the copy of the batch with this entry lies, and whether it is intact: what is stored is read anew."""
