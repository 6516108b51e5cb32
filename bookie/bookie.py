"""A bookie: what it is made of, and how it stops.

It implements ``port.LedgerStore`` by handing each request to the part whose business it is::

    add                          adds.py      checked, admitted, cached, journaled
    fence, delete                fences.py    refused from now on, durably
    collect                      collector.py drops what need not be kept
    read_*, recovery_read        reads.py     write cache, then storage
    *_lac                        lacs.py      told, waited for, journaled
    held*                        held.py      by index and write cache
    trace                        trace.py     where one copy lies, and whether it is intact

All of them work on the same ``Ledger`` objects (ledger_table.py), and hand records to the
journals (commits.py). In the background, checkpoints (storage/checkpoint.py) move what was
taken to entry logs and index, and the collector drops ledgers that need not be kept. boot.py puts it all together.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import chain
from typing import Final

from tallybook.core.answers import (
    BookieStatus,
    CopyTrace,
    DamagedBatch,
    FenceAnswer,
    HeldAnswer,
    HeldLedgers,
    Incarnation,
    LacAnswer,
    ReadAnswer,
)
from tallybook.core.batch import Buffer, EntrySlice
from tallybook.core.errors import (
    BookieUnavailable,
    DiskFailed,
    DiskFull,
    EntryUnknown,
    NoSuchLedger,
    OtherLedger,
    RequestTimeout,
    TallybookError,
)
from tallybook.core.ids import MAX_ID, NO_IDENTITY
from tallybook.core.limits import MAX_PAGE
from tallybook.core.marks import sometimes
from tallybook.runtime.clock import Clock
from tallybook.runtime.logging import logger
from tallybook.runtime.meter import Meter, Reading

from .adds import AddPath
from .admission import Admission
from .boot_times import BootTimes
from .collector import Collector
from .commits import Commits
from .damage import DamageList
from .directories import DataDirectory
from .disk_watch import DiskWatch
from .fail_safe import FailSafe
from .fences import Fences
from .held import Held
from .journals import Journals
from .lacs import Lacs
from .ledger_state import Ledger
from .ledger_table import LedgerTable
from .limbo_marker import LimboMarker
from .metrics import REFUSAL_REASONS
from .missing import first_missing
from .port import AddCallback
from .present_rows import PresentRows
from .proven import ProvenCopies
from .reads import Reads
from .scrub import Scrub
from .settled import MAX_REMEMBERED, SettledLedgers, Share
from .storage.checkpoint import Checkpointer, Flush
from .storage.entry_log import EntryLogs
from .storage.index import Index
from .storage.read_ahead import ReadAhead
from .storage.read_cache import ReadCache
from .storage.write_cache import WriteCache
from .trace import Tracer
from .verifiers import Verifiers

_log = logger("bookie")

FLUSH_SECONDS: Final = 120.0
"""Longest wait for a checkpoint that was asked for."""

CLOSE_SECONDS: Final = 30.0
"""How long a clean stop may take before it becomes an unclean one."""

PART_CLOSE_SECONDS: Final = 90.0
"""How long one part may take to close; a device that hangs must not keep the process."""


@dataclass(frozen=True, slots=True)
class Parts:
    """What a bookie is made of."""

    directory: DataDirectory
    journals: Journals
    logs: EntryLogs
    index: Index
    cache: WriteCache
    read_cache: ReadCache
    read_ahead: ReadAhead
    table: LedgerTable
    commits: Commits
    admission: Admission
    adds: AddPath
    fences: Fences
    verifiers: Verifiers
    lacs: Lacs
    reads: Reads
    lookups: Meter
    flush: Flush
    checkpointer: Checkpointer
    collector: Collector
    disk_watch: DiskWatch
    damage: DamageList
    scrub: Scrub
    settled: SettledLedgers
    boot_times: BootTimes
    rows: PresentRows
    proven: ProvenCopies
    held: Held
    tracer: Tracer
    fail_safe: FailSafe
    limbo_marker: LimboMarker


class Bookie:
    """One bookie's ledgers, on a disk. Made by ``boot.boot``."""

    def __init__(
        self,
        parts: Parts,
        boot: int,
        checkpoints: asyncio.Task[None],
        background: Sequence[asyncio.Task[None]],
        clock: Clock,
    ) -> None:
        self._parts = parts
        self._clock = clock
        self._began = clock.monotonic()
        self._checkpoints = checkpoints
        self._background = background
        self._bookie_id = parts.directory.cookie.bookie_id
        self._incarnation = Incarnation(parts.directory.cookie.directory_uuid, boot)
        self._closed = False
        self._take = parts.adds.take
        parts.fail_safe.on_trip(self._stop_answering)

    # -- the port -------------------------------------------------------------------------

    @property
    def bookie_id(self) -> str:
        """Its identity in ledger metadata."""
        return self._bookie_id

    @property
    def incarnation(self) -> Incarnation:
        """This life of it."""
        return self._incarnation

    @property
    def max_batch_bytes(self) -> int:
        """The largest batch that fits one group commit."""
        return self._parts.admission.max_batch_bytes

    def add(
        self,
        batch: Buffer,
        key: bytes,
        on_answer: AddCallback,
        *,
        recovery: bool = False,
        deferred: bool = False,
        repair: bool = False,
        beside: bool = False,
        identity: bytes = NO_IDENTITY,
    ) -> None:
        """Take one batch; see the port."""
        self._take(batch, key, on_answer, recovery, deferred, repair, beside, identity)

    @asynccontextmanager
    async def identified(
        self, ledger_id: int, identity: bytes, *, for_write: bool = False, for_repair: bool = False
    ) -> AsyncIterator[None]:
        """Hold a ledger during a request that states its identity; see the port."""
        async with self._parts.table.using(ledger_id) as ledger:
            if for_write:
                await self._parts.verifiers.learn(ledger)
            try:
                ledger.check_identity(identity, for_repair=for_repair)
                yield
                ledger.check_identity(identity, for_repair=for_repair)
            except OtherLedger:
                self._parts.collector.suspect(ledger_id)
                raise

    async def any_opens(self, ledger_id: int, shown: Sequence[tuple[bytes, bytes]]) -> bool:
        """Whether one of these keys and identities opens the ledger; see the port."""
        async with self._parts.table.using(ledger_id) as ledger:
            await self._parts.verifiers.learn(ledger)
            return any(ledger.is_identity(identity) and ledger.fits(key) for key, identity in shown)

    async def force(self, ledger_id: int, key: bytes) -> None:
        """Make durable what was taken of the ledger; see the port."""
        await self._parts.adds.force(ledger_id, key)

    async def fence(self, ledger_id: int, key: bytes) -> FenceAnswer:
        """Refuse every ordinary add of the ledger from now on; see the port."""
        return await self._parts.fences.fence(ledger_id, key)

    async def read_batches(self, ledger_id: int, first: int, last: int, max_bytes: int) -> ReadAnswer:
        """Whole batches from the one that holds ``first``; see the port."""
        return await self._parts.reads.read(ledger_id, first, last, max_bytes)

    async def recovery_read(self, ledger_id: int, entry_id: int, key: bytes, max_bytes: int = 0) -> ReadAnswer:
        """Fence, then the batch that holds ``entry_id`` and what follows; see the port."""
        return await self._parts.reads.recovery_read(ledger_id, entry_id, key, max_bytes)

    async def read_entry(self, ledger_id: int, entry_id: int) -> EntrySlice:
        """One entry, cut out of its batch; see the port."""
        return await self._parts.reads.read_entry(ledger_id, entry_id)

    async def read_lac(self, ledger_id: int) -> LacAnswer:
        """The highest LAC seen of the ledger; see the port."""
        return await self._parts.lacs.read(ledger_id)

    async def wait_lac(self, ledger_id: int, above: int, timeout_ms: int) -> LacAnswer:
        """Long poll for the LAC; see the port."""
        return await self._parts.lacs.wait(ledger_id, above, timeout_ms)

    async def write_lac(self, ledger_id: int, lac: int, key: bytes) -> None:
        """Remember an explicit LAC, durably; see the port."""
        await self._parts.lacs.write(ledger_id, lac, key)

    # -- repair and inspection ------------------------------------------------------------

    async def held(self, ledger_id: int, first: int, last: int) -> HeldAnswer:
        """What is held of a ledger between two entries; see the port."""
        return await self._parts.held.ranges(ledger_id, first, last)

    async def held_ledgers(self, after: int, limit: int) -> HeldLedgers:
        """Ledgers of which a batch is held; see the port."""
        return await self._parts.held.ledgers(after, limit)

    async def damaged(self, after: tuple[int, int], limit: int) -> tuple[DamagedBatch, ...]:
        """Batches whose copies here are known to be damaged; see the port, and ``Scrub.damaged``."""
        return tuple(await self._parts.scrub.damaged(after, min(limit, MAX_PAGE)))

    async def trace(self, ledger_id: int, entry_id: int) -> CopyTrace:
        """Where the copy of an entry lies, and whether it is intact; see the port."""
        return await self._parts.tracer.trace(ledger_id, entry_id)

    async def status(self) -> BookieStatus:
        """How it is doing; see the port."""
        parts, limbo = self._parts, self._parts.table.limbo
        return BookieStatus(
            read_only=self.read_only,
            disk_used_fraction=parts.disk_watch.used_part,
            free_bytes=parts.disk_watch.free_bytes,
            entry_log_bytes=parts.logs.durable_bytes,
            entry_logs=len(parts.logs.log_ids),
            journal_used_fraction=parts.journals.used_fraction,
            ledgers_in_memory=len(parts.table),
            damaged_batches=len(parts.damage),
            limbo_events=limbo.events,
            limbo_below=MAX_ID if limbo.awaits_enrolment else limbo.below,
            scrub_rounds=parts.scrub.rounds,
            uptime_seconds=self._clock.monotonic() - self._began,
            directories=parts.disk_watch.directories,
        )

    async def end_limbo(self, ledger_id: int) -> None:
        """A repair gave back what may have been lost of the ledger; see the port. A closed ledger stays fenced.

        Raises:
            EntryUnknown: an entry is not here for which the metadata name this bookie, or that cannot be told: the
                ledger stays in limbo.
            DiskFailed: it could not be made durable, and the node ends.
            RequestTimeout: the checkpoint that makes it durable takes longer than ``FLUSH_SECONDS``.
        """
        parts = self._parts
        if parts.table.limbo.awaits_enrolment:
            raise BookieUnavailable("this bookie replaces another one and is not enrolled yet")
        async with parts.table.using(ledger_id) as ledger:
            settled = await parts.settled.settled_at(ledger_id, self._bookie_id)
            if ledger.limbo:
                ours = [share for share in settled.shares if share.bookie_id == self._bookie_id]
                await self._check_all_here(ours, ledger_id)
                if ledger.doubted:
                    await self._prove(ledger, ours)
            if ledger.deleted:
                raise NoSuchLedger(f"ledger {ledger_id} was deleted")
            if ledger.limbo and ledger.given_back is None:
                ledger.got_back(parts.table.limbo.events, fence=settled.closed)
                parts.table.mark_dirty(ledger)
            if ledger.dirty or ledger.flushing:
                # Also where somebody else is just ending it: what is answered is durable, and what is shown.
                await self._in_time(parts.checkpointer.flush())
            if not ledger.end_limbo():
                parts.table.mark_dirty(ledger)
                raise _in_doubt(ledger_id)

    async def _check_all_here(self, shares: Sequence[Share], ledger_id: int) -> None:
        """What is not held of a ledger is ABSENT once its limbo has ended: so all that should be held must be."""
        parts = self._parts
        for share in shares:
            missing = await first_missing(parts.cache, parts.rows, ledger_id, share.ranges(), share.last)
            if missing is not None:
                raise EntryUnknown(f"entry {missing} of ledger {ledger_id} is not here: it stays in limbo")

    async def _prove(self, ledger: Ledger, shares: Sequence[Share]) -> None:
        """All that the metadata name this bookie for was given by a repair in this life, and is what is held."""
        facts, proven = await self._parts.verifiers.facts(ledger.ledger_id), self._parts.proven
        ours = chain.from_iterable(share.ranges() for share in shares)
        if not proven.are_all(ours, ledger.ledger_id, facts.identity):
            raise _in_doubt(ledger.ledger_id)
        if ledger.doubted:
            sometimes("bookie: a ledger in doubt is proven")
            ledger.prove(facts.verifier, facts.identity)
            self._parts.table.mark_dirty(ledger)
        proven.forget(ledger.ledger_id)

    # -- running it -----------------------------------------------------------------------

    @property
    def read_only(self) -> bool:
        """Whether ordinary adds are refused. Reads, fences and recovery adds are served all the same."""
        admission = self._parts.admission
        return admission.closed_to_writers or self._parts.table.limbo.awaits_enrolment

    def set_read_only(self, read_only: bool) -> None:
        """Refuse ordinary adds, or take them again."""
        self._parts.admission.read_only = read_only

    async def delete_ledger(self, ledger_id: int) -> None:
        """Refuse a ledger that need not be kept, for ever; see ``Fences.delete``."""
        await self._parts.fences.delete(ledger_id)

    async def collect(self) -> None:
        """One round of dropping what need not be kept; see ``Collector.collect``. Rounds come by themselves, too."""
        await self._parts.collector.collect()

    def request_collection(self) -> None:
        """Have the next of these rounds at once, where they come by themselves."""
        self._parts.collector.request()

    async def approve_store(self) -> None:
        """Go on with a metadata store that was found behind; see ``Collector.approve_store``."""
        await self._parts.collector.approve_store()

    async def approve_drop(self) -> None:
        """Have a round at once that drops what waits for an operator, too; see ``Collector.approve_drop``."""
        await self._parts.collector.approve_drop()

    @property
    def compaction_suspended(self) -> bool:
        """Whether entry logs are compacted no more, until that is taken back or the bookie starts again."""
        return self._parts.collector.reclaimer.suspended

    def suspend_compaction(self, suspended: bool) -> None:
        """Compact no more entry logs once the one that is being compacted is, or go on."""
        self._parts.collector.reclaimer.suspended = suspended

    async def compare_store(self) -> None:
        """Make sure that the metadata store hands out no id that is held here. To be called before it is registered.

        Raises:
            MetadataUnavailable, MetadataConflict, MetadataOutcomeUnknown, NewerFormat, DiskFailed: see
                ``StoreCheck.compare``.
        """
        await self._parts.collector.check.compare()

    async def enrolled(self) -> None:
        """It is registered under its id, and whoever was before it is not. To be called every time it starts.

        Until then a bookie that replaces another one has every ledger in limbo.

        Raises:
            DiskFull, DiskFailed: it could not be noted.
            MetadataUnavailable: the metadata does not answer.
        """
        await self._parts.limbo_marker.enrolled()

    async def flush(self) -> None:
        """Checkpoint everything taken so far: when this returns, no journal is needed to read it.

        Raises:
            DiskFailed: the device failed, and the node ends.
            RequestTimeout: it takes longer than ``FLUSH_SECONDS``: the disk is full, or very slow.
        """
        await self._in_time(self._drained_and_flushed())

    async def _drained_and_flushed(self) -> None:
        await self._parts.journals.drained(FLUSH_SECONDS)
        await self._parts.checkpointer.flush()

    async def _in_time(self, checkpoint: Awaitable[None]) -> None:
        try:
            async with asyncio.timeout(FLUSH_SECONDS):
                await checkpoint
        except TimeoutError as error:
            raise RequestTimeout(f"the checkpoint takes longer than {FLUSH_SECONDS} seconds") from error

    async def close(self, clean: bool = True) -> None:
        """Stop. Adds not yet durable are answered BookieUnavailable; a clean stop leaves nothing to replay.

        A clean stop that fails or takes longer than ``CLOSE_SECONDS`` becomes an unclean one,
        which the next boot replays. A part that cannot be closed keeps no other from it; then the
        node ends, and holds the directory until then, unless it was only a full disk.
        """
        if self._closed:
            return
        self._closed = True
        parts = self._parts
        await _closed("collector", parts.collector.close())
        parts.lacs.close()
        await parts.adds.close(BookieUnavailable.wire_code)
        parts.commits.close(BookieUnavailable.wire_code)
        clean = clean and await self._flushed_in_time()
        for task in (self._checkpoints, *self._background):
            task.cancel()
        await asyncio.gather(self._checkpoints, *self._background, return_exceptions=True)
        failures = [await _closed("journals", parts.journals.close(clean=clean))]
        parts.commits.halt(BookieUnavailable.wire_code)
        parts.read_ahead.close()
        failures += [
            await _closed("entry logs", parts.logs.close()),
            await _closed("index", parts.index.close()),
        ]
        bad = [failure for failure in failures if failure is not None and not isinstance(failure, DiskFull)]
        if not bad:
            # Or else a write may still be on its way to the device: the lock goes with the process, after the write.
            bad = [failure for failure in [await _closed("data directory", parts.directory.release())] if failure]
        if bad:
            parts.fail_safe.trip(f"the bookie could not stop: {'; '.join(map(repr, bad))}")

    async def _flushed_in_time(self) -> bool:
        """Make a clean stop true; ``False`` if it is not."""
        try:
            async with asyncio.timeout(CLOSE_SECONDS):
                await self.flush()
        except (TimeoutError, TallybookError):
            return False
        return not self._parts.fail_safe.reason

    def _stop_answering(self) -> None:
        """The node ends: nothing is acked from now on."""
        self._parts.commits.halt(DiskFailed.wire_code)
        self._parts.adds.refuse(DiskFailed.wire_code)
        self._parts.lacs.close()

    def stats(self) -> dict[str, float]:
        """Numbers for metrics: what is held, what was done, what was refused."""
        parts = self._parts
        return {
            "adds_batches_total": parts.adds.taken_batches,
            "adds_bytes_total": parts.adds.taken_bytes,
            "adds_waiting": parts.adds.waiting_count,
            "inflight_bytes": parts.admission.inflight_bytes,
            "max_inflight_bytes": parts.admission.max_inflight_bytes,
            "recovery_inflight_bytes": parts.admission.recovery_bytes,
            "max_recovery_inflight_bytes": parts.admission.max_recovery_bytes,
            "write_cache_bytes": parts.cache.held_bytes,
            "max_write_cache_bytes": parts.cache.max_bytes,
            **self._caches(),
            "ledgers_in_memory": len(parts.table),
            "ledgers_dirty": parts.table.dirty_count,
            "max_ledgers_dirty": parts.admission.max_dirty_ledgers,
            "limbo_events_total": parts.table.limbo.events,
            "ledgers_in_limbo": parts.collector.ledgers_in_limbo,
            "ledgers_deleted": parts.collector.deleted_ledgers,
            "ledgers_missing": parts.collector.missing_ledgers,
            "collection_held": int(parts.collector.held),
            "metadata_behind": int(parts.collector.check.behind),
            "lac_waiters": parts.lacs.waiter_count,
            "reads_cached_batches_total": parts.reads.cached_batches,
            "reads_stored_batches_total": parts.reads.stored_batches,
            "checkpoints_total": parts.checkpointer.checkpoints,
            "flushed_batches_total": parts.flush.flushed_batches,
            "flushed_bytes_total": parts.flush.flushed_bytes,
            "leftovers_dropped_total": parts.collector.dropped_leftovers,
            "ledgers_dropped_total": parts.collector.dropped_ledgers,
            "entry_logs_removed_total": parts.collector.reclaimer.removed_logs,
            "entry_log_bytes_removed_total": parts.collector.reclaimer.removed_bytes,
            "index_compactions_total": parts.collector.upkeep.compactions,
            "compacted_bytes_total": parts.collector.reclaimer.copied_bytes,
            "damaged_batches": len(parts.damage),
            "damage_met_total": parts.damage.met,
            "index_untold_total": parts.damage.untold,
            "scrub_rounds_total": parts.scrub.rounds,
            "scrubbed_bytes_total": parts.scrub.checked_bytes,
            "entry_log_bytes": parts.logs.durable_bytes,
            "collector_rounds_total": parts.collector.rounds,
            "collector_failures_total": parts.collector.failures,
            "scrub_failures_total": parts.scrub.failures,
            **parts.journals.stats(),
            "records_total": parts.commits.last_record,
            "records_durable_total": parts.commits.durable_record,
            "compaction_suspended": float(self.compaction_suspended),
            "read_only": float(self.read_only),
            "disk_used_fraction": parts.disk_watch.used_part,
            "disk_free_bytes": parts.disk_watch.free_bytes,
            "disk_full_seconds": parts.flush.full_disk.seconds,
            "cache_stall_seconds": parts.adds.cache_stalls.seconds,
            "journal_stall_seconds": parts.adds.journal_stalls.seconds,
            **{
                f"refused_{why.replace(' ', '_')}_total": parts.admission.refusals.get(why, 0)
                for why in REFUSAL_REASONS
            },
        }

    def _caches(self) -> dict[str, float]:
        """What is kept in memory, and how much of it there may be."""
        parts = self._parts
        return {
            "index_cache_bytes": parts.index.cache_bytes.held,
            "max_index_cache_bytes": parts.index.cache_bytes.most,
            **{f"index_{stat}": figure for stat, figure in parts.index.figures._asdict().items()},
            "open_entry_logs": len(parts.logs.open_files),
            "max_open_entry_logs": parts.logs.open_files.max_open,
            "read_cache_bytes": parts.read_cache.held_bytes,
            "max_read_cache_bytes": parts.read_cache.max_bytes,
            "read_cache_hits_total": parts.read_cache.hits,
            "read_cache_misses_total": parts.read_cache.misses,
            "read_ahead_bytes": parts.read_ahead.held_bytes,
            "max_read_ahead_bytes": parts.read_ahead.max_bytes,
            "read_ahead_batches_total": parts.read_ahead.read_batches,
            "read_ahead_used_batches_total": parts.read_ahead.used_batches,
            "settled_ledgers": len(parts.settled),
            "max_settled_ledgers": MAX_REMEMBERED,
            "settled_hits_total": parts.settled.hits,
            "settled_lookups_total": parts.settled.lookups,
        }

    def readings(self) -> dict[str, Reading]:
        """The same, and how long things took."""
        parts = self._parts
        found: dict[str, Reading] = {
            **self.stats(),
            **parts.boot_times.readings(),
            "add_seconds": parts.commits.add_seconds,
            **parts.journals.spreads(),
        }
        for stat, meter in (
            ("reads", parts.reads.meter),
            ("lookups", parts.lookups),
            ("log_reads", parts.logs.reads),
            ("checkpoints", parts.checkpointer.meter),
            ("collections", parts.collector.meter),
        ):
            found |= meter.readings(stat)
        for stage, meter in parts.flush.stages.items():
            found[f"stage_{stage}_seconds"] = meter.seconds
            found[f"stage_{stage}_busy_seconds"] = meter.under_way.seconds
        return found


async def _closed(what: str, closing: Awaitable[None]) -> Exception | None:
    """Close one part; why it could not be closed, if so. What comes after it is closed all the same."""
    try:
        async with asyncio.timeout(PART_CLOSE_SECONDS):
            await closing
    except Exception as error:  # noqa: BLE001 - whatever it is, the other parts must be closed
        _log.error("part of a bookie could not be closed", what=what, error=repr(error))
        return error
    return None


def _in_doubt(ledger_id: int) -> EntryUnknown:
    return EntryUnknown(f"ledger {ledger_id}: its id may have been handed out twice: it stays in limbo")
