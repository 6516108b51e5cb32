"""What was done on purpose to what is durable: nothing else excuses the loss of it.

It is kept by directory, as exactly as the damage is known: all of a directory that was wiped, the
sectors of an entry log that changed, the journal up to the life that wrote it. Whatever took the
place of a lost directory begins without any excuse.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from tallybook.bookie.storage.entry_log_format import parse_log_name
from tallybook.bookie.storage.location import Location
from tallybook.core.answers import Incarnation
from tallybook.core.limits import SECTOR_BYTES

JOURNAL: Final = "journal"
INDEX: Final = "index"

BatchKey = tuple[int, int]
"""Ledger and first entry."""


@dataclass(slots=True)
class Harm:
    """What was done to one directory."""

    bookie_id: str
    lost: bool = False
    """All of it is gone."""
    files: set[str] = field(default_factory=set)
    """Paths of what was damaged."""
    sectors: set[tuple[int, int]] = field(default_factory=set)
    """Ids of entry logs, and which of their sectors."""
    batches: set[BatchKey] = field(default_factory=set)
    """What lay in a damaged entry log when that was damaged."""
    index: bool = False
    """Another index may have been made from the entry logs since, without what could not be found there."""
    journal_boot: int = 0
    """What its lives up to this one acked may be gone, as far as it stood in the journal alone."""

    def explains(self, acked_in: int, batch: BatchKey, location: Location | None) -> bool:
        """Whether a batch may be lost because of this.

        Args:
            acked_in: the boot of the life that acked it.
            location: of the batch in an entry log; ``None``: in none that the bookie knows of.
        """
        if self.lost or location is None:
            return self.lost or acked_in <= self.journal_boot or (self.index and batch in self.batches)
        first, last = location.offset // SECTOR_BYTES, (location.offset + location.size - 1) // SECTOR_BYTES
        return any((location.log_id, sector) in self.sectors for sector in range(first, last + 1))

    def explains_refusal(self, message: str) -> bool:
        """Whether a start may end with this message, which names the file or the directory that is damaged."""
        return any(path in message or f"{path.rpartition('/')[0]} " in message + " " for path in self.files)


class Harms:
    """Every directory that anything was done to."""

    def __init__(self) -> None:
        self._by_directory: dict[str, Harm] = {}

    def of(self, directory_uuid: str) -> Harm | None:
        """What was done to this directory, if anything was."""
        return self._by_directory.get(directory_uuid)

    def bookies(self) -> list[str]:
        """Ids of those of whom any directory, an earlier one included, was damaged or lost; sorted."""
        return sorted({harm.bookie_id for harm in self._by_directory.values()})

    def lose(self, bookie_id: str, directory_uuid: str) -> None:
        """A directory is gone."""
        self._harm(bookie_id, directory_uuid).lost = True

    def is_lost(self, directory_uuid: str) -> bool:
        """Whether this directory is gone."""
        harm = self.of(directory_uuid)
        return harm is not None and harm.lost

    def damage(
        self, bookie_id: str, life: Incarnation, path: str, first: int, last: int, batches: Iterable[BatchKey] = ()
    ) -> None:
        """Sectors ``first .. last`` of a file changed.

        Args:
            batches: that lie in this file, if it is an entry log.
        """
        harm = self._harm(bookie_id, life.directory_uuid)
        harm.files.add(path)
        directory, name = path.split("/")[-2:]
        log_id = parse_log_name(name)
        if log_id is not None:
            harm.sectors.update((log_id, sector) for sector in range(first, last + 1))
            harm.batches.update(batches)
        elif directory == INDEX:
            harm.index = True
        elif directory == JOURNAL:
            harm.journal_boot = life.boot

    def explain(self, acked_by: Incarnation, batch: BatchKey, location: Location | None) -> bool:
        """Whether a batch that this life acked may be lost because of what was done to its directory."""
        harm = self.of(acked_by.directory_uuid)
        return harm is not None and harm.explains(acked_by.boot, batch, location)

    def _harm(self, bookie_id: str, directory_uuid: str) -> Harm:
        return self._by_directory.setdefault(directory_uuid, Harm(bookie_id))
