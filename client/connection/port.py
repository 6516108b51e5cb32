"""What a client needs of one bookie: the port the writer, reader and recovery drivers speak to.

``bookie_rpc`` implements it over streams; an in-memory bookie implements it directly.
Every wait ends: with an answer, or with an error of ``core.errors`` after the deadline.

What is about a ledger states its ``identity``, which tells it from another one of the same id; a bookie that holds
another one answers ``OtherLedger``. Empty: it is not checked.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from tallybook.core.access import Permission
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
from tallybook.core.batch import EntrySlice
from tallybook.core.ids import NO_IDENTITY

AddCallback = Callable[[AddAnswer], None]
"""Called on the event loop, once, with the fate of one batch."""


class Sending(Protocol):
    """One batch on its way to a bookie."""

    @property
    def owed_since(self) -> float:
        """Monotonic second from which its bookie owes the answer: it answered a later one, or nothing since then.

        While it waits here, and while only those sent before it are answered, that is when the last of them was. So
        only a bookie that answers nothing, or passes this one over, is silent.
        """

    def withdraw(self) -> None:
        """Do not send it, if it was not sent yet: it is dropped, and its callback not called."""


class BookieConnection(Protocol):
    """One bookie, in one of its lives."""

    @property
    def bookie_id(self) -> str:
        """Whom this leads to."""

    @property
    def incarnation(self) -> Incarnation:
        """The life it was opened to; work is refused by any other."""

    @property
    def max_batch_bytes(self) -> int:
        """The largest batch that this life of the bookie takes."""

    def abort(self) -> None:
        """Break the connection: drop what is queued; whoever waits hears ``BookieUnavailable``. Idempotent."""

    @property
    def progress_at(self) -> float:
        """Monotonic second of the last ack, or of the first add since nothing was unanswered; now, if nothing is."""

    def attach(
        self,
        ledger_id: int,
        key: bytes,
        *,
        deferred: bool = False,
        identity: bytes = NO_IDENTITY,
        on_replaced: Callable[[], None] = lambda: None,
    ) -> None:
        """Let the bookie know that a ledger has a writer, however idle, until ``forget``.

        It is told again over each later connection of this client, which is opened where this one is lost.

        Args:
            on_replaced: called where such a connection leads to another directory of the bookie.
        """

    def forget(self, ledger_id: int) -> None:
        """Nothing is to be added to a ledger any more: release what is kept of it for this bookie."""

    def add(
        self, batch: bytes, key: bytes, on_answer: AddCallback, *, deferred: bool = False, identity: bytes = NO_IDENTITY
    ) -> Sending:
        """Send one batch as an ordinary add.

        Never waits: the caller bounds what it has in flight. The answer's code is 0 when the
        batch is durable there, or taken if it is ``deferred``; ``BookieUnavailable``'s code when
        the connection was lost first.
        """

    async def force(self, ledger_id: int, key: bytes, *, identity: bytes = NO_IDENTITY) -> None:
        """Return when every batch of the ledger that the bookie has acked is durable there."""

    async def recovery_add(self, batch: bytes, key: bytes, *, identity: bytes = NO_IDENTITY) -> None:
        """Send one batch as a recovery add, in the fence's lane; return when it is durable there."""

    async def repair_add(self, batch: bytes, *, identity: bytes = NO_IDENTITY) -> None:
        """Give the bookie a copy that it should have, byte for byte; durable there when it returns.

        Needs no key. The bookie takes it only where the metadata, which it reads linearizably, say that no writer can
        be at these entries: the ledger is closed and the batch ends at or before its last entry, or the batch ends
        before the first entry of the last fragment. It replaces a damaged copy; of an intact one there is nothing to
        do. It is taken while the bookie is read-only, and in limbo. It neither sets a fence nor takes one away.

        Raises:
            Unauthorized: the metadata do not say so.
            Conflict: other bytes are held under these ids.
            NoSuchLedger: the ledger was deleted, here or from the metadata.
            Busy: there is no room now.
            MetadataUnavailable: the metadata do not answer, and nothing was taken.
        """

    async def fence(self, ledger_id: int, key: bytes, *, identity: bytes = NO_IDENTITY) -> FenceAnswer:
        """Fence the ledger; the answer means that the fence is durable."""

    async def read_batches(
        self, ledger_id: int, first: int, last: int, max_bytes: int, *, identity: bytes = NO_IDENTITY
    ) -> ReadAnswer:
        """Whole batches from the one that holds ``first``, without a gap, up to ``last`` or about ``max_bytes``.

        Raises:
            EntryAbsent, EntryCorrupt, EntryUnknown: what the bookie knows of entry ``first``.
        """

    async def recovery_read(
        self, ledger_id: int, entry_id: int, key: bytes, max_bytes: int = 0, *, identity: bytes = NO_IDENTITY
    ) -> ReadAnswer:
        """The batch that holds ``entry_id``; fences first, and is answered only when the fence is durable.

        Of what follows without a gap, the answer may bring about ``max_bytes`` along.

        Raises:
            EntryAbsent, EntryCorrupt, EntryUnknown: what the bookie knows of the entry.
        """

    async def read_entry(self, ledger_id: int, entry_id: int, *, identity: bytes = NO_IDENTITY) -> EntrySlice:
        """One entry, cut from its batch and not yet verified.

        Raises:
            EntryAbsent, EntryCorrupt, EntryUnknown: what the bookie knows of the entry.
        """

    async def read_lac(self, ledger_id: int, *, identity: bytes = NO_IDENTITY) -> LacAnswer:
        """The highest LAC the bookie saw of the ledger.

        Raises:
            EntryAbsent: the bookie knows nothing of this ledger, and cannot have lost it.
            EntryUnknown: it cannot tell.
        """

    async def wait_lac(
        self, ledger_id: int, above: int, timeout_ms: int, max_bytes: int = 0, *, identity: bytes = NO_IDENTITY
    ) -> LacAnswer:
        """Like ``read_lac``, but waits up to ``timeout_ms`` for a LAC above ``above`` or a fence.

        Args:
            max_bytes: about how much the answer may bring along of what is behind ``above``, up to the LAC.
        """

    async def write_lac(self, ledger_id: int, lac: int, key: bytes, *, identity: bytes = NO_IDENTITY) -> None:
        """Tell the bookie a LAC, outside of any batch; durable when it returns."""

    def tell_lac(
        self,
        ledger_id: int,
        lac: int,
        key: bytes,
        *,
        identity: bytes = NO_IDENTITY,
        on_lost: Callable[[], None] = lambda: None,
    ) -> None:
        """Tell the bookie a LAC, together with those of other ledgers, as soon as there is room; never waits.

        While the bookie is busy it is told again, or a newer one of the ledger is. A bookie that refuses it otherwise
        takes no batch of the ledger either.

        Args:
            on_lost: called, later, where the connection was lost before the bookie has said that it has taken it.
        """

    async def held(self, ledger_id: int, first: int, last: int, *, identity: bytes = NO_IDENTITY) -> HeldAnswer:
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
            Busy: the bookie looked at many that are not damaged any more; ask again.
        """

    async def held_ledgers(self, after: int, limit: int) -> HeldLedgers:
        """Ledgers with ids above ``after`` of which a batch is held, without those that were deleted.

        At most ``limit``, and at most ``limits.MAX_PAGE``. A page is empty only where it is complete.

        Raises:
            EntryUnknown: the index cannot be read.
        """

    async def end_limbo(self, ledger_id: int, *, identity: bytes = NO_IDENTITY) -> None:
        """All that may have been lost of the ledger was given back; durable when it returns. The ledger is fenced.

        Raises:
            Unauthorized: the metadata, read linearizably, do not say that the ledger is closed.
            NoSuchLedger: it was deleted.
            BookieUnavailable: the bookie is not enrolled yet, and more may still be lost.
            MetadataUnavailable: the metadata do not answer.
        """

    async def status(self) -> BookieStatus:
        """How the bookie is doing."""

    async def trace(self, ledger_id: int, entry_id: int, *, identity: bytes = NO_IDENTITY) -> CopyTrace:
        """Where the copy of the batch with this entry lies, and whether it is intact: what is stored is read anew."""

    async def authorize(self, permission: Permission, command: str, arguments: str) -> None:
        """Return if this client may run an operator's command; the bookie then has it in its audit log.

        Raises:
            AccessDenied: it may not.
            InvalidArgument: the bookie is of a version that cannot say.
        """
