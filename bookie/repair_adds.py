"""Repair adds: what is asked of a batch that comes without a key, from a repair.

They go the way of all adds (``adds.py``), with four differences:

- instead of a key, the metadata decide (``settled.py``). A fence does not keep them out, since a repair
  only gives back what was settled, nor does limbo; a deletion does, and so do other bytes under the same ids;
- what is held already is looked for on the disk, past the read cache: a good copy in memory over a
  damaged one on the disk is no reason to leave that as it is;
- a copy that cannot be had from the disk, because it is damaged or its log is lost, is replaced, and so is a row of
  the index that is damaged;
- where the disk has no more room than its reserve, they are BUSY (``admission.py``).
"""

from __future__ import annotations

from tallybook.core.batch import BatchHeader, Buffer
from tallybook.core.errors import Conflict

from .ledger_state import Ledger
from .leftovers import RepairVisits
from .making_way import Way
from .proven import ProvenCopies
from .settled import SettledLedgers
from .storage.stored import StoredBatches


class RepairAdds:
    """What the add path asks where it has a batch of a repair."""

    def __init__(
        self,
        settled: SettledLedgers,
        way: Way,
        stored: StoredBatches,
        visits: RepairVisits,
        proven: ProvenCopies,
    ) -> None:
        self._settled = settled
        self._way = way
        self._stored = stored
        self._visits = visits
        self._proven = proven

    async def check(self, header: BatchHeader) -> None:
        """Make sure that no writer can be at the entries of the batch.

        Raises:
            Unauthorized, NoSuchLedger, MetadataUnavailable: see ``SettledLedgers.check_entry``.
        """
        self._visits.note(header.ledger_id)
        await self._settled.check_entry(header.ledger_id, header.last_entry_id)

    def note_held(self, ledger: Ledger, header: BatchHeader, identity: bytes) -> None:
        """What is held is this batch of the ledger that the repair has stated."""
        if ledger.doubted and identity:
            self._proven.note(header.ledger_id, identity, header.first_entry_id, header.last_entry_id)

    async def stored_overlap(self, header: BatchHeader) -> list[Buffer | None]:
        """What the disk holds under the ids of the batch; ``None`` in place of a copy that it may replace.

        Raises:
            Conflict: a batch of other ids is held.
            EntryUnknown: it cannot be told what is held.
            Busy, DiskFull, DiskFailed: see ``Way.make``.
        """
        first, last = header.first_entry_id, header.last_entry_id
        told = await self._way.make(header)
        told.check_readable()
        found: list[Buffer | None] = [None] if told.is_damaged_at(header.ledger_id, first) else []
        for row in told.rows:
            if (row.first_entry_id, row.last_entry_id) != (first, last):
                held = f"entries {row.first_entry_id} to {row.last_entry_id} as one batch"
                raise Conflict(f"ledger {header.ledger_id}: {held} are held, not {first} to {last}")
            found += await self._stored.to_mend(row)
        return found
