"""Repair adds: the checks of a batch that a repair brings, without a key.

They take the path of all adds (``add_path.py``), with four differences:

- The metadata authorizes them instead of a key (``confirmed_prefix.py``). Neither a fence nor limbo refuses them, since
  a repair only restores confirmed entries; a deletion does, and so do other bytes under the same ids.
- Existing copies are read from the disk, past the read cache: a good copy in memory over a damaged one on the disk must
  not count.
- A copy that cannot be read, because it is damaged or its log is lost, is replaced, and so is a damaged index row.
- If only the reserve of the disk is left, they are BUSY (``admission.py``).
"""

from __future__ import annotations

from tallybook.core.batch import BatchHeader
from tallybook.core.buffers import Buffer
from tallybook.core.errors import Conflict

from ..background.budget import BackgroundBudget, BackgroundWork
from ..ledgers.confirmed_prefix import ConfirmedPrefixes
from ..ledgers.over_replicated import RepairVisits
from ..ledgers.state import Ledger
from ..ledgers.verified_copies import VerifiedCopies
from ..storage.flushed_batches import FlushedBatches
from .overlap_trim import OverlapTrim


class RepairAdds:
    """The additional checks of the add path for a repair."""

    def __init__(
        self,
        confirmed: ConfirmedPrefixes,
        overlap_trim: OverlapTrim,
        stored: FlushedBatches,
        visits: RepairVisits,
        verified: VerifiedCopies,
        budget: BackgroundBudget,
    ) -> None:
        self._budget = budget
        self._confirmed = confirmed
        self._overlap_trim = overlap_trim
        self._stored = stored
        self._visits = visits
        self._verified = verified

    async def check(self, header: BatchHeader) -> None:
        """Wait for the turn of a repair, and check that no writer can change the entries of the batch any more.

        Raises:
            Unauthorized, NoSuchLedger, MetadataUnavailable: see ``ConfirmedPrefixes.check_entry``.
        """
        await self._budget.spend(BackgroundWork.REPAIR, header.total_bytes)
        self._visits.note(header.ledger_id)
        await self._confirmed.check_entry(header.ledger_id, header.last_entry_id)

    def note_held(self, ledger: Ledger, header: BatchHeader, identity: bytes) -> None:
        """Note that the held batch is of the ledger whose identity the repair has stated."""
        if ledger.doubted and identity:
            self._verified.note(header.ledger_id, identity, header.first_entry_id, header.last_entry_id)

    async def stored_overlap(self, header: BatchHeader) -> list[Buffer | None]:
        """The copies on the disk that overlap the batch; ``None`` for a copy that the batch may replace.

        Raises:
            Conflict: a batch with other ids is held.
            EntryUnknown: the index cannot be read there.
            Busy, DiskFull, DiskFailed: see ``OverlapTrim.trim``.
        """
        first, last = header.first_entry_id, header.last_entry_id
        survey = await self._overlap_trim.trim(header)
        survey.check_readable()
        found: list[Buffer | None] = [None] if survey.is_damaged_at(header.ledger_id, first) else []
        for row in survey.rows:
            if (row.first_entry_id, row.last_entry_id) != (first, last):
                held = f"entries {row.first_entry_id} to {row.last_entry_id} as one batch"
                raise Conflict(f"ledger {header.ledger_id}: {held} are held, not {first} to {last}")
            found += await self._stored.to_mend(row)
        return found
