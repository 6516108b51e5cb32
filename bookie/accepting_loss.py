"""Accepting a loss: ``bookie init --accept-loss``.

A bookie that cannot find its journal, a part of its directory or one of the files that tell about them refuses to
start, because what it acked may be there, on a disk that is not mounted. Only somebody who knows that it is gone can
say so. Then the bookie is made fit to start, on what is left:

1. every ledger there is goes into limbo, durably, before anything else: it answers UNKNOWN for what it does not hold,
   and takes no ordinary adds, until a repair has given back what is missing;
2. the format file says that the journal was given up, where it was, and above which number boots and entry logs are
   counted: no later life is taken for an earlier one, and nothing that was in a lost log is looked for in another;
3. what is left of a journal that cannot be read is put aside under other names, so that nobody loses more by this;
4. lost parts are made again, empty, their cookies last, because a part without one keeps the bookie from starting.

After a crash in between, the same command does the rest. Where the limbo marker itself is lost, nobody knows which
index is in use, nor which ledgers were repaired; so the index counts as lost, too, and the next start makes another.

Identity is not a loss that can be accepted: the cookie of the directory must be there, and be the registered one.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Final

from tallybook.core.config import BookieSettings
from tallybook.core.errors import DamagedFile
from tallybook.runtime.disk import Disk

from .cookie import Cookie
from .directories import (
    BEGUN,
    BOOTS,
    COOKIE,
    GIVEN_UP,
    JOURNAL,
    LOGS,
    CookieRegistry,
    Layout,
    identified,
    read_format,
    why_lost,
    write_format,
)
from .fates import counter_in_time
from .journal.segments import segment_file_names
from .journal.superblock_file import FILE_NAME as SUPERBLOCK
from .journal.superblock_file import read_superblock
from .limbo import Limbo, load_limbo, store_limbo
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
    journal: bool
    ledgers: bool


async def accept_loss(
    settings: BookieSettings,
    disk: Disk,
    registry: CookieRegistry,
    id_counter: Callable[[], Awaitable[int]],
) -> tuple[Cookie, list[str]]:
    """Make the directory fit to start on what is left; what counts as lost from now on, in words.

    Where nothing is lost, nothing is changed.

    Args:
        id_counter: all ledger ids ever handed out lie below what it returns; a linearizable read.

    Raises:
        ForeignDirectory: the directory, or a part of it, is not that of the registered bookie.
        DirectoryInUse, DamagedFile, DiskFailed, DiskFull: it cannot be used.
        MetadataUnavailable: the metadata do not answer.
    """
    async with identified(settings, disk, registry) as directory:
        layout, cookie = directory.layout, directory.cookie
        losses = await _losses(disk, layout, cookie)
        if losses.words:
            below = await counter_in_time(id_counter)
            limbo = await _into_limbo(disk, layout, losses, below)
            await _write_format(disk, layout, losses, limbo)
            if losses.journal:
                await _put_aside(disk, layout.journal, limbo.events)
                await _make_part(disk, layout.journal, cookie)
            if losses.ledgers:
                await _make_part(disk, layout.ledgers, cookie)
        return cookie, list(losses.words)


# -- what is lost --------------------------------------------------------------------------------


async def _losses(disk: Disk, layout: Layout, cookie: Cookie) -> Losses:
    words: list[str] = []
    limbo, values = None, None
    try:
        limbo = await load_limbo(disk, layout.limbo)
    except DamagedFile as error:
        words.append(f"which ledgers were in limbo, and with it the index: {error.message}")
    try:
        values = await read_format(disk, layout)
    except DamagedFile as error:
        words.append(f"whether there was a journal: {error.message}")
    ledgers = await why_lost(disk, layout.ledgers, cookie)
    if ledgers:
        words.append(f"all entry logs: {ledgers}")
    begun = values is None or values.get(JOURNAL) == BEGUN or (not ledgers and await _has_logs(disk, layout))
    given_up = values is not None and values.get(JOURNAL) == GIVEN_UP
    journal = await why_lost(disk, layout.journal, cookie) or await _lost_journal(
        disk, layout, begun=begun and not given_up
    )
    if journal:
        words.append(f"what only the journal had: {journal}")
    return Losses(tuple(words), limbo, values, bool(journal), bool(ledgers))


async def _lost_journal(disk: Disk, layout: Layout, *, begun: bool) -> str:
    """Why the journal counts as lost, in a part that is there."""
    try:
        if await read_superblock(disk, layout.journal) is not None:
            return ""
    except DamagedFile as error:
        return error.message
    if begun or await segment_file_names(disk, layout.journal):
        return f"{layout.journal}/{SUPERBLOCK} is missing"
    return ""


async def _has_logs(disk: Disk, layout: Layout) -> bool:
    return any(parse_log_name(name) is not None for name in await disk.list(layout.ledgers))


# -- what is done about it -----------------------------------------------------------------------


async def _into_limbo(disk: Disk, layout: Layout, losses: Losses, below: int) -> Limbo:
    """Step 1."""
    if losses.limbo is not None:
        limbo = losses.limbo.again(below)
    else:
        # Whether somebody else may still ack under this id was in the marker: it is lost as well.
        limbo = replace(Limbo(index=_INDEX_AFTER_A_LOST_MARKER).again(below), awaits_enrolment=True)
        await disk.unlink(f"{layout.index(limbo.index)}/{COOKIE}")
        await _sync_if_there(disk, layout.index(limbo.index))
    await store_limbo(disk, layout.limbo, limbo)
    return limbo


async def _write_format(disk: Disk, layout: Layout, losses: Losses, limbo: Limbo) -> None:
    """Step 2."""
    values = dict(losses.format or {JOURNAL: BEGUN})
    if losses.journal:
        values |= {JOURNAL: GIVEN_UP, BOOTS: _further(values.get(BOOTS, "0"), limbo)}
    if losses.ledgers:
        values[LOGS] = _further(values.get(LOGS, "0"), limbo)
    await write_format(disk, layout, values)


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


async def _make_part(disk: Disk, part: str, cookie: Cookie) -> None:
    """Step 4."""
    await disk.make_directory(part)
    await disk.replace_file(f"{part}/{COOKIE}", cookie.encode())


async def _sync_if_there(disk: Disk, directory: str) -> None:
    try:
        await disk.sync_directory(directory)
    except FileNotFoundError:
        return
