"""Changes the set of journals.

The number of journals determines to which one a ledger belongs, and the records of a ledger must be replayed in order.
So journals are added and removed only when none of them holds anything: after a clean stop with everything
checkpointed.

A new journal begins with the boot counter of the others, so no incarnation of the bookie is
ever mistaken for an earlier one.
Its superblock exists before it is listed (storage_directories.py), so a journal that is listed and not found was lost.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tallybook.core.errors import DamagedFile, DiskFull, InvalidConfig
from tallybook.core.settings import BookieSettings, JournalSettings
from tallybook.runtime.disk.port import Disk
from tallybook.runtime.rng import Rng

from ..journal.format import segment_file_name
from ..journal.journal import PREPARED_AT_START, Journal
from ..journal.superblock import Superblock
from ..journal.superblock_file import SuperblockFile, read_superblock
from .storage_directories import OWN, StorageDirectory


def old_journal(path: str) -> str:
    """Message about a journal that was given up and reappears while its replacement is missing."""
    return f"the journal in {path} was given up as lost, and the one begun in its place is missing: it may hold more"


def titles(directories: Sequence[StorageDirectory]) -> list[str]:
    """The titles of the journals, in their order."""
    return [directory.title for directory in directories]


async def change_journals(
    disk: Disk,
    listed: Sequence[StorageDirectory],
    wanted: Sequence[StorageDirectory],
    settings: JournalSettings,
    rng: Rng,
    *,
    begun: bool,
    given_up: bool = False,
) -> None:
    """Create the new ones of ``wanted``, so that they can be listed.

    Args:
        begun: the journal in the data directory was written to, if it is listed.
        given_up: an operator has accepted the loss of a missing journal.

    Raises:
        InvalidConfig: one of them has records that are not checkpointed.
        DamagedFile: one of those that are listed is missing, or a superblock is damaged.
        DiskFull, DiskFailed: one cannot be created.
    """
    boot = 0
    for directory in listed:
        facts = await _clean_facts(disk, directory)
        if facts is None and not given_up and (begun or directory.name != OWN):
            raise DamagedFile(f"the journal in {directory.path} is missing: acked entries may be lost")
        boot = max(boot, 0 if facts is None else facts.boot)
    for directory in wanted:
        if directory.title not in titles(listed):
            await _make(disk, directory, settings, rng, boot)


async def _make(disk: Disk, directory: StorageDirectory, settings: JournalSettings, rng: Rng, boot: int) -> None:
    facts = await _clean_facts(disk, directory)
    if facts is None:
        await Journal.create(disk, directory.path, settings, rng, boot=boot)
    elif facts.boot < boot:
        # It was given up once, and is used again.
        await _raise_boot(disk, directory, facts, boot)


async def _raise_boot(disk: Disk, directory: StorageDirectory, facts: Superblock, boot: int) -> None:
    file = await SuperblockFile.open(disk, directory.path, facts)
    try:
        await file.write(replace(facts, boot=boot))
    finally:
        await file.close()


async def _clean_facts(disk: Disk, directory: StorageDirectory) -> Superblock | None:
    read = await read_superblock(disk, directory.path)
    if read is None:
        return None
    if not read.facts.clean:
        raise InvalidConfig(
            f"the journals cannot be changed, because {directory.path} has records that are not checkpointed: start "
            "the bookie with its previous journals, stop it cleanly, and change them then"
        )
    return read.facts


async def check_journal_space(disk: Disk, journals: Sequence[StorageDirectory], settings: BookieSettings) -> None:
    """Refuse to start if a journal outside of the data directory has too little space for its segments.

    Raises:
        DiskFull: there is too little.
        DiskFailed: the free space cannot be determined.
    """
    for directory in journals:
        if directory.name != OWN:
            growths = await journal_growths(disk, directory.path, settings.journal)
            begun = min(growths) < settings.journal.segment_bytes
            count = min(PREPARED_AT_START, len(growths)) if begun else len(growths)
            needed_bytes = settings.storage.min_free_bytes + sum(sorted(growths, reverse=True)[:count])
            free_bytes = (await disk.space(directory.path)).free_bytes
            if free_bytes < needed_bytes:
                raise DiskFull(
                    f"{directory.path} has {free_bytes} bytes free, {needed_bytes} are needed for the journal"
                )


async def journal_growths(disk: Disk, directory: str, settings: JournalSettings) -> list[int]:
    """How many bytes each segment of a journal will still grow."""
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
