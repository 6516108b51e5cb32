"""Boot: from a data directory to a bookie that answers.

In this order, so that a crash at any step is followed by a boot that does the same again:

1. claim the directory: lock, identity, room (directories.py);
2. read the journals; where one lost records, remember that before anything else (limbo.py);
3. open entry logs, naming the damaged ones, and the index, which is made from them where it is lost (lost_index.py);
   replay the journals into memory, flush all of it to them;
4. start the journals, which makes the new boot counter durable and forgets what was replayed;
   the first time, note that from now on there must be a journal;
5. put the parts together and begin to checkpoint, and to collect garbage.

Until step 4 no journal is written to, so booting twice is the same as booting once.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

from tallybook.core.config import BookieSettings
from tallybook.core.errors import DamagedFile, DiskFailed, EntryUnknown, StorageError
from tallybook.core.ids import NO_IDENTITY
from tallybook.core.limits import MAX_BATCH_BYTES
from tallybook.core.marks import sometimes
from tallybook.metadata.behind import ids_below
from tallybook.runtime.clock import Clock
from tallybook.runtime.disk import Disk
from tallybook.runtime.logging import logger
from tallybook.runtime.meter import Meter
from tallybook.runtime.pace import Pace
from tallybook.runtime.rng import Rng
from tallybook.runtime.tasks import Tasks, Workers

from .adds import AddPath
from .admission import MAX_DIRTY_LEDGERS, Admission
from .bookie import Bookie, Parts
from .boot_times import ENTRY_LOGS, INDEX, INDEX_AGAIN, JOURNAL, REPLAY, BootTimes
from .collector import Collector, Holdings
from .commits import Commits
from .damage import DamageList, batch_of, batch_under
from .directories import CookieRegistry, DataDirectory, claim
from .disk_watch import DiskWatch, Watched
from .fail_safe import FailSafe
from .fates import FateLookup, FateOfLedger
from .fences import Fences
from .garbage import Fate
from .held import Held
from .index_home import IndexHome, OpenIndex
from .journal.format import BLOCK_HEADER_BYTES, RECORD_HEADER_BYTES
from .journal.locate import Located, locate
from .journal_places import old_journal
from .journals import Journals, RecoveredJournals, journal_of
from .lacs import Lacs
from .late_identities import LateIdentities
from .ledger_state import LedgerRow, decode_row
from .ledger_table import LedgerTable
from .leftovers import Leftovers, RepairVisits
from .limbo import Limbo, load_limbo, store_limbo
from .limbo_marker import LimboMarker
from .lost_below import lost_below
from .lost_index import IndexSources, open_or_rebuild
from .making_way import Way
from .places import HOW_TO_ACCEPT, OWN
from .present_rows import PresentRows
from .proven import ProvenCopies
from .reads import Reads
from .repair_adds import RepairAdds
from .replay import Replay
from .scrub import Scrub
from .seen_counter import SeenCounter
from .settled import SettledLedgers, SettledLookup
from .storage.checkpoint import Checkpointer, Flush
from .storage.entry_log import EntryLogs
from .storage.index import Index
from .storage.read_ahead import ReadAhead
from .storage.read_cache import ReadCache
from .storage.stored import StoredBatches
from .storage.write_cache import BATCH_OVERHEAD_BYTES, WriteCache
from .store_check import BehindNotes, NeverBehind, StoreCheck
from .trace import Tracer
from .verifiers import FactsLookup, Verifiers
from .watermarks import Level, Watermarks

_log = logger("bookie.boot")

REREAD_PAUSES_SECONDS: Final = (0.1, 0.5, 2.0)
"""Between attempts to read a journal of which the device refuses to give parts."""

MAX_IDLE_LEDGERS: Final = 50_000
"""Ledgers kept in memory although nothing happens to them."""

DIRTY_PART: Final = 4
"""Ledgers are given their identity late while fewer than this part of those that may be dirty are."""

SETTLE_PART: Final = 16
"""An entry log that is written is finished early if it is mostly dead, and has this part of its full size."""


@dataclass(frozen=True, slots=True)
class BookieWorld:
    """Everything outside of the bookie.

    Attributes:
        tasks: where its background work runs; an essential task that dies ends the node.
        facts_of: key verifier and identity of a ledger, from the metadata.
        fate_of: what the metadata say of a ledger that is held here.
        id_counter: all ledger ids ever handed out lie below it; asked where the journal lost records, and before
            it is believed that a ledger was deleted.
        closed_up_to: at which entries of a ledger there can be no writer, read linearizably.
        registry: cookies in the metadata.
        fail_safe: ends the node at once; called with the reason.
        named: ledgers that the metadata name a bookie for, to count those in limbo; ``None``: only what is held counts.
        behind: where it is noted that the metadata store was restored from an older copy.
    """

    disk: Disk
    clock: Clock
    rng: Rng
    tasks: Tasks
    workers: Workers
    open_index: OpenIndex
    facts_of: FactsLookup
    fate_of: FateLookup
    id_counter: Callable[[], Awaitable[int]]
    closed_up_to: SettledLookup
    registry: CookieRegistry
    fail_safe: Callable[[str], None]
    named: Callable[[str, int, Pace], AsyncIterator[int]] | None = None
    behind: BehindNotes = field(default_factory=NeverBehind)

    async def ids_below(self) -> int:
        """See ``metadata.behind.ids_below``."""
        return await ids_below(self.id_counter, self.behind.read)


async def boot(settings: BookieSettings, world: BookieWorld) -> Bookie:
    """Start the bookie whose data directory ``settings`` name.

    Raises:
        ForeignDirectory, DirectoryInUse, InvalidConfig: it is not ours to use.
        DamagedFile: a file that cannot be done without fails its checks; named with the place.
        NewerFormat: one is of a later version.
        DiskFailed, DiskFull: the device failed, or has no room.
        MetadataUnavailable: the metadata does not answer.
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
        uuid, paths = directory.cookie.directory_uuid, directory.places.ledger_paths
        with times.step(ENTRY_LOGS):
            logs = await EntryLogs.open(world.disk, paths, uuid, settings.storage, world.clock, above=directory.logs)
        undo.push_async_callback(logs.close)
        if recovered.fresh and logs.log_ids and not directory.journal_given_up:
            # The format file of a directory that was last used by an older version does not tell.
            raise _journal_lost(directory.layout.journal, f"there are entry logs in {', '.join(paths)}")
        if logs.strays:
            sometimes("boot: strange files among the entry logs")
            _log.warning("files left alone among the entry logs", paths=", ".join(logs.strays[:10]))
        await logs.finish_removals()
        for damage in await logs.damaged():
            # Not a reason to stay down: what is damaged is CORRUPT or UNKNOWN, all the rest is served.
            sometimes("boot: an entry log is damaged")
            _log.error("entry log damaged", error=damage)
        home = IndexHome(world.disk, directory.layout, directory.cookie, world.open_index)
        marker, seen = directory.layout.limbo, directory.ids
        sources = IndexSources(world.disk, marker, logs, world.ids_below, seen, world.clock, world.rng)
        never_stored = recovered.fresh and not logs.log_ids
        index, limbo = await _index(home, sources, limbo, times, create=never_stored, clean=recovered.clean)
        undo.push_async_callback(index.close)
        bookie = await _Assembly(settings, world, directory, logs, index, limbo, times).start(recovered)
        undo.pop_all()
        return bookie


