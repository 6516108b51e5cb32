"""The ends of a ledger at this bookie: the fence, and the deletion.

A fence is given to the journal and set in one turn of the event loop, in this order: what the
journal does not take is not set, so no later fence is answered on its account. From then on
every ordinary add is refused; the fence is answered only when it, and every add taken before
it, are durable. The record carries
the key verifier, and one before it the identity, so a fence alone makes a ledger known: also
where the bookie holds nothing of it, also after a restart.
"""

from __future__ import annotations

from tallybook.core.answers import FenceAnswer
from tallybook.core.errors import Busy, EntryUnknown, NoSuchLedger
from tallybook.core.marks import sometimes

from .admission import Admission
from .commits import Commits
from .journal.records import DeleteRecord, FenceRecord
from .ledger_state import Ledger
from .ledger_table import LedgerTable
from .verifiers import Verifiers, introduction_of, verifier_to_record


class Fences:
    """Fences and deletes ledgers. The parts are those of the add path."""

    def __init__(self, table: LedgerTable, commits: Commits, admission: Admission, verifiers: Verifiers) -> None:
        self._table = table
        self._commits = commits
        self._admission = admission
        self._verifiers = verifiers

    async def fence(self, ledger_id: int, key: bytes) -> FenceAnswer:
        """Fence a ledger; see ``LedgerStore.fence``.

        Raises:
            EntryUnknown: it is fenced now, durably, but what it held may have been lost.
            Busy: there is no room for the record.
        """
        async with self._table.using(ledger_id) as ledger:
            await self.fence_durably(ledger, key)
            if ledger.limbo:
                sometimes("fence: of a ledger in limbo")
                raise EntryUnknown(f"ledger {ledger_id} is fenced, but what was held of it may have been lost")
            return FenceAnswer(ledger.lac, ledger.last_held)

    async def fence_durably(self, ledger: Ledger, key: bytes) -> None:
        """Set the fence, if it is not set yet, and wait until it and all adds before it are durable."""
        await self._verifiers.authorise(ledger, key)
        await self._fence(ledger)

    async def fence_unasked(self, ledger_id: int) -> None:
        """Fence a ledger that is closed, durably: its copies are to go, and nobody may write it here afterwards.

        Raises:
            Busy: there is no room for the record.
            NoSuchLedger, MetadataUnavailable: its verifier, which the record carries, is not known here.
        """
        async with self._table.using(ledger_id) as ledger:
            await self._verifiers.learn(ledger)
            await self._fence(ledger)

    async def _fence(self, ledger: Ledger) -> None:
        if ledger.deleted:
            raise NoSuchLedger(f"ledger {ledger.ledger_id} was deleted")
        if not ledger.fenced:
            self._check_room()
            if ledger.identity and not ledger.verifier_recorded:
                self._commits.append(introduction_of(ledger), ledger)
            self._commits.append(FenceRecord(ledger.ledger_id, verifier_to_record(ledger.verifier or b"")), ledger)
            ledger.set_fenced()
            ledger.verifier_recorded = True
            self._table.mark_dirty(ledger)
        await self._commits.durable(ledger)

    async def delete(self, ledger_id: int) -> None:
        """Refuse a ledger that need not be kept, reads and adds alike, for ever; durable when it returns.

        What it holds stays until the collector of garbage drops it.

        Raises:
            Busy: there is no room for the record.
        """
        async with self._table.using(ledger_id) as ledger:
            if not ledger.deleted:
                self._check_room()
                self._commits.append(DeleteRecord(ledger_id), ledger)
                ledger.set_deleted()
                self._table.mark_dirty(ledger)
            await self._commits.durable(ledger)

    def _check_room(self) -> None:
        refusal = self._admission.urgent_refusal()
        if refusal is not None:
            sometimes("fence: no room in the journal")
            self._admission.count(refusal)
            raise Busy("no room in the journal", retry_after_ms=refusal.retry_after_ms)
