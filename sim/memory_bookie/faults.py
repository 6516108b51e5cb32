"""Faults of stored batches in an in-memory bookie: errors, rot and limbo."""

from __future__ import annotations

from tallybook.core.batch import BatchHeader
from tallybook.core.errors import EntryCorrupt, EntryUnknown, StorageError


class MemoryFaults:
    """Faults for reads of stored batches; none at first.

    Args:
        owner: the bookie's id, for messages.
    """

    def __init__(self, owner: str) -> None:
        self._owner = owner
        self._errors: dict[tuple[int, int], type[StorageError]] = {}
        self._rotten: dict[tuple[int, int], None] = {}
        self._limbo: set[int] = set()
        self._limbo_below = 0
        self._given_back: set[int] = set()

    def inject(self, ledger_id: int, entry_id: int, error: type[StorageError]) -> None:
        """Answer reads of the batch that holds this entry with ``error`` until ``heal``."""
        self._errors[ledger_id, entry_id] = error

    def rot(self, ledger_id: int, entry_id: int) -> None:
        """Return the batch with this entry with one bit flipped, until ``heal``."""
        self._rotten[ledger_id, entry_id] = None

    def limbo(self, ledger_id: int) -> None:
        """Put the ledger into limbo: entries that it lacks are UNKNOWN, not ABSENT."""
        self._given_back.discard(ledger_id)
        self._limbo.add(ledger_id)

    def limbo_below(self, ledger_id: int) -> None:
        """Put every ledger with a lower id into limbo."""
        self._given_back.clear()
        self._limbo_below = ledger_id

    def heal(self) -> None:
        """Remove all faults."""
        self._errors.clear()
        self._rotten.clear()
        self._limbo.clear()
        self._limbo_below = 0
        self._given_back.clear()

    def in_limbo(self, ledger_id: int) -> bool:
        """Whether the ledger is in limbo."""
        return ledger_id not in self._given_back and (ledger_id in self._limbo or ledger_id < self._limbo_below)

    @property
    def limbo_marker(self) -> tuple[int, int]:
        """Number of limbo events, and the id below which ledgers are in limbo."""
        below = max([self._limbo_below, *(ledger_id + 1 for ledger_id in self._limbo)])
        return int(below > 0), below

    def end_limbo(self, ledger_id: int) -> None:
        """End the limbo of the ledger."""
        self._given_back.add(ledger_id)

    def mend(self, ledger_id: int, first: int, last: int) -> None:
        """Remove faults of these entries, because a good copy was added."""
        for faulty in [*self._errors, *self._rotten]:
            if faulty[0] == ledger_id and first <= faulty[1] <= last:
                self._errors.pop(faulty, None)
                self._rotten.pop(faulty, None)

    def damages(self, header: BatchHeader) -> bool:
        """Whether the stored copy of this batch fails its checks."""
        corrupt = [each for each, error in self._errors.items() if error is EntryCorrupt]
        return any(
            ledger_id == header.ledger_id and header.first_entry_id <= entry_id <= header.last_entry_id
            for ledger_id, entry_id in [*corrupt, *self._rotten]
        )

    def raise_limbo(self, ledger_id: int) -> None:
        """Raise EntryUnknown if the ledger is in limbo."""
        if self.in_limbo(ledger_id):
            raise EntryUnknown(f"{self._owner}: something of ledger {ledger_id} may have been lost here")

    def raise_error(self, ledger_id: int, first: int, last: int) -> None:
        """Raise what was injected for an entry in ``first .. last``."""
        for (faulty_ledger, entry_id), error in self._errors.items():
            if faulty_ledger == ledger_id and first <= entry_id <= last:
                raise error(f"{self._owner}: entry {entry_id} of ledger {ledger_id}: planted fault")

    def as_stored(self, batch: bytes, header: BatchHeader) -> bytes:
        """The batch as a read returns it."""
        for ledger_id, entry_id in self._rotten:
            if ledger_id == header.ledger_id and header.first_entry_id <= entry_id <= header.last_entry_id:
                return batch[:-1] + bytes([batch[-1] ^ 1])
        return batch
