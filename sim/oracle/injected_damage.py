"""Log of damage that faults did to durable data: only this excuses a loss.

Damage is recorded per directory, as precisely as known: the whole directory if it was wiped, damaged sectors of an
entry log, the journal up to the boot that wrote it. A replacement directory starts without any damage.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from tallybook.bookie.storage.entry_log.format import parse_log_name
from tallybook.bookie.storage.location import Location
from tallybook.core.answers import Incarnation
from tallybook.core.limits import SECTOR_BYTES

JOURNAL: Final = "journal"
INDEX: Final = "index"

BatchKey = tuple[int, int]
"""Ledger id and first entry id of a batch."""


@dataclass(slots=True)
class InjectedDamage:
    """Damage of one directory."""

    bookie_id: str
    lost: bool = False
    """Whether the whole directory is gone."""
    files: set[str] = field(default_factory=set)
    """Paths of damaged files."""
    sectors: set[tuple[int, int]] = field(default_factory=set)
    """Damaged sectors: entry log id and sector number."""
    batches: set[BatchKey] = field(default_factory=set)
    """Batches that were in an entry log when it was damaged."""
    index: bool = False
    """Whether the index was damaged: a rebuilt one lacks batches that damaged entry logs do not show."""
    journal_boot: int = 0
    """Batches acked in this boot or an earlier one may be gone if only the journal had them."""

    def explains(self, acked_in: int, batch: BatchKey, location: Location | None) -> bool:
        """Whether this damage may have lost a batch.

        Args:
            acked_in: boot number of the incarnation that acked it.
            location: of the batch in an entry log; ``None`` if the index has none.
        """
        if self.lost or location is None:
            return self.lost or acked_in <= self.journal_boot or (self.index and batch in self.batches)
        first, last = location.offset // SECTOR_BYTES, (location.offset + location.size - 1) // SECTOR_BYTES
        return any((location.log_id, sector) in self.sectors for sector in range(first, last + 1))

    def explains_refusal(self, message: str) -> bool:
        """Whether a boot may fail with this message, which names a damaged file or its directory."""
        return any(path in message or f"{path.rpartition('/')[0]} " in message + " " for path in self.files)


class InjectedDamageLog:
    """Damage of all directories."""

    def __init__(self) -> None:
        self._by_directory: dict[str, InjectedDamage] = {}

    def of(self, directory_uuid: str) -> InjectedDamage | None:
        """Damage of this directory, if any."""
        return self._by_directory.get(directory_uuid)

    def bookies(self) -> list[str]:
        """Sorted ids of bookies that have, or had, a damaged or lost directory."""
        return sorted({injected.bookie_id for injected in self._by_directory.values()})

    def lose(self, bookie_id: str, directory_uuid: str) -> None:
        """Record that a directory is lost."""
        self._injected(bookie_id, directory_uuid).lost = True

    def is_lost(self, directory_uuid: str) -> bool:
        """Whether this directory is lost."""
        injected = self.of(directory_uuid)
        return injected is not None and injected.lost

    def damage(
        self, bookie_id: str, life: Incarnation, path: str, first: int, last: int, batches: Iterable[BatchKey] = ()
    ) -> None:
        """Record that sectors ``first .. last`` of a file changed.

        Args:
            batches: batches in this file, if it is an entry log.
        """
        injected = self._injected(bookie_id, life.directory_uuid)
        injected.files.add(path)
        directory, name = path.split("/")[-2:]
        log_id = parse_log_name(name)
        if log_id is not None:
            injected.sectors.update((log_id, sector) for sector in range(first, last + 1))
            injected.batches.update(batches)
        elif directory == INDEX:
            injected.index = True
        elif directory == JOURNAL:
            injected.journal_boot = life.boot

    def explain(self, acked_by: Incarnation, batch: BatchKey, location: Location | None) -> bool:
        """Whether a batch that this incarnation acked may be lost because its directory was damaged."""
        injected = self.of(acked_by.directory_uuid)
        return injected is not None and injected.explains(acked_by.boot, batch, location)

    def _injected(self, bookie_id: str, directory_uuid: str) -> InjectedDamage:
        return self._by_directory.setdefault(directory_uuid, InjectedDamage(bookie_id))
