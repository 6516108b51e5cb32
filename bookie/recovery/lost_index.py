"""What is done about a lost index: at boot by itself, and by an operator (``bookie rebuild-index``).

A new index is made beside the old one from the entry logs (index_rebuild.py). When it is complete and durable, one
write of the limbo marker puts it in use and every ledger in limbo. Before that write nothing has changed, and whatever
a crash left is made again; after it, nothing is left to do. The journal is replayed over the new index as over any.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from tallybook.core.config import BookieSettings
from tallybook.core.errors import DamagedFile, DiskFailed, DiskFull, MetadataUnavailable
from tallybook.core.marks import sometimes
from tallybook.metadata.behind import ids_below, read_behind
from tallybook.metadata.store import MetadataStore
from tallybook.runtime.backoff import spread
from tallybook.runtime.clock import Clock
from tallybook.runtime.disk import Disk
from tallybook.runtime.logging import logger
from tallybook.runtime.rng import Rng

from .directories import identified, read_format, read_limbo, seen_ids, wanted_paths
from .index_home import IndexHome, OpenIndex
from .index_rebuild import Rebuild, RebuildReport
from .limbo import Limbo, store_limbo
from .lost_below import lost_below
from .lost_places import find_places
from .places import LEDGERS, listed_places
from .storage.entry_log import EntryLogs
from .storage.index import Index
from .storage.index_mark import read_mark

_log = logger("bookie.lost_index")

PAUSES_SECONDS: Final = (1.0, 5.0, 15.0, 30.0)
"""Between attempts to read the id counter: a start does not fail for an outage of seconds."""


@dataclass(frozen=True, slots=True)
class IndexSources:
    """What an index is made from, and where that is noted.

    Attributes:
        limbo_path: the limbo marker.
        ids_below: see ``lost_below``.
        seen: see there.
    """

    disk: Disk
    limbo_path: str
    logs: EntryLogs
    ids_below: Callable[[], Awaitable[int]]
    seen: int
    clock: Clock
    rng: Rng

    def rebuild(self, index: Index) -> Rebuild:
        """What fills a new index."""
        return Rebuild(index, self.logs)

    async def below(self) -> int:
        """All ledgers of which something may be lost lie below this id; asked again for a while.

        Raises:
            MetadataUnavailable: it cannot be told.
        """
        for pause_seconds in PAUSES_SECONDS:
            try:
                return await lost_below(self.ids_below, self.seen)
            except MetadataUnavailable as error:
                sometimes("rebuild: the metadata are away")
                _log.warning("a new index waits for the id counter", error=error.message)
                await self.clock.sleep(spread(self.rng, pause_seconds))
        return await lost_below(self.ids_below, self.seen)


async def open_or_rebuild(
    home: IndexHome, sources: IndexSources, limbo: Limbo, *, create: bool, clean: bool
) -> tuple[Index, Limbo]:
    """The index in use, made again first where it is lost; and the limbo marker, which may have changed with it.

    Args:
        create: it may be made there empty, because nothing was ever stored.
        clean: the last life ended well, so an index that is not in use any more may go.

    Raises:
        ForeignDirectory: the index belongs to another bookie.
        MetadataUnavailable: it is lost, and the metadata do not say how many ledgers there are.
        DiskFailed, DiskFull: the device failed, or has no room for a new one.
    """
    try:
        index = await home.open(limbo.index, create=create)
    except DamagedFile as error:
        sometimes("boot: the index is lost")
        _log.error("index lost, made again from the entry logs", error=error.message)
        index, limbo, _ = await rebuild(home, sources, limbo)
        return index, limbo
    if clean:
        try:
            await home.clear_all_but(limbo.index)
        except (DiskFailed, DiskFull) as error:
            # It takes room and is not looked at: no reason to stay down.
            _log.warning("index that is not in use any more cannot be removed", error=error.message)
    return index, limbo


async def rebuild(home: IndexHome, sources: IndexSources, limbo: Limbo) -> tuple[Index, Limbo, RebuildReport]:
    """A new index, and put it in use.

    Raises:
        MetadataUnavailable, DiskFailed, DiskFull: as for ``open_or_rebuild``; nothing has changed.
        NewerFormat: the present one is of a later version, whatever else is wrong with it.
    """
    await _refuse_newer(home, sources.disk, limbo)
    # Before the work of hours, which an outage would have been in vain. This bookie takes nothing until the end of it.
    below = await sources.below()
    number = home.beside(limbo.index)
    async with AsyncExitStack() as undo:
        index = await home.make(number)
        undo.push_async_callback(index.close)
        report = await sources.rebuild(index).run()
        await home.sign(number)
        limbo = replace(limbo.again(below), index=number)
        await store_limbo(sources.disk, sources.limbo_path, limbo)
        undo.pop_all()
    _log.warning(
        "index made again: in limbo until repaired",
        below_ledger_id=limbo.below,
        log_count=report.logs,
        batch_count=report.batches,
        twice_count=report.twice,
        torn_count=report.torn,
        damaged_log_count=len(report.damage),
        conflict_count=len(report.conflicts),
    )
    return index, limbo, report


async def rebuild_stopped(
    settings: BookieSettings,
    disk: Disk,
    store: MetadataStore,
    clock: Clock,
    rng: Rng,
    open_index: OpenIndex,
    *,
    dry_run: bool,
) -> tuple[str, RebuildReport]:
    """A new index for a bookie that does not run, put in use: ``bookie rebuild-index``. The directory of the new index.

    Args:
        dry_run: only see what it would come to.

    Raises:
        ForeignDirectory, DirectoryInUse, DamagedFile: the directory cannot be used.
        MetadataUnavailable, DiskFailed, DiskFull: as for ``rebuild``.
    """
    async with identified(settings, disk, store) as directory:
        layout, cookie = directory
        values = await read_format(disk, layout, cookie)
        listed = listed_places(values, layout.root)
        found = await find_places(disk, layout, cookie, listed, wanted_paths(settings, layout))
        for lost in found.lost_of(LEDGERS):
            raise DamagedFile(f"{lost.why}: an index that was made now would lack what is in there")
        limbo = await read_limbo(disk, layout, cookie)
        paths = found.places.ledger_paths
        logs = await EntryLogs.open(disk, paths, cookie.directory_uuid, settings.storage, clock)
        try:
            home = IndexHome(disk, layout, cookie, open_index)
            below = partial(ids_below, store.id_counter, partial(read_behind, store))
            sources = IndexSources(disk, layout.limbo, logs, below, seen_ids(values), clock, rng)
            if dry_run:
                report = await try_rebuild(home, sources, limbo)
            else:
                index, _, report = await rebuild(home, sources, limbo)
                await index.close()
        finally:
            await logs.close()
        return home.path(home.beside(limbo.index)), report


async def try_rebuild(home: IndexHome, sources: IndexSources, limbo: Limbo) -> RebuildReport:
    """What a rebuild would do: it is done, and its outcome thrown away.

    Raises:
        MetadataUnavailable, DiskFailed, DiskFull: as for ``rebuild``.
    """
    await _refuse_newer(home, sources.disk, limbo)
    number = home.beside(limbo.index)
    index = await home.make(number)
    try:
        return await sources.rebuild(index).run()
    finally:
        await index.close()
        await home.clear(number)


async def _refuse_newer(home: IndexHome, disk: Disk, limbo: Limbo) -> None:
    """See that no newer version has used the index that is in use: it knows more than entry logs tell."""
    with suppress(DamagedFile, DiskFailed):
        await read_mark(disk, home.path(limbo.index))