async def _index(
    home: IndexHome, sources: IndexSources, limbo: Limbo, times: BootTimes, *, create: bool, clean: bool
) -> tuple[Index, Limbo]:
    """See ``open_or_rebuild``; and how long which of the two has taken."""
    with times.step(INDEX):
        index, found = await open_or_rebuild(home, sources, limbo, create=create, clean=clean)
    if found.index != limbo.index:
        times.moved(INDEX, INDEX_AGAIN)
    return index, found


async def _recovered(directory: DataDirectory, settings: BookieSettings, world: BookieWorld) -> RecoveredJournals:
    """The journals as found. What the device refuses to read is asked for again before it counts as lost.

    A lost record leaves ledgers in limbo until they are repaired; a device may just have had a bad moment.
    """
    pauses = iter(REREAD_PAUSES_SECONDS)
    while True:
        recovered = await RecoveredJournals.recover(
            world.disk, directory.places.journal_paths, settings.journal, world.rng
        )
        pause_seconds = next(pauses, None)
        if not recovered.refused or pause_seconds is None:
            return recovered
        sometimes("boot: the journal is read once more")
        _log.warning("device refuses to read parts of the journal, asked again", pause_seconds=pause_seconds)
        await world.clock.sleep(pause_seconds)


def _refuse_lost_journals(directory: DataDirectory, recovered: RecoveredJournals) -> None:
    """Every journal that was listed, or in which anything may have been acked, must be there, or be given up."""
    for at in recovered.not_found:
        if directory.journal_given_up:
            break
        place = directory.places.journal[at]
        if directory.journal_begun or place.name != OWN:
            raise _journal_lost(place.path, "the bookie has had one")
    for at in recovered.given_up(directory.boots) if directory.journal_begun else ():
        # Its disk was away, an operator accepted that, and now it hides the one that was made in its place.
        raise DamagedFile(f"{old_journal(directory.places.journal[at].path)}; bring that one back, or {HOW_TO_ACCEPT}")


