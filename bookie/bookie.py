"""A bookie: its requests, and its orderly stop.

``Bookie`` implements ``port.LedgerStore`` by passing each request to one part (``parts.py``). All parts share the
``Ledger`` objects of ``ledgers/table.py`` and pass records to the journals through ``write/pending_acks.py``. In the
background, checkpoints (storage/checkpoint.py) move batches to entry logs and index. ``process/assembly.py`` builds
the parts.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Sequence
from contextlib import asynccontextmanager
from typing import Final

from tallybook.core.answers import BookieStatus, DamagedBatch, Incarnation
from tallybook.core.errors import BookieUnavailable, DiskFailed, DiskFull, OtherLedger, RequestTimeout, TallybookError
from tallybook.core.ids import MAX_ID
from tallybook.core.limits import MAX_PAGE
from tallybook.runtime.clock import Clock
from tallybook.runtime.logging import logger
from tallybook.runtime.metrics.usage import MetricValue

from .metrics import BOOKIE_METRICS
from .parts import BookieParts
from .storage.checkpoint import FLUSH_SECONDS

_log = logger("bookie")

CLOSE_SECONDS: Final = 30.0
"""How long a clean stop may take before it becomes an unclean one."""

PART_CLOSE_SECONDS: Final = 90.0
"""How long one part may take to close; a device that hangs must not keep the process alive."""


class Bookie:
    """One bookie's ledgers on a disk. ``boot.boot`` creates it."""

    def __init__(
        self,
        parts: BookieParts,
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
        self._closed = False
        parts.fail_safe.on_trip(self._stop_answering)
        self.bookie_id = parts.directory.cookie.bookie_id
        self.incarnation = Incarnation(parts.directory.cookie.directory_uuid, boot)
        self.max_batch_bytes = parts.admission.max_batch_bytes
        # Requests of ``port.LedgerStore`` that one part answers. Its method is bound here instead of wrapped, so that
        # signature and docstring exist once, in the part, and an add costs no further call.
        self.add = parts.adds.take
        self.force = parts.adds.force
        self.fence = parts.fences.fence
        self.read_batches = parts.reads.read
        self.recovery_read = parts.reads.recovery_read
        self.read_entry = parts.reads.read_entry
        self.read_lac = parts.lacs.read
        self.wait_lac = parts.lacs.wait
        self.write_lac = parts.lacs.write
        self.held = parts.held.ranges
        self.held_ledgers = parts.held.ledgers
        self.trace = parts.tracer.trace
        self.end_limbo = parts.limbo_end.end
        # Operation.
        self.delete_ledger = parts.fences.delete
        self.collect = parts.collector.collect
        self.request_collection = parts.collector.request
        self.approve_store = parts.collector.approve_store
        self.approve_drop = parts.collector.approve_drop
        self.compare_store = parts.collector.check.compare
        self.registered = parts.limbo_marker.registered

    @asynccontextmanager
    async def identified(
        self, ledger_id: int, identity: bytes, *, for_write: bool = False, for_repair: bool = False
    ) -> AsyncIterator[None]:
        """Pin a ledger while a request that states its identity is served; see the port."""
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
        """Whether one of these keys and identities authorizes an add to the ledger; see the port."""
        async with self._parts.table.using(ledger_id) as ledger:
            await self._parts.verifiers.learn(ledger)
            return any(ledger.is_identity(identity) and ledger.fits(key) for key, identity in shown)

    async def damaged(self, after: tuple[int, int], limit: int) -> tuple[DamagedBatch, ...]:
        """Copies here that are known to be damaged; see the port, and ``Scrubber.damaged``."""
        return tuple(await self._parts.scrub.damaged(after, min(limit, MAX_PAGE)))

    async def status(self) -> BookieStatus:
        """Disk usage, mode, limbo and damage; see the port."""
        parts, limbo = self._parts, self._parts.table.limbo
        return BookieStatus(
            read_only=self.read_only,
            disk_used_fraction=parts.disk_monitor.used_part,
            free_bytes=parts.disk_monitor.free_bytes,
            entry_log_bytes=parts.logs.durable_bytes,
            entry_logs=len(parts.logs.log_ids),
            journal_used_fraction=parts.journals.used_fraction,
            ledgers_in_memory=len(parts.table),
            damaged_batches=len(parts.damage),
            limbo_events=limbo.events,
            limbo_below=MAX_ID if limbo.awaits_registration else limbo.below,
            scrub_rounds=parts.scrub.passes,
            uptime_seconds=self._clock.monotonic() - self._began,
            directories=parts.disk_monitor.directories,
        )

    @property
    def read_only(self) -> bool:
        """Whether ordinary adds are refused. Reads, fences and recovery adds are still served."""
        return self._parts.read_only

    def set_read_only(self, read_only: bool) -> None:
        """Refuse ordinary adds, or accept them again."""
        self._parts.admission.set_read_only(read_only)

    @property
    def compaction_suspended(self) -> bool:
        """Whether compaction of entry logs is suspended, until resumed or the bookie restarts."""
        return self._parts.collector.compaction_suspended

    def suspend_compaction(self, suspended: bool) -> None:
        """Suspend compaction after the entry log in progress, or resume it."""
        self._parts.collector.suspend_compaction(suspended)

    async def flush(self) -> None:
        """Checkpoint everything taken so far; afterwards no journal is needed to read it.

        Raises:
            DiskFailed: the device failed, and the process ends.
            RequestTimeout: the journals and the checkpoint take longer than ``FLUSH_SECONDS`` together: the disk is
                full, or very slow.
        """
        late = "the journals have not written what was taken"
        try:
            async with asyncio.timeout(FLUSH_SECONDS):
                await self._parts.journals.drained()
                late = "the checkpoint has not ended"
                await self._parts.checkpointer.flush()
        except TimeoutError as error:
            raise RequestTimeout(f"after {FLUSH_SECONDS:.0f} seconds, {late}") from error

    async def close(self, clean: bool = True) -> None:
        """Stop. Adds not yet durable are answered BookieUnavailable; after a clean stop there is nothing to replay.

        A clean stop that fails or takes longer than ``CLOSE_SECONDS`` becomes an unclean one, and the next boot replays
        the journal. A part that fails to close does not keep the others from closing; unless only a full disk is the
        cause, the process then ends, and holds the directory until it does.
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
            # With failures, a write may still be on its way to the device: keep the lock until the process has ended.
            bad = [failure for failure in [await _closed("data directory", parts.directory.release())] if failure]
        if bad:
            parts.fail_safe.trip(f"the bookie could not stop: {'; '.join(map(repr, bad))}")

    async def _flushed_in_time(self) -> bool:
        """Flush for a clean stop; ``False`` if that failed or timed out."""
        try:
            async with asyncio.timeout(CLOSE_SECONDS):
                await self.flush()
        except (TimeoutError, TallybookError):
            return False
        return not self._parts.fail_safe.reason

    def _stop_answering(self) -> None:
        """Stop all acks: the process ends."""
        self._parts.commits.halt(DiskFailed.wire_code)
        self._parts.adds.refuse(DiskFailed.wire_code)
        self._parts.lacs.close()

    def stats(self) -> dict[str, float]:
        """Values of ``metrics.BOOKIE_METRICS`` without histograms."""
        return BOOKIE_METRICS.numbers(self._parts)

    def readings(self) -> dict[str, MetricValue]:
        """Values of ``metrics.BOOKIE_METRICS``."""
        return BOOKIE_METRICS.readings(self._parts)


async def _closed(what: str, closing: Awaitable[None]) -> Exception | None:
    """Close one part and return the error, if any, so that the remaining parts are closed as well."""
    try:
        async with asyncio.timeout(PART_CLOSE_SECONDS):
            await closing
    except Exception as error:  # noqa: BLE001 - after any error, the other parts must be closed
        _log.error("part of a bookie could not be closed", what=what, error=repr(error))
        return error
    return None
