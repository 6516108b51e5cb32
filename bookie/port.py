"""The operations of one bookie, independent of transport: the port behind ``bookie/rpc/service``.

``bookie/bookie.py`` implements it on a disk; an in-memory bookie implements it for tests and
simulation. Answers are values of ``core.answers``; refusals are errors of ``core.errors``.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from tallybook.core.add_kind import AddKind
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
from tallybook.core.buffers import Buffer
from tallybook.core.ids import NO_IDENTITY


class LedgerStore(Protocol):
    """The ledgers of one bookie."""

    @property
    def bookie_id(self) -> str:
        """The bookie's id in ledger metadata."""

    @property
    def incarnation(self) -> Incarnation:
        """The current incarnation: directory uuid and boot number."""

    @property
    def max_batch_bytes(self) -> int:
        """The largest batch that this bookie takes; fixed until it restarts."""

    def identified(
        self, ledger_id: int, identity: bytes, *, for_write: bool = False, for_repair: bool = False
    ) -> AbstractAsyncContextManager[None]:
        """Pin a ledger in memory while a request that states the ledger's identity is served.

        Args:
            for_write: learn an unknown ledger's identity from the metadata first.
            for_repair: also accept a ledger in doubt, whose identity was lost while its id may have been reused.

        Raises:
            OtherLedger: another ledger with this id is held here, before or after the request.
            EntryUnknown: the ledger's identity is not known.
        """

    async def any_opens(self, ledger_id: int, shown: Sequence[tuple[bytes, bytes]]) -> bool:
        """Whether one of these pairs of key and identity authorizes an ordinary add to this ledger.

        Raises:
            NoSuchLedger: the ledger was deleted, or the metadata, read linearizably, does not have it.
            MetadataUnavailable: nothing is known of it here, and the metadata store does not respond.
        """

    def add(
        self,
        batch: Buffer,
        key: bytes,
        on_answer: AddCallback,
        *,
        kind: AddKind = AddKind.ORDINARY,
        others_in_flight: bool = False,
        identity: bytes = NO_IDENTITY,
    ) -> None:
        """Take one batch. ``on_answer`` gets code 0 once it is durable, else the code of the refusal.

        Args:
            batch: never changed by the caller afterwards; the bookie may keep a reference.
            key: ignored for a repair add.
            kind: a deferred add gets code 0 as soon as the batch is taken.
            others_in_flight: the same client has other adds in flight here. Under load, clients without any go first.
            identity: of the ledger that the client means; ``OtherLedger`` if another ledger of this id is held.
        """

    async def force(self, ledger_id: int, key: bytes) -> None:
        """Return when every batch of the ledger that was taken before is durable.

        Raises:
            LedgerFenced: a recovery has fenced the ledger.
            EntryUnknown: the ledger is in limbo: a batch that was taken may have been lost.
            Unauthorized, NoSuchLedger: as for ``fence``.
        """

    async def fence(self, ledger_id: int, key: bytes) -> FenceAnswer:
        """Refuse every ordinary add of the ledger from now on; durable when it returns.

        Raises:
            Unauthorized: the key is wrong.
            NoSuchLedger: the metadata, read linearizably, does not have the ledger.
        """

    async def read_batches(
        self, ledger_id: int, first: int, last: int, max_bytes: int, *, background: bool = False
    ) -> ReadAnswer:
        """Read whole batches without a gap, from the one with entry ``first`` up to ``last`` or about ``max_bytes``.

        Returns at least one batch, however large.

        Args:
            background: the read gives way to other requests.

        Raises:
            EntryAbsent, EntryCorrupt, EntryUnknown: the state of entry ``first``.
        """

    async def recovery_read(self, ledger_id: int, entry_id: int, key: bytes, max_bytes: int = 0) -> ReadAnswer:
        """Fence, then read the batch with ``entry_id`` and those that follow without a gap, up to about ``max_bytes``.

        Answers, ABSENT included, only when the fence and every add taken before it are durable.

        Raises:
            EntryAbsent, EntryCorrupt, EntryUnknown: the state of the entry.
            Unauthorized, NoSuchLedger: as for ``fence``.
        """

    async def read_entry(self, ledger_id: int, entry_id: int) -> EntrySlice:
        """Read one entry, cut out of its batch.

        Raises:
            EntryAbsent, EntryCorrupt, EntryUnknown: the state of the entry.
        """

    async def read_lac(self, ledger_id: int) -> LacAnswer:
        """The highest LAC seen for the ledger, in batches or explicit.

        Raises:
            EntryAbsent: nothing of this ledger is held, and nothing can have been lost.
            EntryUnknown: entries may have been lost.
        """

    async def wait_lac(self, ledger_id: int, above: int, timeout_ms: int) -> LacAnswer:
        """Like ``read_lac``, but waits for a LAC above ``above``, a fence, or the timeout.

        For a ledger that is not held yet, it answers LAC -1 after the timeout.
        """

    async def write_lac(self, ledger_id: int, lac: int, key: bytes) -> None:
        """Record an explicit LAC; durable when it returns. A lower one than known changes nothing."""

    async def held(self, ledger_id: int, first: int, last: int) -> HeldAnswer:
        """Ranges of entries that are held between two entries, all of them durable; reads no data.

        The work is bounded: if it ends before ``last``, the answer says where to continue.

        Raises:
            NoSuchLedger: the ledger was deleted.
            EntryUnknown: the index cannot be read there.
        """

    async def damaged(self, after: tuple[int, int], limit: int) -> tuple[DamagedBatch, ...]:
        """Copies that are known to be damaged, in order, after this ledger and first entry.

        At most ``limit``, and at most ``limits.MAX_PAGE``. Only an empty page is the last one.

        Raises:
            EntryUnknown: the index cannot be read.
            Busy: many listed copies turned out to be intact again; ask again.
        """

    async def held_ledgers(self, after: int, limit: int) -> HeldLedgers:
        """Ledgers with ids above ``after`` of which a batch is held, except deleted ones.

        At most ``limit``, and at most ``limits.MAX_PAGE``. A page is empty only if there are no more.

        Raises:
            EntryUnknown: the index cannot be read.
        """

    async def end_limbo(self, ledger_id: int) -> None:
        """End the limbo of a ledger after a repair restored all lost entries; durable when it returns.

        A closed ledger is fenced.

        Raises:
            EntryUnknown: the metadata assigns an entry to this bookie that is not here; the ledger stays in limbo.
            Unauthorized: the metadata, read linearizably, says neither that the ledger is closed, nor that it is open
                and grows at other bookies.
            NoSuchLedger: the ledger was deleted.
            BookieUnavailable: the bookie is not registered yet, and more may still be lost.
            MetadataUnavailable: the metadata store does not respond.
        """

    async def status(self) -> BookieStatus:
        """Disk usage, mode, limbo and damage of the bookie."""

    async def trace(self, ledger_id: int, entry_id: int) -> CopyTrace:
        """Where the copy of the batch with this entry is stored, and whether it is intact on the disk."""
