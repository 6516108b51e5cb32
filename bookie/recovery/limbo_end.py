"""Ends the limbo of a ledger: checks that the bookie holds, and may vouch for, every entry that it should.

After limbo, the bookie answers ABSENT for an entry that it does not have. That would be wrong for an entry that the
metadata assigns to it, because it may have acked it. So such an entry must be in the write cache or in the index.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain

from tallybook.core.answers import EntryRange
from tallybook.core.coverage import sometimes
from tallybook.core.errors import BookieUnavailable, EntryUnknown, NoSuchLedger

from ..ledgers.confirmed_prefix import AssignedEntries, ConfirmedPrefixes
from ..ledgers.key_verification import KeyVerification
from ..ledgers.state import Ledger
from ..ledgers.table import LedgerTable
from ..ledgers.verified_copies import VerifiedCopies
from ..storage.checkpoint import Checkpointer
from ..storage.index.present_rows import PresentRows, RowPage
from ..storage.write_cache import WriteCache


class LimboEnd:
    """Ends the limbo of the ledgers of one bookie, one by one.

    Args:
        verified: the copies that repairs have verified since the bookie booted.
    """

    def __init__(
        self,
        bookie_id: str,
        table: LedgerTable,
        cache: WriteCache,
        rows: PresentRows,
        confirmed: ConfirmedPrefixes,
        verifiers: KeyVerification,
        verified: VerifiedCopies,
        checkpointer: Checkpointer,
    ) -> None:
        self._bookie_id = bookie_id
        self._table = table
        self._cache = cache
        self._rows = rows
        self._confirmed = confirmed
        self._verifiers = verifiers
        self._verified = verified
        self._checkpointer = checkpointer

    async def end(self, ledger_id: int) -> None:
        """End the limbo of a ledger, durably. A closed ledger stays fenced.

        Raises:
            BookieUnavailable: the bookie replaces another one and is not registered yet.
            NoSuchLedger: the ledger was deleted.
            EntryUnknown: an entry that the metadata assigns to this bookie is missing, or its state is unknown: the
                ledger stays in limbo.
            DiskFailed: the change could not be made durable, and the process ends.
            RequestTimeout: the checkpoint that makes it durable takes longer than ``FLUSH_SECONDS``.
        """
        if self._table.limbo.awaits_registration:
            raise BookieUnavailable("this bookie replaces another one and is not registered yet")
        async with self._table.using(ledger_id) as ledger:
            confirmed = await self._confirmed.confirmed_at(ledger_id, self._bookie_id)
            if ledger.limbo:
                ours = [share for share in confirmed.shares if share.bookie_id == self._bookie_id]
                await self._check_all_here(ours, ledger_id)
                if ledger.doubted:
                    await self._verify_copies(ledger, ours)
            if ledger.deleted:
                raise NoSuchLedger(f"ledger {ledger_id} was deleted")
            if ledger.limbo and ledger.repair_events is None:
                ledger.note_repaired(self._table.limbo.events, fence=confirmed.closed)
                self._table.mark_dirty(ledger)
            if ledger.dirty or ledger.flushing:
                # Also if another call is ending the limbo right now: the answer must be durable, too.
                await self._checkpointer.flush()
            if not ledger.end_limbo():
                self._table.mark_dirty(ledger)
                raise _in_doubt(ledger_id)

    async def _check_all_here(self, shares: Sequence[AssignedEntries], ledger_id: int) -> None:
        """Check that every assigned entry is held: after limbo, a missing entry is answered ABSENT."""
        for share in shares:
            missing = await _first_missing(self._cache, self._rows, ledger_id, share.ranges(), share.last)
            if missing is not None:
                raise EntryUnknown(f"ledger {ledger_id}: entry {missing} is missing here; the ledger stays in limbo")

    async def _verify_copies(self, ledger: Ledger, shares: Sequence[AssignedEntries]) -> None:
        """Check that a repair verified every assigned entry since the bookie booted, and end the doubt."""
        facts = await self._verifiers.facts(ledger.ledger_id)
        ours = chain.from_iterable(share.ranges() for share in shares)
        if not self._verified.are_all(ours, ledger.ledger_id, facts.identity):
            raise _in_doubt(ledger.ledger_id)
        if ledger.doubted:
            sometimes("bookie: a ledger in doubt is proven")
            ledger.prove(facts.verifier, facts.identity)
            self._table.mark_dirty(ledger)
        self._verified.forget(ledger.ledger_id)


def _in_doubt(ledger_id: int) -> EntryUnknown:
    return EntryUnknown(f"ledger {ledger_id}: its id may have been handed out twice: it stays in limbo")


async def _first_missing(
    cache: WriteCache, rows: PresentRows, ledger_id: int, wanted: Iterable[EntryRange], last: int
) -> int | None:
    """The first entry of ``wanted`` that is not held, or ``None``.

    Args:
        wanted: ascending and disjoint, up to ``last``.

    Raises:
        EntryUnknown: the index cannot be read.
    """
    known = _Known()
    for want in wanted:
        next_id = want.first
        while next_id <= want.last:
            # In this order: a batch is in the index before it leaves the cache.
            cached = cache.find(ledger_id, next_id)
            end = known.end_of(next_id) if cached is None else cached.last
            if end is None:
                known = _Known(await rows.page(ledger_id, next_id, last))
                end = known.end_of(next_id)
            if end is None:
                return next_id
            next_id = end + 1
    return None


class _Known:
    """Steps through the rows of a page."""

    def __init__(self, page: RowPage | None = None) -> None:
        self._rows = [] if page is None else page.present
        self._at = 0

    def end_of(self, entry_id: int) -> int | None:
        """The last entry of the row with this entry, which must be above all earlier ones."""
        while self._at < len(self._rows) and self._rows[self._at].last_entry_id < entry_id:
            self._at += 1
        if self._at < len(self._rows) and self._rows[self._at].first_entry_id <= entry_id:
            return self._rows[self._at].last_entry_id
        return None
