"""Rebuilds a lost index: automatically at boot, and for an operator (``bookie rebuild-index``).

A new index is built beside the old one from the entry logs (index_rebuild.py). When it is complete and durable, one
write of the limbo marker switches to it and puts every ledger into limbo. Before that write nothing has changed, and
files left by a crash are built again; after it, nothing is left to do. The journal is then replayed as usual.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from tallybook.core.coverage import sometimes
from tallybook.core.errors import DamagedFile, DiskFailed, DiskFull, MetadataUnavailable
from tallybook.core.settings import BookieSettings
from tallybook.metadata.records.restored_store import ids_below, read_restore_record
from tallybook.metadata.store import MetadataStore
from tallybook.runtime.clock import Clock
from tallybook.runtime.concurrency.backoff import Backoff
from tallybook.runtime.disk.port import Disk
from tallybook.runtime.logging import logger
from tallybook.runtime.rng import Rng

from ..directories.index_home import IndexHome, OpenIndex
from ..directories.layout import identified, read_format, read_limbo, seen_ids, wanted_paths
from ..directories.limbo import Limbo, store_limbo
from ..directories.loss_bound import lost_below
from ..directories.storage_directories import LEDGERS, listed_directories
from ..storage.entry_log.logs import EntryLogs
from ..storage.index.durable_mark import read_mark
from ..storage.index.port import Index
from .index_rebuild import IndexRebuild, RebuildReport
from .missing_directories import find_directories

_log = logger("bookie.lost_index")

RETRY_SECONDS: Final = 60.0
"""Time for attempts to read the id counter: a start must not fail for an outage of seconds."""
FIRST_PAUSE_SECONDS: Final = 1.0
LONGEST_PAUSE_SECONDS: Final = 15.0


@dataclass(frozen=True, slots=True)
class IndexSources:
    """Sources of a new index.

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

    def rebuild(self, index: Index) -> IndexRebuild:
        """The rebuild of a new index."""
        return IndexRebuild(index, self.logs)

    async def below(self) -> int:
        """An id above all ledgers that may have lost entries; retried for a while.

        Raises:
            MetadataUnavailable: the id counter cannot be read.
        """
        deadline = self.clock.monotonic() + RETRY_SECONDS
        backoff = Backoff(
            self.clock, self.rng, first_s=FIRST_PAUSE_SECONDS, longest_s=LONGEST_PAUSE_SECONDS, deadline=deadline
        )
        while True:
            try:
                return await lost_below(self.ids_below, self.seen)
            except MetadataUnavailable as error:
                sometimes("rebuild: the metadata are unavailable")
                _log.warning("rebuilding the index waits for the id counter", error=error.message)
                if not await backoff.pause():
                    raise


async def open_or_rebuild(
    home: IndexHome, sources: IndexSources, limbo: Limbo, *, create: bool, clean: bool
) -> tuple[Index, Limbo]:
    """Open the index in use, after a rebuild if it is lost. Also returns the limbo marker, which a rebuild changes.

    Args:
        create: it may be created empty, because nothing was ever stored.
        clean: the last incarnation ended cleanly, so an index that is no longer in use may be removed.

    Raises:
        ForeignDirectory: the index belongs to another bookie.
        MetadataUnavailable: it is lost, and the id counter cannot be read.
        DiskFailed, DiskFull: the device failed, or has no space for a new one.
    """
    try:
        index = await home.open(limbo.index, create=create)
    except DamagedFile as error:
        sometimes("boot: the index is lost")
        _log.error("index lost; rebuilding it from the entry logs", error=error.message)
        index, limbo, _ = await rebuild(home, sources, limbo)
        return index, limbo
    if clean:
        try:
            await home.clear_all_but(limbo.index)
        except (DiskFailed, DiskFull) as error:
            # It only takes space: no reason to refuse the start.
            _log.warning("an index that is no longer in use cannot be removed", error=error.message)
    return index, limbo


async def rebuild(home: IndexHome, sources: IndexSources, limbo: Limbo) -> tuple[Index, Limbo, RebuildReport]:
    """Build a new index and switch to it.

    Raises:
        MetadataUnavailable, DiskFailed, DiskFull: as for ``open_or_rebuild``; nothing has changed.
        NewerFormat: the present one has a later version, whether it is damaged or not.
    """
    await _refuse_newer(home, sources.disk, limbo)
    # Before hours of work, which an outage would make useless. The bookie takes no adds until the end of it.
    below = await sources.below()
    number = home.next_number(limbo.index)
    async with AsyncExitStack() as undo:
        index = await home.make(number)
        undo.push_async_callback(index.close)
        report = await sources.rebuild(index).run()
        await home.write_cookie(number)
        limbo = replace(limbo.again(below), index=number)
        await store_limbo(sources.disk, sources.limbo_path, limbo)
        undo.pop_all()
    _log.warning(
        "index rebuilt: in limbo until repaired",
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
    """Build a new index for a stopped bookie and switch to it: ``bookie rebuild-index``. Returns its directory.

    Args:
        dry_run: only report what the rebuild would find.

    Raises:
        ForeignDirectory, DirectoryInUse, DamagedFile: the directory cannot be used.
        MetadataUnavailable, DiskFailed, DiskFull: as for ``rebuild``.
    """
    async with identified(settings, disk, store) as directory:
        layout, cookie = directory
        values = await read_format(disk, layout, cookie)
        listed = listed_directories(values, layout.root)
        found = await find_directories(disk, layout, cookie, listed, wanted_paths(settings, layout))
        for lost in found.lost_of(LEDGERS):
            raise DamagedFile(f"{lost.why}: an index rebuilt now would lack its entries")
        limbo = await read_limbo(disk, layout, cookie)
        paths = found.directories.ledger_paths
        logs = await EntryLogs.open(disk, paths, cookie.directory_uuid, settings.storage, clock)
        try:
            home = IndexHome(disk, layout, cookie, open_index)
            below = partial(ids_below, store.id_counter, partial(read_restore_record, store))
            sources = IndexSources(disk, layout.limbo, logs, below, seen_ids(values), clock, rng)
            if dry_run:
                report = await try_rebuild(home, sources, limbo)
            else:
                index, _, report = await rebuild(home, sources, limbo)
                await index.close()
        finally:
            await logs.close()
        return home.path(home.next_number(limbo.index)), report


async def try_rebuild(home: IndexHome, sources: IndexSources, limbo: Limbo) -> RebuildReport:
    """Build a new index and discard it, to report what a rebuild would find.

    Raises:
        MetadataUnavailable, DiskFailed, DiskFull: as for ``rebuild``.
    """
    await _refuse_newer(home, sources.disk, limbo)
    number = home.next_number(limbo.index)
    index = await home.make(number)
    try:
        return await sources.rebuild(index).run()
    finally:
        await index.close()
        await home.clear(number)


async def _refuse_newer(home: IndexHome, disk: Disk, limbo: Limbo) -> None:
    """Refuse an index in use that a newer version has written: it has more than can be rebuilt."""
    with suppress(DamagedFile, DiskFailed):
        await read_mark(disk, home.path(limbo.index))
