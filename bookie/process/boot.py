"""Boot: from a data directory to a bookie that serves requests.

1. Claim the directory: lock, identity, space (directories/layout.py);
2. read the journals; if one lost records, record that before anything else (directories/limbo.py);
3. open entry logs, report damaged ones, and open the index, or rebuild it if it is lost (recovery/lost_index.py);
   replay the journals into memory, and flush that to entry logs and index;
4. start the journals, which makes the new boot counter durable and trims what was replayed;
   on the first boot, record that from now on there must be a journal;
5. assemble the parts (assembly.py), and start checkpoints and garbage collection.

The order matters: no journal is written to before step 4, when all that was replayed is in entry logs and index. So
the next boot repeats the steps that a crash interrupted.
"""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import Final

from tallybook.core.coverage import sometimes
from tallybook.core.errors import DamagedFile
from tallybook.core.settings import BookieSettings
from tallybook.runtime.concurrency.backoff import Backoff
from tallybook.runtime.logging import logger

from ..bookie import Bookie
from ..boot_times import ENTRY_LOGS, INDEX, INDEX_AGAIN, JOURNAL, REPLAY, BootTimes
from ..directories.index_home import IndexHome
from ..directories.journal_changes import old_journal
from ..directories.layout import DataDirectory, claim
from ..directories.limbo import Limbo, load_limbo, store_limbo
from ..directories.loss_bound import lost_below
from ..directories.storage_directories import HOW_TO_ACCEPT, OWN
from ..fail_safe import FailSafe
from ..journal.journals import RecoveredJournals
from ..recovery.lost_index import IndexSources, open_or_rebuild
from ..storage.entry_log.logs import EntryLogs
from ..storage.index.port import Index
from .assembly import Assembly
from .world import BookieWorld

_log = logger("bookie.boot")

MAX_REREADS: Final = 3
REREAD_SECONDS: Final = 1.0
"""Further attempts to read a journal when the device refuses parts of it, and the pause before each."""


async def boot(settings: BookieSettings, world: BookieWorld) -> Bookie:
    """Start the bookie whose data directory ``settings`` names.

    Raises:
        ForeignDirectory, DirectoryInUse, InvalidConfig: the directory must not be used.
        DamagedFile: a required file fails its checks; the message has path and offset.
        NewerFormat: a file has a later version.
        DiskFailed, DiskFull: the device failed, or has no space.
        MetadataUnavailable: the metadata store does not respond.
    """
    times = BootTimes(world.clock)
    async with AsyncExitStack() as undo:
        directory = await claim(settings, world.disk, world.registry, world.rng)
        undo.push_async_callback(directory.release)
        with times.step(JOURNAL):
            recovered = await _recovered(directory, settings, world)
        _refuse_lost_journals(directory, recovered)
        recovered.count_from(directory.boots)
        limbo = await _limbo(directory, recovered, world)
        uuid, paths = directory.cookie.directory_uuid, directory.directories.ledger_paths
        with times.step(ENTRY_LOGS):
            logs = await EntryLogs.open(world.disk, paths, uuid, settings.storage, world.clock, above=directory.logs)
        undo.push_async_callback(logs.close)
        if recovered.fresh and logs.log_ids and not directory.journal_given_up:
            # The format file of a directory that an older version used last does not record this.
            raise _journal_lost(directory.layout.journal, f"there are entry logs in {', '.join(paths)}")
        if logs.strays:
            sometimes("boot: strange files among the entry logs")
            _log.warning("unknown files among the entry logs are ignored", paths=", ".join(logs.strays[:10]))
        await logs.finish_removals()
        for damage in await logs.damaged():
            # No reason to refuse the start: damaged entries are CORRUPT or UNKNOWN, all others are served.
            sometimes("boot: an entry log is damaged")
            _log.error("entry log damaged", error=damage)
        home = IndexHome(world.disk, directory.layout, directory.cookie, world.open_index)
        marker, seen = directory.layout.limbo, directory.ids
        sources = IndexSources(world.disk, marker, logs, world.ids_below, seen, world.clock, world.rng)
        never_stored = recovered.fresh and not logs.log_ids
        index, limbo = await _index(home, sources, limbo, times, create=never_stored, clean=recovered.clean)
        undo.push_async_callback(index.close)
        assembly = Assembly(settings, world, directory, logs, index, limbo, times)
        bookie = await _start(assembly, recovered, directory, settings, world, times)
        undo.pop_all()
        return bookie


async def _index(
    home: IndexHome, sources: IndexSources, limbo: Limbo, times: BootTimes, *, create: bool, clean: bool
) -> tuple[Index, Limbo]:
    """``open_or_rebuild``, timed as one of its two boot steps."""
    with times.step(INDEX):
        index, found = await open_or_rebuild(home, sources, limbo, create=create, clean=clean)
    if found.index != limbo.index:
        times.moved(INDEX, INDEX_AGAIN)
    return index, found


