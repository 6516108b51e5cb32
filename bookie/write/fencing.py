"""Fencing and deletion of ledgers at this bookie.

A fence is appended to the journal first and set in memory second, in one turn of the event loop: a fence that the
journal refuses is not set, so no later fence request is answered because of it. From then on every ordinary add is
refused. The request is answered when the fence, and every add taken before it, are durable. The record carries the key
verifier, and a record before it the identity, so the fence survives a restart even if the bookie holds no entry.
"""

from __future__ import annotations

from tallybook.core.answers import FenceAnswer
from tallybook.core.coverage import sometimes
from tallybook.core.errors import Busy, EntryUnknown, NoSuchLedger

from ..journal.format import DeleteRecord, FenceRecord
from ..ledgers.key_verification import KeyVerification, introducing_record, verifier_to_record
from ..ledgers.state import Ledger
from ..ledgers.table import LedgerTable
from .admission import Admission
from .pending_acks import PendingAcks


class LedgerFencing:
    """Fences and deletes ledgers."""

    def __init__(
        self, table: LedgerTable, commits: PendingAcks, admission: Admission, verifiers: KeyVerification
    ) -> None:
        self._table = table
        self._commits = commits
        self._admission = admission
        self._verifiers = verifiers

    async def fence(self, ledger_id: int, key: bytes) -> FenceAnswer:
        """Fence a ledger; see ``LedgerStore.fence``.

        Raises:
            EntryUnknown: the ledger is fenced now, durably, but its entries may have been lost.
            Busy: the journal has no space for the record.
        """
        async with self._table.using(ledger_id) as ledger:
            await self.fence_durably(ledger, key)
            if ledger.limbo:
                sometimes("fence: of a ledger in limbo")
                raise EntryUnknown(f"ledger {ledger_id} is fenced, but is in limbo: its entries may have been lost")
            return FenceAnswer(ledger.lac, ledger.last_held)

    async def fence_durably(self, ledger: Ledger, key: bytes) -> None:
        """Set the fence, if it is not set yet, and wait until it and all adds before it are durable."""
        await self._verifiers.authorize(ledger, key)
        await self._fence(ledger)

    async def fence_closed(self, ledger_id: int) -> None:
        """Fence a closed ledger durably, before its copies are dropped, so that it cannot be written here afterwards.

        Raises:
            Busy: the journal has no space for the record.
            NoSuchLedger, MetadataUnavailable: its key verifier, which the record carries, is not available.
        """
        async with self._table.using(ledger_id) as ledger:
            await self._verifiers.learn(ledger)
            await self._fence(ledger)

    async def _fence(self, ledger: Ledger) -> None:
        if ledger.deleted:
            raise NoSuchLedger(f"ledger {ledger.ledger_id} was deleted")
        if not ledger.fenced:
            self._check_space()
            if ledger.identity and not ledger.verifier_recorded:
                self._commits.append(introducing_record(ledger), ledger)
            self._commits.append(FenceRecord(ledger.ledger_id, verifier_to_record(ledger.verifier or b"")), ledger)
            ledger.set_fenced()
            ledger.verifier_recorded = True
            self._table.mark_dirty(ledger)
        await self._commits.durable(ledger)

    async def delete(self, ledger_id: int) -> None:
        """Refuse reads and adds of a ledger permanently, since it need not be kept; durable when it returns.

        Its data stays until the garbage collector drops it.

        Raises:
            Busy: the journal has no space for the record.
        """
        async with self._table.using(ledger_id) as ledger:
            if not ledger.deleted:
                self._check_space()
                self._commits.append(DeleteRecord(ledger_id), ledger)
                ledger.set_deleted()
                self._table.mark_dirty(ledger)
            await self._commits.durable(ledger)

    def _check_space(self) -> None:
        refusal = self._admission.urgent_refusal()
        if refusal is not None:
            sometimes("fence: no space in the journal")
            self._admission.count(refusal)
            raise Busy("the journal is full", retry_after_ms=refusal.retry_after_ms)