def _journal_lost(path: str, why: str) -> DamagedFile:
    return DamagedFile(
        f"the journal in {path} is missing, but {why}: what was acked may be gone; "
        f"bring the directory back, or {HOW_TO_ACCEPT}"
    )


async def _limbo(directory: DataDirectory, recovered: RecoveredJournals, world: BookieWorld) -> Limbo:
    """Which ledgers may have lost something; durable before the journal forgets that it did."""
    limbo = await load_limbo(world.disk, directory.layout.limbo)
    for damage in recovered.damage:
        _log.error("journal damaged", error=damage)
    if limbo.awaits_enrolment or (recovered.fresh and limbo.events and not directory.journal_given_up):
        # It replaces another directory, whose bookie may have run on until now, and may yet: see ``Bookie.enrolled``.
        limbo = limbo.reaching(await lost_below(world.ids_below, directory.ids), awaits_enrolment=True)
        await store_limbo(world.disk, directory.layout.limbo, limbo)
        _log.warning("in limbo until repaired: this bookie replaces another one", below_ledger_id=limbo.below)
    if any(damage.loses_records for damage in recovered.damage):
        sometimes("boot: the journal lost records")
        limbo = limbo.again(await lost_below(world.ids_below, directory.ids))
        await store_limbo(world.disk, directory.layout.limbo, limbo)
        _log.error("in limbo until repaired: the journal lost records", below_ledger_id=limbo.below)
    return limbo


