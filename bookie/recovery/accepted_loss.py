"""Accepts a loss: ``bookie init --accept-loss`` (docs/operate/runbook/lost-data.md).

A bookie that cannot find its journal, a part of its directory or one of the files that describe them refuses to start,
because its acked entries may be on a disk that is not mounted. Only an operator can know that they are lost. This
command then makes the bookie startable with the rest, in the steps of ``accept_loss``. After a crash in between, the
same command completes the work.

If the limbo marker itself is lost, it is unknown which index is in use and which ledgers were repaired; so the index
counts as lost, too, and the next start rebuilds it. A lost identity cannot be accepted: the cookie of the directory
must exist, and be the registered one.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Final

from tallybook.core.errors import DamagedFile
from tallybook.core.settings import BookieSettings
from tallybook.runtime.disk.port import Disk

from ..directories.cookie import Cookie
from ..directories.journal_changes import old_journal
from ..directories.layout import (
    BEGUN,
    BOOTS,
    COOKIE,
    DIRECTORY,
    GIVEN_UP,
    JOURNAL_STATE,
    LOGS,
    CookieRegistry,
    DirectoryLayout,
    identified,
    read_format,
    read_limbo,
    seen_ids,
    wanted_paths,
    write_format,
)
from ..directories.limbo import Limbo, store_limbo
from ..directories.loss_bound import lost_below
from ..directories.storage_directories import (
    JOURNAL,
    LEDGERS,
    NAME_LENGTH,
    OWN,
    StorageDirectories,
    StorageDirectory,
    directories_of,
    directory_cookie,
    listed_directories,
)
from ..journal.segments import segment_file_names
from ..journal.superblock_file import FILE_NAME as SUPERBLOCK
from ..journal.superblock_file import read_superblock
from ..storage.entry_log.format import parse_log_name
from .missing_directories import FoundDirectories, find_directories

NUMBERS_OF_A_LIFE: Final = 1 << 32
"""More boots than one journal ever counts, and more entry logs than one directory ever has."""

_INDEX_AFTER_A_LOST_MARKER: Final = 1


@dataclass(frozen=True, slots=True)
class MissingData:
    """Descriptions of what cannot be found, and the facts that decide what to do about it."""

    words: tuple[str, ...]
    limbo: Limbo | None
    """The marker, if it can be read."""
    format: dict[str, str] | None
    """The fields of the format file, if it can be read."""
    found: FoundDirectories
    journals: tuple[StorageDirectory, ...]
    """Directories that are lost and are to be created again."""
    journal: bool
    """Whether a journal was lost."""


async def accept_loss(
    settings: BookieSettings,
    disk: Disk,
    registry: CookieRegistry,
    ids_below: Callable[[], Awaitable[int]],
) -> tuple[Cookie, list[str]]:
    """Make the directory startable; returns descriptions of what counts as lost from now on.

    1. Every existing ledger enters limbo, durably, before anything else.
    2. The format file records that a journal was given up, if one was, and minimum numbers of boots and entry logs: no
       later incarnation is taken for an earlier one, and no batch of a lost log is looked for in another. A lost
       directory that is no longer configured is removed from the list.
    3. The rest of an unreadable journal is renamed, not deleted.
    4. Lost parts are created again, empty, their cookies last, because a part without one prevents a start. An entry
       log directory outside of the data directory gets a new name: the old disk, mounted again, is not mistaken for it.

    If nothing is lost, nothing is changed.

    Args:
        ids_below: see ``lost_below``.

    Raises:
        ForeignDirectory: the directory, or a part of it, is not that of the registered bookie.
        DirectoryInUse, DamagedFile, DiskFailed, DiskFull: it cannot be used.
        MetadataUnavailable: the metadata store does not respond.
    """
    async with identified(settings, disk, registry) as (layout, cookie):
        losses = await _losses(settings, disk, layout, cookie)
        if losses.words:
            below = await lost_below(ids_below, seen_ids(losses.format or {}))
            limbo = await _enter_limbo(disk, layout, losses, below, cookie)
            lost = [each.directory for each in losses.found.lost_of(LEDGERS) if each.wanted]
            again = {directory: _renamed(directory, limbo) for directory in lost}
            directories = directories_of([again.get(directory, directory) for directory in losses.found.directories])
            await _write_format(disk, layout, losses, limbo, directories, cookie)
            for directory in losses.journals:
                await _put_aside(disk, directory.path, limbo.events)
                await _make_directory(disk, directory, cookie)
            for directory in again.values():
                await _make_directory(disk, directory, cookie)
        return cookie, list(losses.words)


# -- finding what is lost ------------------------------------------------------------------------


async def _losses(settings: BookieSettings, disk: Disk, layout: DirectoryLayout, cookie: Cookie) -> MissingData:
    words: list[str] = []
    limbo, values = None, None
    try:
        limbo = await read_limbo(disk, layout, cookie)
    except DamagedFile as error:
        words.append(f"which ledgers were in limbo, and with it the index: {error.message}")
    try:
        values = await read_format(disk, layout, cookie)
    except DamagedFile as error:
        words.append(f"whether there was a journal: {error.message}")
    listed = None if values is None else listed_directories(values, layout.root)
    found = await find_directories(disk, layout, cookie, listed, wanted_paths(settings, layout))
    words += [f"all entry logs that were there: {lost.why}" for lost in found.lost_of(LEDGERS)]
    lost_journals = found.lost_of(JOURNAL)
    words += [f"what only the journal had: {lost.why}" for lost in lost_journals]
    again = [lost.directory for lost in lost_journals if lost.wanted]
    begun = await _has_begun_journal(disk, found, values)
    boots = int((values or {}).get(BOOTS, "0")) if begun else 0
    for directory in found.directories.journal:
        why = "" if directory in again else await _lost_journal(disk, directory, begun=begun, boots=boots)
        if why:
            words.append(f"what only the journal had: {why}")
            again.append(directory)
    return MissingData(tuple(words), limbo, values, found, tuple(again), bool(lost_journals or again))


async def _has_begun_journal(disk: Disk, found: FoundDirectories, values: dict[str, str] | None) -> bool:
    """Whether the journal in the data directory must have left something."""
    if values is None:
        return True
    state = values.get(JOURNAL_STATE)
    return state != GIVEN_UP and (state == BEGUN or await _has_logs(disk, found))


async def _lost_journal(disk: Disk, directory: StorageDirectory, *, begun: bool, boots: int) -> str:
    """Why a journal counts as lost, though its directory exists.

    Args:
        boots: a journal with incarnations up to here was given up before; then its replacement is lost.
    """
    try:
        read = await read_superblock(disk, directory.path)
    except DamagedFile as error:
        return error.message
    if read is not None:
        return old_journal(directory.path) if read.facts.boot < boots else ""
    if begun or await segment_file_names(disk, directory.path):
        return f"{directory.path}/{SUPERBLOCK} is missing"
    return ""


async def _has_logs(disk: Disk, found: FoundDirectories) -> bool:
    lost = {each.directory for each in found.lost}
    for directory in found.directories.ledgers:
        if directory not in lost and any(parse_log_name(name) is not None for name in await disk.list(directory.path)):
            return True
    return False


# -- the steps ------------------------------------------------------------------------------------


async def _enter_limbo(disk: Disk, layout: DirectoryLayout, losses: MissingData, below: int, cookie: Cookie) -> Limbo:
    """Step 1."""
    if losses.limbo is not None:
        limbo = losses.limbo.again(below)
    else:
        # The marker also said whether another bookie may still ack under this id; that is lost, too.
        limbo = replace(Limbo(index=_INDEX_AFTER_A_LOST_MARKER).again(below), awaits_registration=True)
        await disk.unlink(f"{layout.index(limbo.index)}/{COOKIE}")
        await _sync_if_there(disk, layout.index(limbo.index))
    limbo = replace(limbo, directory=cookie.directory_uuid)
    await store_limbo(disk, layout.limbo, limbo)
    return limbo


def _renamed(directory: StorageDirectory, limbo: Limbo) -> StorageDirectory:
    """The directory that replaces a lost one."""
    if directory.name == OWN:
        return directory
    return replace(directory, name=sha256(f"{directory.name} {limbo.events}".encode()).hexdigest()[:NAME_LENGTH])


async def _write_format(
    disk: Disk,
    layout: DirectoryLayout,
    losses: MissingData,
    limbo: Limbo,
    directories: StorageDirectories,
    cookie: Cookie,
) -> None:
    """Step 2."""
    values = dict(losses.format or {JOURNAL_STATE: BEGUN}) | {DIRECTORY: cookie.directory_uuid}
    if losses.journal:
        values |= {JOURNAL_STATE: GIVEN_UP, BOOTS: _above(values.get(BOOTS, "0"), limbo)}
    if losses.found.lost_of(LEDGERS) or losses.format is None:
        # Without the file, earlier losses of logs are unknown.
        values[LOGS] = _above(values.get(LOGS, "0"), limbo)
    await write_format(disk, layout, values, directories)


def _above(number: str, limbo: Limbo) -> str:
    """A number above all that were counted from ``number`` on, even if that one is unknown."""
    return str((max(int(number) // NUMBERS_OF_A_LIFE, limbo.events) + 1) * NUMBERS_OF_A_LIFE)


async def _put_aside(disk: Disk, directory: str, number: int) -> None:
    """Step 3. The superblock last: without it, and with segments, the journal still counts as lost."""
    await disk.make_directory(directory)
    names = [*await segment_file_names(disk, directory), SUPERBLOCK]
    for name in names:
        try:
            await disk.rename(f"{directory}/{name}", f"{directory}/lost-{number}-{name}")
        except FileNotFoundError:
            continue
    await disk.sync_directory(directory)


async def _make_directory(disk: Disk, directory: StorageDirectory, cookie: Cookie) -> None:
    """Step 4."""
    await disk.make_directory(directory.path)
    data = cookie.encode() if directory.name == OWN else directory_cookie(cookie, directory.title).encode()
    await disk.replace_file(f"{directory.path}/{COOKIE}", data)


async def _sync_if_there(disk: Disk, directory: str) -> None:
    try:
        await disk.sync_directory(directory)
    except FileNotFoundError:
        return
