"""Builds the parts of a bookie and connects them.

Every part gets what it needs in its constructor. Where two need each other, both get an object that is created before
them: ``DiskPressure`` (disk monitor and checkpoints to admission and garbage collection), ``SpaceFreed`` (write cache
and journals to waiting adds) and the event that requests garbage collection.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any, Final

from tallybook.core.errors import DiskFailed, EntryUnknown
from tallybook.core.ids import NO_IDENTITY
from tallybook.core.limits import MAX_BATCH_BYTES
from tallybook.core.settings import BookieSettings
from tallybook.runtime.metrics.usage import Meter

from ..background.budget import BackgroundBudget, BackgroundWork
from ..background.pace import LatencyTotals
from ..boot_times import BootTimes
from ..directories.disk_monitor import DiskMonitor, WatchedDirectories
from ..directories.index_home import IndexHome
from ..directories.layout import DataDirectory
from ..directories.limbo import Limbo
from ..directories.loss_bound import lost_below
from ..directories.watermarks import DiskPressure, Watermarks
from ..fail_safe import FailSafe
from ..gc.collector import GarbageCollector
from ..gc.dropping import LedgerStorage
from ..journal.batch_search import JournalLocation, locate
from ..journal.format import BLOCK_HEADER_BYTES, RECORD_HEADER_BYTES
from ..journal.journals import Journals, journal_of
from ..ledgers.confirmed_prefix import ConfirmedPrefixes
from ..ledgers.disposition import DispositionOf, LedgerDisposition
from ..ledgers.key_verification import KeyVerification
from ..ledgers.late_identities import LateIdentities
from ..ledgers.over_replicated import OverReplicationPolicy, RepairVisits
from ..ledgers.stored_state import StoredState
from ..ledgers.table import LedgerTable
from ..ledgers.verified_copies import VerifiedCopies
from ..parts import BookieParts
from ..read.entry_trace import EntryTracer
from ..read.inventory import Inventory
from ..read.last_add_confirmed import LastAddConfirmed
from ..read.read_path import ReadPath
from ..recovery.id_high_water import IdHighWater
from ..recovery.journal_replay import JournalReplay
from ..recovery.limbo_end import LimboEnd
from ..recovery.limbo_marker import LimboMarker
from ..recovery.store_check import StoreCheck
from ..scrub.damage_list import DamageList, batch_of, batch_under
from ..scrub.scrubber import Scrubber
from ..storage.checkpoint import CacheFlush, Checkpointer
from ..storage.entry_log.logs import EntryLogs
from ..storage.entry_tables import TABLES_SHARE, EntryTables
from ..storage.flushed_batches import FlushedBatches
from ..storage.index.port import Index
from ..storage.index.present_rows import PresentRows
from ..storage.read_ahead import ReadAhead
from ..storage.read_cache import ReadCache
from ..storage.write_cache import BATCH_OVERHEAD_BYTES, WriteCache
from ..write.add_path import AddPath
from ..write.admission import MAX_DIRTY_LEDGERS, Admission
from ..write.fencing import LedgerFencing
from ..write.overlap_trim import OverlapTrim
from ..write.pending_acks import PendingAcks
from ..write.repair_adds import RepairAdds
from ..write.space_waiters import SpaceFreed, SpaceWaiters
from .world import BookieWorld

MAX_IDLE_LEDGERS: Final = 50_000
"""Idle ledgers that are kept in memory."""

DIRTY_PART: Final = 4
"""Late identities are set while fewer than this part of the allowed dirty ledgers are dirty."""

FINISH_PART: Final = 16
"""The active entry log is finished early if it is mostly dead and has at least this part of its full size."""


class Assembly:
    """Builds the parts of one bookie in the order of their dependencies, beginning with those that replay needs."""

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
        self._gc_requests = asyncio.Event()
        self._pressure = DiskPressure(self._gc_requests.set)
        self._damage = DamageList()
        self._cache_space, self.journal_space = SpaceFreed(), SpaceFreed()
        self._cache = WriteCache(settings.storage.write_cache_bytes, world.rng.fork("write cache"))
        self._lookups, self._direct_reads = Meter(world.clock), Meter(world.clock)
        self._commits: PendingAcks | None = None
        self._reads: ReadPath | None = None
        self._admission_now: Admission | None = None
        self._background = BackgroundBudget(
            settings.background,
            lambda: self._adds_so_far().samples + (self._reads.foreground_reads if self._reads else 0),
            lambda: bool(self._admission_now and self._admission_now.inflight_bytes),
            (self._adds_so_far, lambda: LatencyTotals.of(self._direct_reads.seconds)),
            world.clock,
        )
        self._index_path = directory.layout.index(limbo.index)
        states = StoredState(index, self._index_path, self._lookups)
        self._table = LedgerTable(states.load, limbo, max_idle=MAX_IDLE_LEDGERS)
        self._seen = IdHighWater(world.disk, directory)
        self._marker = LimboMarker(
            world.disk,
            directory.layout.limbo,
            self._table,
            lambda: lost_below(world.ids_below, self._seen.value),
            world.clock,
        )
        self._flush = CacheFlush(
            cache=self._cache,
            states=self._table,
            logs=logs,
            index=index,
            workers=world.workers,
            clock=world.clock,
            pace=self._pace_checkpoint,
            on_space=self._cache_space.report,
            on_written=self._damage.written_anew,
            on_disk_full=self._pressure.set_full,
        )

    def replay(self) -> JournalReplay:
        """Replay into the write cache, from there into entry logs and index."""
        return JournalReplay(self._table, self._cache, self._spill)

    async def _spill(self) -> None:
        self._flush.begin()
        await self._flush.finish(wait_for_space=False)

    def _run_in_background(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        return self._world.tasks.spawn(work, name=name)

    def _spender(self, work: BackgroundWork) -> Callable[[int], Awaitable[None]]:
        return partial(self._background.spend, work)

    async def _pace_checkpoint(self, size: int) -> None:
        """Let a checkpoint give way while few bytes are added meanwhile."""
        if self._cache.is_nearly_empty:
            await self._background.spend(BackgroundWork.CHECKPOINT, size)

    def _adds_so_far(self) -> LatencyTotals:
        return LatencyTotals(0, 0.0) if self._commits is None else LatencyTotals.of(self._commits.add_seconds)

    def parts(self, journals: Journals, fail_safe: FailSafe) -> BookieParts:
        """All parts, once the journals run."""
        settings, world, table, cache = self._settings, self._world, self._table, self._cache
        checkpointer = self._checkpointer(journals, fail_safe)
        admission = self._admission_now = self._admission(journals)
        commits = PendingAcks(journals.each, admission, checkpointer.check_journal, fail_safe.trip, world.clock)
        self._commits = commits
        verifiers, confirmed = KeyVerification(world.facts_of), ConfirmedPrefixes(world.confirmed_prefix_of)
        tables = EntryTables(settings.storage.read_cache_bytes // TABLES_SHARE)
        read_cache = ReadCache(settings.storage.read_cache_bytes - tables.max_bytes)
        ahead = self._read_ahead()
        stored = self._stored(read_cache, tables, ahead)
        visits, verified = RepairVisits(world.clock), VerifiedCopies()
        overlap_trim = OverlapTrim(self._index, self._cache)
        fences = LedgerFencing(table, commits, admission, verifiers)
        collector = self._collector(stored, fences, fail_safe, visits)
        waiters = self._waiters(admission, checkpointer)
        adds = AddPath(
            table=table,
            cache=cache,
            commits=commits,
            admission=admission,
            verifiers=verifiers,
            stored=stored,
            overlap_trim=overlap_trim,
            repairs=RepairAdds(confirmed, overlap_trim, stored, visits, verified, self._background),
            waiters=waiters,
            request_flush=checkpointer.request,
            check_journal=checkpointer.check_journal,
            on_other_ledger=collector.suspect,
            on_defect=fail_safe.trip,
            clock=world.clock,
            tasks=world.tasks,
        )
        self._reads = ReadPath(table, cache, stored, fences, self._background, world.clock)
        rows, bookie_id = PresentRows(self._index, lambda: self._logs.log_ids), self._directory.cookie.bookie_id
        return BookieParts(
            directory=self._directory,
            journals=journals,
            logs=self._logs,
            index=self._index,
            cache=cache,
            read_cache=read_cache,
            tables=tables,
            read_ahead=ahead,
            table=table,
            commits=commits,
            admission=admission,
            adds=adds,
            waiters=waiters,
            fences=fences,
            verifiers=verifiers,
            lacs=LastAddConfirmed(table, commits, admission, verifiers),
            reads=self._reads,
            lookups=self._lookups,
            checkpointer=checkpointer,
            flush=self._flush,
            collector=collector,
            disk_monitor=self._disk_monitor(),
            damage=self._damage,
            scrub=self._scrub(collector),
            confirmed=confirmed,
            boot_times=self._times,
            limbo_end=LimboEnd(bookie_id, table, cache, rows, confirmed, verifiers, verified, checkpointer),
            held=Inventory(table, cache, self._index, rows, commits, visits, verified),
            tracer=EntryTracer(table, cache, read_cache, self._index, stored, self._in_journal),
            fail_safe=fail_safe,
            limbo_marker=self._marker,
            background=self._background,
        )

    def _checkpointer(self, journals: Journals, fail_safe: FailSafe) -> Checkpointer:
        return Checkpointer(
            self._flush,
            journals,
            interval_seconds=self._settings.storage.flush_interval_ms / 1000,
            rng=self._world.rng.fork("checkpoints"),
            fail_safe=fail_safe.trip,
            clock=self._world.clock,
        )

    def _stored(self, read_cache: ReadCache, tables: EntryTables, ahead: ReadAhead) -> FlushedBatches:
        return FlushedBatches(
            self._index,
            self._logs,
            read_cache,
            tables,
            ahead,
            on_damage=lambda row: self._damage.add(batch_of(row)),
            on_damaged_row=lambda key: self._damage.add(batch_under(key)),
            lookups=self._lookups,
            direct_reads=self._direct_reads,
        )

    def _admission(self, journals: Journals) -> Admission:
        settings = self._settings
        return Admission(
            settings.admission,
            journals,
            self._pressure,
            journal_bytes=settings.journal.segment_bytes * settings.journal.segment_count,
            max_add_bytes=_largest_batch_bytes(settings) + BATCH_OVERHEAD_BYTES,
        )

    def _waiters(self, admission: Admission, checkpointer: Checkpointer) -> SpaceWaiters:
        return SpaceWaiters(
            admission,
            self._cache_space,
            self.journal_space,
            request_flush=checkpointer.request,
            check_journal=checkpointer.check_journal,
            clock=self._world.clock,
            max_wait_seconds=self._settings.admission.max_cache_wait_ms / 1000,
        )

    def _read_ahead(self) -> ReadAhead:
        max_bytes, spend = self._settings.storage.read_ahead_bytes, self._spender(BackgroundWork.READ_AHEAD)
        return ReadAhead(self._index, self._logs, self._run_in_background, max_bytes, spend)

    async def _in_journal(self, ledger_id: int, entry_id: int) -> JournalLocation | None:
        paths = self._directory.directories.journal_paths
        path = paths[journal_of(ledger_id, len(paths))]
        return await locate(self._world.disk, path, ledger_id, entry_id)

    def _scrub(self, collector: GarbageCollector) -> Scrubber:
        directory = self._directory
        home = IndexHome(self._world.disk, directory.layout, directory.cookie, self._world.open_index)
        return Scrubber(
            collector.reclaimer.contents,
            self._index,
            self._logs,
            self._damage,
            self._settings.scrub,
            disk=self._world.disk,
            note_path=directory.layout.scrub,
            clock=self._world.clock,
            give_up_index=partial(home.give_up, self._table.limbo.index),
            measured=collector.reclaimer.measured,
            spend=self._spender(BackgroundWork.SCRUB),
        )

    def _disk_monitor(self) -> DiskMonitor:
        storage, directories, layout = self._settings.storage, self._directory.directories, self._directory.layout
        marks = Watermarks(
            storage.disk_warn_percent / 100, storage.disk_back_percent / 100, storage.disk_read_only_percent / 100
        )
        watched = WatchedDirectories(
            logs=directories.ledger_paths,
            index=self._index_path,
            # By default the index is on the disk of the entry logs.
            index_apart=directories.ledger_paths != (layout.ledgers,),
            journals=directories.journal_paths,
            min_free_bytes=storage.min_free_bytes,
        )
        disk, clock = self._world.disk, self._world.clock
        return DiskMonitor(disk.space, watched, marks, clock, self._pressure, self._logs.avoid)

    def _collector(
        self, stored: FlushedBatches, fences: LedgerFencing, fail_safe: FailSafe, visits: RepairVisits
    ) -> GarbageCollector:
        world = self._world
        over_replication = OverReplicationPolicy(visits, world.clock, self._settings.collection.unnamed_delay_s)
        bookie_id = self._directory.cookie.bookie_id
        late = LateIdentities(
            self._table, world.facts_of, lambda: self._table.dirty_count < MAX_DIRTY_LEDGERS // DIRTY_PART
        )
        held_disposition = _held_disposition(world, bookie_id, self._table, late)
        return GarbageCollector(
            LedgerStorage(self._index, self._logs, self._cache, stored, self._table, fences),
            held_disposition,
            self._settings.collection,
            over_replication,
            StoreCheck(
                self._index,
                self._cache,
                held_disposition,
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
            finish_bytes=self._settings.storage.entry_log_bytes // FINISH_PART,
            pressed=self._pressure.is_short,
            requests=self._gc_requests,
            damage=self._damage,
            spend=self._spender(BackgroundWork.COMPACTION),
            named=world.named and partial(world.named, bookie_id),
            late=late,
        )


def _largest_batch_bytes(settings: BookieSettings) -> int:
    """The largest batch that fits one group commit, up to the limit of the format."""
    return min(settings.journal.max_commit_bytes - BLOCK_HEADER_BYTES - RECORD_HEADER_BYTES, MAX_BATCH_BYTES)


_OF_ONE_LEDGER: Final = (LedgerDisposition.RELEASED, LedgerDisposition.UNNAMED, LedgerDisposition.DELETED)
"""Dispositions that allow dropping without an operator, if the metadata belongs to the held ledger."""


def _held_disposition(world: BookieWorld, bookie_id: str, table: LedgerTable, late: LateIdentities) -> DispositionOf:
    """Looks up dispositions of held ledgers, and compares identities."""

    async def held_disposition(ledger_id: int) -> LedgerDisposition:
        try:
            identity: bytes | None = (await table.peek(ledger_id)).identity
        except EntryUnknown:
            identity = None
        except DiskFailed:
            return LedgerDisposition.UNKNOWN
        disposition = await world.disposition_of(ledger_id, bookie_id, identity or NO_IDENTITY)
        if disposition is LedgerDisposition.KEPT and identity == NO_IDENTITY:
            late.note(ledger_id)
        if not identity and ledger_id <= table.reused_up_to and disposition in _OF_ONE_LEDGER:
            # The metadata may belong to a later ledger with this id, and the entries to the earlier one.
            return LedgerDisposition.OTHER
        return disposition

    return held_disposition