class _Assembly:
    """Builds the parts of one bookie, in the order in which they can exist."""

    def __init__(
        self,
        settings: BookieSettings,
        world: BookieWorld,
        directory: DataDirectory,
        logs: EntryLogs,
        index: Index,
        limbo: Limbo,
        times: BootTimes,
    ) -> None:
        self._settings = settings
        self._times = times
        self._world = world
        self._directory = directory
        self._logs = logs
        self._index = index
        self._cache = WriteCache(settings.storage.write_cache_bytes)
        self._lookups = Meter(world.clock)
        self._table = LedgerTable(self._load_row, limbo, max_idle=MAX_IDLE_LEDGERS)
        self._seen = SeenCounter(world.disk, directory)
        self._marker = LimboMarker(
            world.disk,
            directory.layout.limbo,
            self._table,
            lambda: lost_below(world.ids_below, self._seen.value),
            world.clock,
        )
        self._flush = Flush(
            cache=self._cache,
            states=self._table,
            logs=logs,
            index=index,
            workers=world.workers,
            clock=world.clock,
        )

    async def start(self, recovered: RecoveredJournals) -> Bookie:
        """Replay, start the journal, open for business."""
        replay = Replay(self._table, self._cache, self._spill)
        with self._times.step(REPLAY):
            await replay.run(recovered.records())
        if replay.record_count:
            sometimes("boot: replayed records")
            _log.info("journal replayed", record_count=replay.record_count)
        fail_safe = FailSafe(self._world.fail_safe)
        journals = await recovered.start(
            self._world.clock,
            self._world.tasks,
            lambda error: fail_safe.trip(f"the journal failed: {error!r}"),
            min_free_bytes=self._settings.storage.min_free_bytes,
        )
        try:
            await self._directory.begin_journal(self._world.disk)
        except BaseException:
            await journals.close(clean=False)
            raise
        parts = self._parts(journals, fail_safe)
        await parts.disk_watch.look()
        background = [self._world.tasks.spawn(parts.disk_watch.run_for_ever(), name="disk watch", essential=True)]
        if self._settings.scrub.period_s:
            background.append(self._world.tasks.spawn(parts.scrub.run_for_ever(), name="scrub", essential=True))
        checkpoints = self._world.tasks.spawn(parts.checkpointer.run_for_ever(), name="checkpoint", essential=True)
        parts.collector.start()
        return Bookie(parts, recovered.boot, checkpoints, background, self._world.clock)

    async def _spill(self) -> None:
        self._flush.begin()
        await self._flush.finish()

    async def _load_row(self, ledger_id: int) -> LedgerRow | None:
        """The durable state of a ledger. Where it is damaged, a fence may be lost: the ledger comes up in limbo."""
        with self._lookups.timing():
            return await self._row(ledger_id)

    async def _row(self, ledger_id: int) -> LedgerRow:
        row = LedgerRow()
        try:
            data = await self._index.load_state(ledger_id)
            if data is not None:
                row = decode_row(ledger_id, data)
        except (DamagedFile, EntryUnknown) as error:
            row = self._in_limbo(row, ledger_id, error)
        try:
            # A checkpoint that a crash cut off may have stored batches and not yet the state.
            last_held = await self._index.last_entry(ledger_id)
        except EntryUnknown as error:
            return self._in_limbo(row, ledger_id, error)
        return replace(row, last_held=max(row.last_held, last_held))

    def _in_limbo(self, row: LedgerRow, ledger_id: int, error: StorageError) -> LedgerRow:
        """``row``, in limbo, if ``error`` says that the index is damaged; a disk that fails may yet come back."""
        if not isinstance(error, DamagedFile) and not isinstance(error.__cause__, DamagedFile):
            raise error
        where = self._directory.layout.index(self._table.limbo.index)
        _log.error("ledger in limbo until repaired", ledger_id=ledger_id, path=where, error=error.message)
        return replace(row, limbo=True)

    def _parts(self, journals: Journals, fail_safe: FailSafe) -> Parts:
        settings, world, table, cache = self._settings, self._world, self._table, self._cache
        checkpointer = self._checkpointer(journals, fail_safe)
        admission = self._admission(journals)
        damage = DamageList()
        self._flush.on_written = damage.written_anew
        commits = Commits(journals.each, admission, checkpointer.look_at_journal, fail_safe.trip, world.clock)
        verifiers = Verifiers(world.facts_of)
        read_cache = ReadCache(settings.storage.read_cache_bytes)
        ahead = self._read_ahead()
        stored = self._stored(read_cache, ahead, damage)
        settled = SettledLedgers(world.closed_up_to)
        visits, proven = RepairVisits(world.clock), ProvenCopies()
        way = Way(self._index, self._cache)
        adds = AddPath(
            table=table,
            cache=cache,
            commits=commits,
            admission=admission,
            verifiers=verifiers,
            stored_overlap=stored.overlapping,
            way=way,
            repairs=RepairAdds(settled, way, stored, visits, proven),
            request_flush=checkpointer.request,
            look_at_journal=checkpointer.look_at_journal,
            on_defect=fail_safe.trip,
            clock=world.clock,
            tasks=world.tasks,
            max_cache_wait_seconds=settings.admission.max_cache_wait_ms / 1000,
        )
        journals.call_on_room(adds.journal_room_freed)
        fences = Fences(table, commits, admission, verifiers)
        disk_watch = self._disk_watch()
        collector = self._collector(stored, fences, fail_safe, _pressed(disk_watch, admission), damage, visits)
        adds.on_other_ledger = collector.suspect
        _follow_room(disk_watch, self._flush, admission, collector)
        disk_watch.on_look = self._logs.avoid
        rows = PresentRows(self._index, lambda: self._logs.log_ids)
        return Parts(
            directory=self._directory,
            journals=journals,
            logs=self._logs,
            index=self._index,
            cache=cache,
            read_cache=read_cache,
            read_ahead=ahead,
            table=table,
            commits=commits,
            admission=admission,
            adds=adds,
            fences=fences,
            verifiers=verifiers,
            lacs=Lacs(table, commits, admission, verifiers),
            reads=Reads(table, cache, stored, fences, world.clock),
            lookups=self._lookups,
            flush=self._flush,
            checkpointer=checkpointer,
            collector=collector,
            disk_watch=disk_watch,
            damage=damage,
            scrub=self._scrub(collector, damage),
            settled=settled,
            boot_times=self._times,
            rows=rows,
            proven=proven,
            held=Held(table, cache, self._index, rows, commits, visits, proven),
            tracer=Tracer(table, cache, read_cache, self._index, stored, self._in_journal),
            fail_safe=fail_safe,
            limbo_marker=self._marker,
        )

    def _checkpointer(self, journals: Journals, fail_safe: FailSafe) -> Checkpointer:
        return Checkpointer(
            self._flush,
            journals,
            interval_seconds=self._settings.storage.flush_interval_ms / 1000,
            fail_safe=fail_safe.trip,
            clock=self._world.clock,
        )

    def _stored(self, read_cache: ReadCache, ahead: ReadAhead, damage: DamageList) -> StoredBatches:
        return StoredBatches(
            self._index,
            self._logs,
            read_cache,
            ahead,
            on_damage=lambda row: damage.add(batch_of(row)),
            on_damaged_row=lambda key: damage.add(batch_under(key)),
            lookups=self._lookups,
        )

    def _admission(self, journals: Journals) -> Admission:
        settings = self._settings
        return Admission(
            settings.admission,
            journals,
            journal_bytes=settings.journal.segment_bytes * settings.journal.segment_count,
            max_add_bytes=_largest_batch_bytes(settings) + BATCH_OVERHEAD_BYTES,
        )

    def _read_ahead(self) -> ReadAhead:
        def spawn(work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
            return self._world.tasks.spawn(work, name=name)

        return ReadAhead(self._index, self._logs, spawn, self._settings.storage.read_ahead_bytes)

    async def _in_journal(self, ledger_id: int, entry_id: int) -> Located | None:
        places = self._directory.places.journal
        place = places[journal_of(ledger_id, len(places))]
        return await locate(self._world.disk, place.path, ledger_id, entry_id)

    def _scrub(self, collector: Collector, damage: DamageList) -> Scrub:
        directory = self._directory
        home = IndexHome(self._world.disk, directory.layout, directory.cookie, self._world.open_index)
        return Scrub(
            collector.reclaimer.contents,
            self._index,
            self._logs,
            damage,
            self._settings.scrub,
            disk=self._world.disk,
            note_path=directory.layout.scrub,
            clock=self._world.clock,
            give_up_index=partial(home.give_up, self._table.limbo.index),
            measured=collector.reclaimer.measured,
        )

    def _disk_watch(self) -> DiskWatch:
        storage, places, layout = self._settings.storage, self._directory.places, self._directory.layout
        marks = Watermarks(
            storage.disk_warn_percent / 100, storage.disk_back_percent / 100, storage.disk_read_only_percent / 100
        )
        watched = Watched(
            logs=places.ledger_paths,
            index=layout.index(self._table.limbo.index),
            # Beside the entry logs, as it is by default, it lies on the same disk.
            index_apart=places.ledger_paths != (layout.ledgers,),
            journals=places.journal_paths,
            min_free_bytes=storage.min_free_bytes,
        )
        return DiskWatch(self._world.disk.space, watched, marks, self._world.clock)

    def _collector(
        self,
        stored: StoredBatches,
        fences: Fences,
        fail_safe: FailSafe,
        pressed: Callable[[], bool],
        damage: DamageList,
        visits: RepairVisits,
    ) -> Collector:
        world = self._world
        leftovers = Leftovers(visits, world.clock, self._settings.collection.unnamed_delay_s)
        bookie_id = self._directory.cookie.bookie_id
        late = LateIdentities(
            self._table, world.facts_of, lambda: self._table.dirty_count < MAX_DIRTY_LEDGERS // DIRTY_PART
        )
        fate_here = _fate_here(world, bookie_id, self._table, late)
        return Collector(
            Holdings(self._index, self._logs, self._cache, stored, self._table, fences),
            fate_here,
            self._settings.collection,
            leftovers,
            StoreCheck(
                self._index,
                self._cache,
                fate_here,
                world.id_counter,
                world.behind,
                bookie_id,
                self._seen,
                self._marker,
                self._table,
                world.clock,
            ),
            clock=world.clock,
            tasks=world.tasks,
            fail_safe=fail_safe.trip,
            settle_bytes=self._settings.storage.entry_log_bytes // SETTLE_PART,
            pressed=pressed,
            damage=damage,
            named=world.named and partial(world.named, bookie_id),
            late=late,
        )


def _largest_batch_bytes(settings: BookieSettings) -> int:
    """The largest batch that fits one group commit, and that there may be."""
    return min(settings.journal.max_commit_bytes - BLOCK_HEADER_BYTES - RECORD_HEADER_BYTES, MAX_BATCH_BYTES)


_OF_ONE_LEDGER: Final = (Fate.RELEASED, Fate.UNNAMED, Fate.DELETED)
"""What may be dropped without an operator, if the metadata are those of the ledger that is held."""


def _fate_here(world: BookieWorld, bookie_id: str, table: LedgerTable, late: LateIdentities) -> FateOfLedger:
    """What the metadata say of ledgers that this bookie holds."""

    async def fate_here(ledger_id: int) -> Fate:
        try:
            identity: bytes | None = (await table.look(ledger_id)).identity
        except EntryUnknown:
            identity = None
        except DiskFailed:
            return Fate.UNKNOWN
        fate = await world.fate_of(ledger_id, bookie_id, identity or NO_IDENTITY)
        if fate is Fate.KEPT and identity == NO_IDENTITY:
            late.note(ledger_id)
        if not identity and ledger_id <= table.reused_up_to and fate in _OF_ONE_LEDGER:
            # The metadata may be the later ledger's of this id, and what is held the earlier one's.
            return Fate.OTHER
        return fate

    return fate_here


def _pressed(disk_watch: DiskWatch, admission: Admission) -> Callable[[], bool]:
    """Whether the bookie is short of disk, or its checkpoints have no room, which may come sooner."""
    return lambda: disk_watch.level is not Level.ROOM or admission.disk_full


def _follow_room(disk_watch: DiskWatch, flush: Flush, admission: Admission, collector: Collector) -> None:
    """Close the bookie to writers where there is no room, and have the collector look at once for what can go."""

    def at_level(level: Level) -> None:
        admission.short_of_disk = level is Level.SHORT
        if level is not Level.ROOM:
            collector.request()

    def at_disk_full(disk_full: bool) -> None:
        if disk_full and not admission.disk_full:
            collector.request()
        admission.set_disk_full(disk_full)

    disk_watch.on_level = at_level
    flush.on_disk_full = at_disk_full
