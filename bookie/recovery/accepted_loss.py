"""Accepting a loss: ``bookie init --accept-loss``.

A bookie that cannot find its journal, a part of its directory or one of the files that tell about them refuses to
start, because what it acked may be there, on a disk that is not mounted. Only somebody who knows that it is gone can
say so. Then the bookie is made fit to start, on what is left:

1. every ledger there is goes into limbo, durably, before anything else: it answers UNKNOWN for what it does not hold,
   and takes no ordinary adds, until a repair has given back what is missing;
2. the format file says that a journal was given up, where one was, and above which number boots and entry logs are
   counted: no later life is taken for an earlier one, and nothing that was in a lost log is looked for in another; a
   lost directory outside of the data directory that is not configured any more is not listed any more;
3. what is left of a journal that cannot be read is put aside under other names, so that nobody loses more by this;
4. lost parts are made again, empty, their cookies last, because a part without one keeps the bookie from starting. A
   directory of entry logs outside of the data directory gets another name: so the one that was lost is not taken for
   it, should its disk be mounted again.

After a crash in between, the same command does the rest. Where the limbo marker itself is lost, nobody knows which
index is in use, nor which ledgers were repaired; so the index counts as lost, too, and the next start makes another.

Identity is not a loss that can be accepted: the cookie of the directory must be there, and be the registered one.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Final

from tallybook.core.config import BookieSettings
from tallybook.core.errors import DamagedFile
from tallybook.runtime.disk import Disk

from .cookie import Cookie
from .directories import (
    BEGUN,
    BOOTS,
    COOKIE,
    DIRECTORY,
    GIVEN_UP,
    JOURNAL_STATE,
    LOGS,
    CookieRegistry,
    Layout,
    identified,
    read_format,
    read_limbo,
    seen_ids,
    wanted_paths,
    write_format,
)
from .journal.segments import segment_file_names
from .journal.superblock_file import FILE_NAME as SUPERBLOCK
from .journal.superblock_file import read_superblock
from .journal_places import old_journal
from .limbo import Limbo, store_limbo
from .lost_below import lost_below
from .lost_places import FoundPlaces, find_places
from .places import JOURNAL, LEDGERS, NAME_LENGTH, OWN, Place, Places, listed_places, place_cookie, places_of
from .storage.entry_log_format import parse_log_name

NUMBERS_OF_A_LIFE: Final = 1 << 32
"""More boots than one journal ever counts, and more entry logs than one directory ever has."""

_INDEX_AFTER_A_LOST_MARKER: Final = 1


@dataclass(frozen=True, slots=True)
class Losses:
    """What cannot be found, in words, and what of it matters for what is done about it."""

    words: tuple[str, ...]
    limbo: Limbo | None
    """The marker, where it can be read."""
    format: dict[str, str] | None
    """The format file, where it can be read."""
    found: FoundPlaces
    journals: tuple[Place, ...]
    """Those that are lost and are to be made again."""
    journal: bool
    """One was lost."""


async def accept_loss(
    settings: BookieSettings,
    disk: Disk,
    registry: CookieRegistry,
    ids_below: Callable[[], Awaitable[int]],
) -> tuple[Cookie, list[str]]:
    """Make the directory fit to start on what is left; what counts as lost from now on, in words.

    Where nothing is lost, nothing is changed.

    Args:
        ids_below: see ``lost_below``.

    Raises:
        ForeignDirectory: the directory, or a part of it, is not that of the registered bookie.
        DirectoryInUse, DamagedFile, DiskFailed, DiskFull: it cannot be used.
        MetadataUnavailable: the metadata do not answer.
    """
    async with identified(settings, disk, registry) as directory:
        layout, cookie = directory
        losses = await _losses(settings, disk, layout, cookie)
        if losses.words:
            below = await lost_below(ids_below, seen_ids(losses.format or {}))
            limbo = await _into_limbo(disk, layout, losses, below, cookie)
            lost = [each.place for each in losses.found.lost_of(LEDGERS) if each.wanted]
            again = {place: _named_anew(place, limbo) for place in lost}
            places = places_of([again.get(place, place) for place in losses.found.places])
            await _write_format(disk, layout, losses, limbo, places, cookie)
            for place in losses.journals:
                await _put_aside(disk, place.path, limbo.events)
                await _make_place(disk, place, cookie)
            for place in again.values():
                await _make_place(disk, place, cookie)
        return cookie, list(losses.words)


# -- what is lost --------------------------------------------------------------------------------


async def _losses(settings: BookieSettings, disk: Disk, layout: Layout, cookie: Cookie) -> Losses:
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
    listed = None if values is None else listed_places(values, layout.root)
    found = await find_places(disk, layout, cookie, listed, wanted_paths(settings, layout))
    words += [f"all entry logs that were there: {lost.why}" for lost in found.lost_of(LEDGERS)]
    lost_journals = found.lost_of(JOURNAL)
    words += [f"what only the journal had: {lost.why}" for lost in lost_journals]
    again = [lost.place for lost in lost_journals if lost.wanted]
    begun = await _has_begun_journal(disk, found, values)
    boots = int((values or {}).get(BOOTS, "0")) if begun else 0
    for place in found.places.journal:
        why = "" if place in again else await _lost_journal(disk, place, begun=begun, boots=boots)
        if why:
            words.append(f"what only the journal had: {why}")
            again.append(place)
    return Losses(tuple(words), limbo, values, found, tuple(again), bool(lost_journals or again))


async def _has_begun_journal(disk: Disk, found: FoundPlaces, values: dict[str, str] | None) -> bool:
    """Whether there must be something of a journal that is a part of the data directory."""
    if values is None:
        return True
    state = values.get(JOURNAL_STATE)
    return state != GIVEN_UP and (state == BEGUN or await _has_logs(disk, found))


async def _lost_journal(disk: Disk, place: Place, *, begun: bool, boots: int) -> str:
    """Why a journal counts as lost, though its directory is there.

    Args:
        boots: a journal whose lives are all up to here was given up before; the one in its place is lost.
    """
    try:
        read = await read_superblock(disk, place.path)
    except DamagedFile as error:
        return error.message
    if read is not None:
        return old_journal(place.path) if read.facts.boot < boots else ""
    if begun or await segment_file_names(disk, place.path):
        return f"{place.path}/{SUPERBLOCK} is missing"
    return ""


async def _has_logs(disk: Disk, found: FoundPlaces) -> bool:
    lost = {each.place for each in found.lost}
    for place in found.places.ledgers:
        if place not in lost and any(parse_log_name(name) is not None for name in await disk.list(place.path)):
            return True
    return False


# -- what is done about it -----------------------------------------------------------------------


async def _into_limbo(disk: Disk, layout: Layout, losses: Losses, below: int, cookie: Cookie) -> Limbo:
    """Step 1."""
    if losses.limbo is not None:
        limbo = losses.limbo.again(below)
    else:
        # Whether somebody else may still ack under this id was in the marker: it is lost as well.
        limbo = replace(Limbo(index=_INDEX_AFTER_A_LOST_MARKER).again(below), awaits_enrolment=True)
        await disk.unlink(f"{layout.index(limbo.index)}/{COOKIE}")
        await _sync_if_there(disk, layout.index(limbo.index))
    limbo = replace(limbo, directory=cookie.directory_uuid)
    await store_limbo(disk, layout.limbo, limbo)
    return limbo


def _named_anew(place: Place, limbo: Limbo) -> Place:
    """The place that is made where one was lost."""
    if place.name == OWN:
        return place
    return replace(place, name=sha256(f"{place.name} {limbo.events}".encode()).hexdigest()[:NAME_LENGTH])


async def _write_format(
    disk: Disk, layout: Layout, losses: Losses, limbo: Limbo, places: Places, cookie: Cookie
) -> None:
    """Step 2."""
    values = dict(losses.format or {JOURNAL_STATE: BEGUN}) | {DIRECTORY: cookie.directory_uuid}
    if losses.journal:
        values |= {JOURNAL_STATE: GIVEN_UP, BOOTS: _further(values.get(BOOTS, "0"), limbo)}
    if losses.found.lost_of(LEDGERS) or losses.format is None:
        # Without the file it is not known which logs were lost before.
        values[LOGS] = _further(values.get(LOGS, "0"), limbo)
    await write_format(disk, layout, values, places)


def _further(number: str, limbo: Limbo) -> str:
    """A number above all that were counted from ``number`` on, also where that one is not known any more."""
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


async def _make_place(disk: Disk, place: Place, cookie: Cookie) -> None:
    """Step 4."""
    await disk.make_directory(place.path)
    data = cookie.encode() if place.name == OWN else place_cookie(cookie, place.title).encode()
    await disk.replace_file(f"{place.path}/{COOKIE}", data)


async def _sync_if_there(disk: Disk, directory: str) -> None:
    try:
        await disk.sync_directory(directory)
    except FileNotFoundError:
        return
