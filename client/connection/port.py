"""The port to one bookie, used by the writer, reader and recovery drivers.

``connection.BookieRpc`` implements it over streams; an in-memory bookie implements it directly. Every call ends with
an answer, or with an error of ``core.errors`` after its deadline.

Calls about a ledger carry its ``identity``, which distinguishes ledgers with the same id. A bookie that has another
ledger under that id answers ``OtherLedger``. Empty: not checked.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from tallybook.core.access import Permission
from tallybook.core.answers import (
    AddCallback,
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

"""Called once, on the event loop, with the answer for one batch."""


class AddInFlight(Protocol):
    """One add that was given to a connection and is not answered."""

    @property
    def owed_since(self) -> float:
        """Monotonic second since when the bookie owes the answer.

        While the batch is queued here, or only earlier batches are answered, it is the time of the last answer. So a
        bookie is silent only if it answers nothing, or answers later batches but not this one.
        """

    def withdraw(self) -> None:
        """Drop the batch if it was not sent yet; its callback is then not called."""


class BookieConnection(Protocol):
    """A connection to one incarnation of a bookie."""

    @property
    def bookie_id(self) -> str:
        """The bookie's id."""

    @property
    def incarnation(self) -> Incarnation:
        """The incarnation that the connection was opened to; any other refuses requests."""

    @property
    def max_batch_bytes(self) -> int:
        """The largest batch that the bookie takes."""

    def abort(self) -> None:
        """Break the connection: drop the queue; waiting callers get ``BookieUnavailable``. Idempotent."""

    @property
    def progress_at(self) -> float:
        """Monotonic second of the last ack, or of the first add after all were answered; now, if none is unanswered."""

    def attach(
        self,
        ledger_id: int,
        key: bytes,
        *,
        deferred: bool = False,
        identity: bytes = NO_IDENTITY,
        on_replaced: Callable[[], None] = lambda: None,
    ) -> None:
        """Attach a ledger: the bookie knows that it has a writer, even if idle, until ``forget``.

        If the connection is lost, the client opens another one and attaches the ledger again.

        Args:
            on_replaced: called if a later connection finds another directory id of the bookie.
        """

    def forget(self, ledger_id: int) -> None:
        """Detach a ledger: nothing more will be added to it."""

    def add(
        self, batch: bytes, key: bytes, on_answer: AddCallback, *, deferred: bool = False, identity: bytes = NO_IDENTITY
    ) -> AddInFlight:
        """Send one batch as an ordinary add.

        Never waits: the caller bounds its batches in flight. The answer's code is 0 when the batch is durable at the
        bookie (if ``deferred``: received), and that of ``BookieUnavailable`` if the connection was lost first.
        """

    async def force(self, ledger_id: int, key: bytes, *, identity: bytes = NO_IDENTITY) -> None:
        """Return when all acked batches of the ledger are durable at the bookie."""

    async def recovery_add(self, batch: bytes, key: bytes, *, identity: bytes = NO_IDENTITY) -> None:
        """Send one batch as a recovery add, on the stream of fences; return when it is durable at the bookie."""

    async def repair_add(self, batch: bytes, *, identity: bytes = NO_IDENTITY) -> None:
        """Write a missing copy to the bookie, byte for byte; durable there when it returns. Needs no key.

        The bookie reads the metadata linearizably and accepts only entries that no writer can change: the ledger is
        closed and the batch ends at or before its last entry, or the batch ends before the last fragment. A damaged
        copy is replaced; an intact one is kept. Works while the bookie is read-only or in limbo. Does not change the
        fence.

        Raises:
            Unauthorized: a writer could still change these entries.
            Conflict: the bookie has other bytes under these ids.
            NoSuchLedger: the ledger was deleted, at the bookie or in the metadata.
            Busy: the bookie has no space now.
            MetadataUnavailable: the metadata store does not answer; nothing was written.
        """

    async def fence(self, ledger_id: int, key: bytes, *, identity: bytes = NO_IDENTITY) -> FenceAnswer:
        """Fence the ledger; the fence is durable when this returns."""

    async def read_batches(
        self,
        ledger_id: int,
        first: int,
        last: int,
        max_bytes: int,
        *,
        identity: bytes = NO_IDENTITY,
        background: bool = False,
    ) -> ReadAnswer:
        """Whole batches from the one that contains ``first``, without a gap, up to ``last`` or about ``max_bytes``.

        Args:
            background: the read gives way to other requests at the bookie.

        Raises:
            EntryAbsent, EntryCorrupt, EntryUnknown: what the bookie knows of entry ``first``.
        """

    async def recovery_read(
        self, ledger_id: int, entry_id: int, key: bytes, max_bytes: int = 0, *, identity: bytes = NO_IDENTITY
    ) -> ReadAnswer:
        """The batch that contains ``entry_id``. The bookie fences first, and answers only when the fence is durable.

        The answer may also contain about ``max_bytes`` of the batches that follow without a gap.

        Raises:
            EntryAbsent, EntryCorrupt, EntryUnknown: what the bookie knows of the entry.
        """

    async def read_entry(self, ledger_id: int, entry_id: int, *, identity: bytes = NO_IDENTITY) -> EntrySlice:
        """One entry, cut from its batch and not yet verified.

        Raises:
            EntryAbsent, EntryCorrupt, EntryUnknown: what the bookie knows of the entry.
        """

    async def read_lac(self, ledger_id: int, *, identity: bytes = NO_IDENTITY) -> LacAnswer:
        """The highest LAC of the ledger that the bookie has seen.

        Raises:
            EntryAbsent: the bookie has nothing of this ledger, and cannot have lost it.
            EntryUnknown: the bookie may have lost entries of it.
        """

    async def wait_lac(
        self, ledger_id: int, above: int, timeout_ms: int, max_bytes: int = 0, *, identity: bytes = NO_IDENTITY
    ) -> LacAnswer:
        """Like ``read_lac``, but waits up to ``timeout_ms`` for a LAC above ``above`` or a fence.

        Args:
            max_bytes: about how many bytes of entries after ``above``, up to the LAC, the answer may contain.
        """

    async def write_lac(self, ledger_id: int, lac: int, key: bytes, *, identity: bytes = NO_IDENTITY) -> None:
        """Write an explicit LAC to the bookie; durable when it returns."""

    def queue_lac(
        self,
        ledger_id: int,
        lac: int,
        key: bytes,
        *,
        identity: bytes = NO_IDENTITY,
        on_lost: Callable[[], None] = lambda: None,
    ) -> None:
        """Queue an explicit LAC, to be sent together with those of other ledgers; never waits.

        While the bookie is busy, the LAC, or a newer one of the ledger, is sent again. A bookie that refuses it for
        another reason does not accept a batch of the ledger either, so it is dropped.

        Args:
            on_lost: called, later, if the connection was lost before the bookie acknowledged the LAC.
        """

    async def held(self, ledger_id: int, first: int, last: int, *, identity: bytes = NO_IDENTITY) -> HeldAnswer:
        """The bookie's inventory of a ledger between two entries, from the index; all of it durable.

        Bounded work: if it ends before ``last``, the answer says where to continue.

        Raises:
            NoSuchLedger: the ledger was deleted.
            EntryUnknown: the index cannot be read.
        """

    async def damaged(self, after: tuple[int, int], limit: int) -> tuple[DamagedBatch, ...]:
        """Known damaged copies, in order, after this ledger and first entry.

        At most ``limit``, and at most ``limits.MAX_PAGE``. Only an empty page is the last one.

        Raises:
            EntryUnknown: the index cannot be read.
            Busy: the bookie checked many that were repaired meanwhile; ask again.
        """

    async def held_ledgers(self, after: int, limit: int) -> HeldLedgers:
        """Ledgers with ids above ``after`` of which the bookie has a batch, without deleted ledgers.

        At most ``limit``, and at most ``limits.MAX_PAGE``. Only a complete listing has an empty page.

        Raises:
            EntryUnknown: the index cannot be read.
        """

    async def end_limbo(self, ledger_id: int, *, identity: bytes = NO_IDENTITY) -> None:
        """End the ledger's limbo: every entry it may have lost was restored. Durable on return; the ledger is fenced.

        Raises:
            Unauthorized: the ledger is not closed, by a linearizable read of the metadata.
            NoSuchLedger: the ledger was deleted.
            BookieUnavailable: the bookie is not registered yet, and more may still be lost.
            MetadataUnavailable: the metadata store does not answer.
        """

    async def status(self) -> BookieStatus:
        """The bookie's status."""

    async def trace(self, ledger_id: int, entry_id: int, *, identity: bytes = NO_IDENTITY) -> CopyTrace:
        """The location of the copy with this entry, and whether it is intact: the bookie reads it from disk."""

    async def authorize(self, permission: Permission, command: str, arguments: str) -> None:
        """Return if this client is authorized to run an operator command; the bookie then writes it to its audit log.

        Raises:
            AccessDenied: it is not authorized.
            InvalidArgument: the bookie's version does not know this request.
        """
