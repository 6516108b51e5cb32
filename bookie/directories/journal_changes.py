"""Changing which journals there are.

To which journal a ledger belongs follows from how many there are, and what is said about a ledger
must be replayed in its order. So journals are added and given up only when none of them holds
anything: the bookie was stopped cleanly, with all of it checkpointed.

A journal that is added begins with the boot counter of the others, so no life of the bookie ever
passes for an earlier one. Its superblock is there before it is listed (places.py), so a journal that
is listed and not found was lost, always.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tallybook.core.config import BookieSettings, JournalSettings
from tallybook.core.errors import DamagedFile, DiskFull, InvalidConfig
from tallybook.runtime.disk import Disk
from tallybook.runtime.rng import Rng

from .journal.format import segment_file_name
from .journal.journal import PREPARED_AT_START, Journal
from .journal.superblock import Superblock
from .journal.superblock_file import SuperblockFile, read_superblock
from .places import OWN, Place


def old_journal(path: str) -> str:
    """What is wrong with a journal that was given up once, and lies where another one was begun since, in words."""
    return f"the journal in {path} was given up as lost, and the one begun in its place is missing: it may hold more"


def titles(places: Sequence[Place]) -> list[str]:
    """Which journals there are, in their order."""
    return [place.title for place in places]


async def change_journals(
    disk: Disk,
    listed: Sequence[Place],
    wanted: Sequence[Place],
    settings: JournalSettings,
    rng: Rng,
    *,
    begun: bool,
    given_up: bool = False,
) -> None:
    """Make those of ``wanted`` that are new, so that they can be listed.

    Args:
        begun: the journal that is part of the data directory was written to, if it is listed.
        given_up: an operator has accepted that one that is not found is lost.

    Raises:
        InvalidConfig: one of them holds something that is not checkpointed.
        DamagedFile: one of those that are listed is missing, or a superblock is damaged.
        DiskFull, DiskFailed: one cannot be made.
    """
    boot = 0
    for place in listed:
        facts = await _clean_facts(disk, place)
        if facts is None and not given_up and (begun or place.name != OWN):
            raise DamagedFile(f"the journal in {place.path} is missing: what was acked may be gone")
        boot = max(boot, 0 if facts is None else facts.boot)
    for place in wanted:
        if place.title not in titles(listed):
            await _make(disk, place, settings, rng, boot)


async def _make(disk: Disk, place: Place, settings: JournalSettings, rng: Rng, boot: int) -> None:
    facts = await _clean_facts(disk, place)
    if facts is None:
        await Journal.create(disk, place.path, settings, rng, boot=boot)
    elif facts.boot < boot:
        # It was given up once, and comes back.
        await _raise_boot(disk, place, facts, boot)


async def _raise_boot(disk: Disk, place: Place, facts: Superblock, boot: int) -> None:
    file = await SuperblockFile.open(disk, place.path, facts)
    try:
        await file.write(replace(facts, boot=boot))
    finally:
        await file.close()


async def _clean_facts(disk: Disk, place: Place) -> Superblock | None:
    read = await read_superblock(disk, place.path)
    if read is None:
        return None
    if not read.facts.clean:
        raise InvalidConfig(
            f"the journals cannot be changed, because {place.path} holds what is not checkpointed: start the bookie "
            "with the journals that it had, stop it cleanly, and change them then"
        )
    return read.facts


async def check_room(disk: Disk, journals: Sequence[Place], settings: BookieSettings) -> None:
    """Refuse to start where a journal outside of the data directory finds too little room for its segments.

    Raises:
        DiskFull: there is too little.
        DiskFailed: it cannot be told.
    """
    for place in journals:
        if place.name != OWN:
            growths = await journal_growths(disk, place.path, settings.journal)
            begun = min(growths) < settings.journal.segment_bytes
            count = min(PREPARED_AT_START, len(growths)) if begun else len(growths)
            needed_bytes = settings.storage.min_free_bytes + sum(sorted(growths, reverse=True)[:count])
            free_bytes = (await disk.space(place.path)).free_bytes
            if free_bytes < needed_bytes:
                raise DiskFull(f"{place.path} has {free_bytes} bytes free, {needed_bytes} are needed for the journal")


async def journal_growths(disk: Disk, directory: str, settings: JournalSettings) -> list[int]:
    """How many bytes each segment of a journal has yet to take."""
    growths = []
    for slot in range(settings.segment_count):
        try:
            file = await disk.open(f"{directory}/{segment_file_name(slot)}", writable=False)
        except FileNotFoundError:
            size = 0
        else:
            try:
                size = await file.size()
            finally:
                await file.close()
        growths.append(max(0, settings.segment_bytes - size))
    return growths