async def _recovered(directory: DataDirectory, settings: BookieSettings, world: BookieWorld) -> RecoveredJournals:
    """Read the journals. If the device refuses parts, read again before these count as lost.

    A lost record leaves ledgers in limbo until they are repaired, and the error may be transient.
    """
    pauses = Backoff(world.clock, world.rng.fork("reread"), first_s=REREAD_SECONDS)
    left = MAX_REREADS
    while True:
        recovered = await RecoveredJournals.recover(
            world.disk, directory.directories.journal_paths, settings.journal, world.rng
        )
        if not (recovered.refused and left):
            return recovered
        left -= 1
        sometimes("boot: the journal is read once more")
        _log.warning("the device refuses parts of the journal; reading again", attempts_left=left)
        await pauses.pause()


def _refuse_lost_journals(directory: DataDirectory, recovered: RecoveredJournals) -> None:
    """Refuse to start if a journal that is listed, or may hold acked records, is missing and was not given up."""
    for at in recovered.not_found:
        if directory.journal_given_up:
            break
        journal = directory.directories.journal[at]
        if directory.journal_begun or journal.name != OWN:
            raise _journal_lost(journal.path, "the bookie has had one")
    for at in recovered.given_up(directory.boots) if directory.journal_begun else ():
        # Its disk was missing, an operator accepted that, and the disk is back and hides the replacement journal.
        raise DamagedFile(
            f"{old_journal(directory.directories.journal[at].path)}; bring that one back, or {HOW_TO_ACCEPT}"
        )


def _journal_lost(path: str, why: str) -> DamagedFile:
    return DamagedFile(
        f"the journal in {path} is missing, but {why}: acked entries may be lost; "
        f"bring the directory back, or {HOW_TO_ACCEPT}"
    )


async def _limbo(directory: DataDirectory, recovered: RecoveredJournals, world: BookieWorld) -> Limbo:
    """The limbo marker of this boot; it is durable before the journal trims the evidence of a loss."""
    limbo = await load_limbo(world.disk, directory.layout.limbo)
    for damage in recovered.damage:
        _log.error("journal damaged", error=damage)
    if limbo.awaits_registration or (recovered.fresh and limbo.events and not directory.journal_given_up):
        # The replaced bookie may have run until now, and may still run: see ``LimboMarker.registered``.
        limbo = limbo.reaching(await lost_below(world.ids_below, directory.ids), awaits_registration=True)
        await store_limbo(world.disk, directory.layout.limbo, limbo)
        _log.warning("in limbo until repaired: this bookie replaces another one", below_ledger_id=limbo.below)
    if any(damage.loses_records for damage in recovered.damage):
        sometimes("boot: the journal lost records")
        limbo = limbo.again(await lost_below(world.ids_below, directory.ids))
        await store_limbo(world.disk, directory.layout.limbo, limbo)
        _log.error("in limbo until repaired: the journal lost records", below_ledger_id=limbo.below)
    return limbo


async def _start(
    assembly: Assembly,
    recovered: RecoveredJournals,
    directory: DataDirectory,
    settings: BookieSettings,
    world: BookieWorld,
    times: BootTimes,
) -> Bookie:
    """Replay, start the journals, and start the bookie."""
    replay = assembly.replay()
    with times.step(REPLAY):
        await replay.run(recovered.records())
    if replay.record_count:
        sometimes("boot: replayed records")
        _log.info("journal replayed", record_count=replay.record_count)
    fail_safe = FailSafe(world.fail_safe)
    journals = await recovered.start(
        world.clock,
        world.tasks,
        lambda error: fail_safe.trip(f"the journal failed: {error!r}"),
        on_space=assembly.journal_space.report,
        min_free_bytes=settings.storage.min_free_bytes,
    )
    try:
        await directory.begin_journal(world.disk)
    except BaseException:
        await journals.close(clean=False)
        raise
    parts = assembly.parts(journals, fail_safe)
    await parts.disk_monitor.poll()
    background = [
        world.tasks.spawn(parts.disk_monitor.run_for_ever(), name="disk watch", essential=True),
        world.tasks.spawn(parts.background.run_for_ever(), name="background budget", essential=True),
    ]
    if settings.scrub.period_s:
        background.append(world.tasks.spawn(parts.scrub.run_for_ever(), name="scrub", essential=True))
    checkpoints = world.tasks.spawn(parts.checkpointer.run_for_ever(), name="checkpoint", essential=True)
    parts.collector.start()
    return Bookie(parts, recovered.boot, checkpoints, background, world.clock)
