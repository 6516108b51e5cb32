"""The scrubber: reads everything again while there are other copies, and compares index and entry logs.

A bookie reads its logs, one after the other, at a rate that completes a pass within a period (``scrub_pass.py``). Each
live batch is read and verified, as for a read; of a log that is still growing at the end of the pass, the batches with
rows. Failures are put on the damage list, to be repaired from another bookie. If fewer batches are found in a log than
rows point there, the others are searched for. Every index row is read, too; damaged rows are put on the damage list.

An unreadable part of the index is skipped; if it is damaged for good, and not only refused by the device, the index is
abandoned, since changes there could not be found again: the bookie serves what it can, and the next start rebuilds the
index from the entry logs. Progress is stored in a file, so that a bookie that restarts often completes its passes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Container, Mapping, Sequence
from contextlib import aclosing
from typing import Final, NamedTuple

from tallybook.core.answers import DamagedBatch
from tallybook.core.coverage import sometimes
from tallybook.core.errors import (
    Busy,
    DamagedFile,
    EntryCorrupt,
    EntryUnknown,
    NewerFormat,
    OutOfFiles,
    TallybookError,
    is_defect,
)
from tallybook.core.settings import ScrubSettings
from tallybook.runtime.clock import Clock
from tallybook.runtime.disk.port import Disk
from tallybook.runtime.logging import logger
from tallybook.runtime.metrics.part_metrics import PartMetrics

from ..storage.entry_log.live_bytes import LogBytes
from ..storage.entry_log.logs import EntryLogs
from ..storage.index.port import Index
from ..storage.index.survey import RangeSurvey, RowKey
from ..storage.location import IndexRow
from ..storage.log_contents import LogContents, in_pieces, size_of
from ..storage.text_record import MAX_RECORD_BYTES, decode_record, encode_record
from .damage_list import DamageList, batch_of
from .scrub_pass import ScrubPass

_log = logger("bookie.scrub")

KIND: Final = "scrub"
VERSION: Final = 1
PAGE_ROWS: Final = 1_000
MAX_REREADS: Final = 100
"""Batches that are read again for one ``damaged`` request."""
RETRY_MS: Final = 20
"""Retry hint if all of them were repaired."""
PAUSE_SECONDS: Final = 60.0
"""Minimum pause between two passes, and between two checks for finished logs; a tenth of the period if that is less."""
START_PART: Final = 0.9
"""A pass begins after this part of a period. Then a batch that rots just after it was read is read again within a
period, even if the next pass reaches it a little later than this one."""
LATE_AFTER_ERROR: Final = 0.01
"""Part of a period after which a failed pass is retried, if that is longer than the pause."""
STEP_SECONDS: Final = 1.0
"""How long a wait uses one rate: the bookie may be written meanwhile."""


class _LogWalk(NamedTuple):
    """The result of reading one log."""

    batches: int
    """Live batches that were found."""
    whole: bool
    """Whether these are all of them."""


class Scrubber:
    """Scrubs the logs, pass after pass.

    Args:
        note_path: file with the progress of a pass.
        give_up_index: makes the next start rebuild the index.
        measured: called with the live bytes of a log, which are known exactly after reading it.
        spend: waits until background work of so many bytes may begin.
    """

    def __init__(
        self,
        contents: LogContents,
        index: Index,
        logs: EntryLogs,
        damage: DamageList,
        settings: ScrubSettings,
        *,
        disk: Disk,
        note_path: str,
        clock: Clock,
        give_up_index: Callable[[], Awaitable[None]],
        measured: Callable[[int, LogBytes], None],
        spend: Callable[[int], Awaitable[None]],
    ) -> None:
        self._spend = spend
        self._contents = contents
        self._index = index
        self._logs = logs
        self._damage = damage
        self._settings = settings
        self._disk = disk
        self._note_path = note_path
        self._clock = clock
        self._give_up_index = give_up_index
        self._measured = measured
        self._notes = True
        self._pass = self._new_pass(after=0)
        self.passes = 0
        """Completed passes."""
        self.failures = 0
        """How often it had to pause after an error."""
        self.checked_bytes = 0

    async def run_for_ever(self) -> None:
        """Run passes until cancelled. The first one starts after a delay, so that the bookie can start undisturbed."""
        await self._clock.sleep(self._pause_seconds)
        has_checked_for_lost = False
        while True:
            try:
                if not has_checked_for_lost:
                    # Damage in a log that no longer exists need not wait for the end of a pass.
                    await self._agree({}, growing=())
                    has_checked_for_lost = True
                await self.run_pass()
                await self._rest()
            except TallybookError as error:
                if is_defect(error):
                    raise
                self.failures += 1
                _log.warning("scrub postponed", error=error.message)
                # If the last step of a pass keeps failing, the whole pass must not be repeated every minute.
                late = self._settings.period_s * LATE_AFTER_ERROR if has_checked_for_lost else 0
                await self._clock.sleep(max(self._pause_seconds, late))

    async def _rest(self) -> None:
        """Wait for the next pass; read logs that are finished meanwhile, since that may take long."""
        # The rest of an interrupted pass had only its part of a period.
        until = max(self._clock.monotonic(), self._pass.ends_at) + self._pause_seconds
        while (left := until - self._clock.monotonic()) > 0:
            await self._clock.sleep(min(left, self._pause_seconds))
            try:
                await self._read_finished(until)
            except TallybookError as error:
                if is_defect(error):
                    raise
                self.failures += 1
                _log.warning("scrub postponed", error=error.message)

    async def _read_finished(self, until: float) -> None:
        in_part = set[int]()
        while (log_id := self._pass.next_log(now := self._clock.monotonic())) is not None and now < until:
            if not (await self._scrub(log_id)).whole:
                in_part.add(log_id)
            self._pass.passed(log_id)
        if in_part:
            await self._check_rows_into(in_part)

    @property
    def _pause_seconds(self) -> float:
        return min(PAUSE_SECONDS, self._settings.period_s / 10)

    async def run_pass(self) -> None:
        """Run one pass from where the previous one was interrupted; then compare the index.

        Raises:
            EntryUnknown: the index cannot be read.
            DiskFailed, DiskFull: the progress cannot be stored.
        """
        self._pass = self._new_pass(after=await self._noted())
        found: dict[int, int] = {}
        while (log_id := self._pass.next_log(self._clock.monotonic())) is not None:
            found[log_id] = (await self._scrub(log_id)).batches
            self._pass.passed(log_id)
            await self._note(self._pass.passed_up_to)
        # Of a growing log, only batches with rows are known to exist: a bookie may take years to fill its last log.
        await self._agree(found, growing=self._pass.growing())
        await self._note(0)
        self.passes += 1

    def _new_pass(self, *, after: int) -> ScrubPass:
        seconds = START_PART * self._settings.period_s - self._pause_seconds
        return ScrubPass(self._logs, self._settings, after=after, now=self._clock.monotonic(), seconds=seconds)

    async def _scrub(self, log_id: int) -> _LogWalk:
        """Check all live batches of a log, as far as its tables are intact."""
        count = everything = live_bytes = 0
        try:
            async with aclosing(self._contents.pieces(log_id)) as pieces:
                async for piece in pieces:
                    live = await self._contents.live(piece)
                    everything, live_bytes, count = (
                        everything + size_of(piece),
                        live_bytes + size_of(live),
                        count + len(live),
                    )
                    await self._check(live)
            self._measured(log_id, LogBytes(everything, live_bytes))
        except (DamagedFile, NewerFormat, EntryUnknown, OutOfFiles) as error:
            # Batches that rows point to are searched one by one.
            _log.warning("entry log cannot be scrubbed as a whole", log_id=log_id, error=error.message)
            return _LogWalk(count, whole=False)
        return _LogWalk(count, whole=True)

    async def _check(self, rows: Sequence[IndexRow]) -> None:
        """Read these batches, at most a piece of them at a time."""
        for piece in in_pieces(rows):
            left = piece
            while left:
                count, size = await self._read(left)
                left = left[count:]
                self.checked_bytes += size
                await self._wait_for(size)

    async def _wait_for(self, size: int) -> None:
        """Wait as long as the budget of background work, and the rate of the pass, require for the bytes read."""
        await self._spend(size)
        left = float(size)
        while left >= 1:
            began = self._clock.monotonic()
            rate = self._pass.bytes_per_second(began)
            await self._clock.sleep(min(left / rate, STEP_SECONDS))
            left -= rate * (self._clock.monotonic() - began)
        # Only now: until then these bytes count as remaining.
        self._pass.read(size)

    async def _read(self, rows: Sequence[IndexRow]) -> tuple[int, int]:
        """Read up to the first unreadable batch; returns the number of batches handled, and their bytes."""
        try:
            batches = await self._logs.read_many(rows)
        except (EntryCorrupt, EntryUnknown) as error:
            if await self._index.find(rows[0].ledger_id, rows[0].first_entry_id) == rows[0]:
                self._found_damaged(rows[0], error)
            return 1, 0
        return len(batches), sum(map(len, batches))

    def _found_damaged(self, row: IndexRow, error: TallybookError) -> None:
        sometimes("scrub: found a damaged batch")
        _log.error(
            "scrub found damage",
            ledger_id=row.ledger_id,
            first_entry_id=row.first_entry_id,
            log_id=row.location.log_id,
            error=error.message,
        )
        self._damage.add(batch_of(row))

    async def damaged(self, after: tuple[int, int], limit: int) -> list[DamagedBatch]:
        """Batches on the damage list after this ledger and first entry that are still damaged.

        Empty only if there are no more. Each is read again, so one request costs about ``MAX_REREADS`` reads at most.

        Raises:
            Busy: all batches read were intact again, and there are more; the next request skips them.
        """
        still: list[DamagedBatch] = []
        looks = 0
        while not still and (page := self._damage.page(after, min(limit, MAX_REREADS))):
            if looks >= MAX_REREADS:
                raise Busy("the listed batches read so far are repaired; ask again", retry_after_ms=RETRY_MS)
            for batch in page:
                if await self._is_damaged(batch):
                    still.append(batch)
                else:
                    self._damage.mended(batch.ledger_id, batch.first_entry_id)
            looks += len(page)
            after = page[-1].ledger_id, page[-1].first_entry_id
        return still

    async def _is_damaged(self, batch: DamagedBatch) -> bool:
        try:
            row = await self._index.find(batch.ledger_id, batch.first_entry_id)
            if row is not None:
                await self._logs.read_many([row])
        except (EntryCorrupt, EntryUnknown):
            return True
        return False

    # -- index and logs -----------------------------------------------------------------------

    async def _agree(self, found: Mapping[int, int], *, growing: Container[int]) -> None:
        """Compare the number of rows with the batches found in the logs that were read, and look for missing logs.

        Args:
            growing: logs that were not read; their batches with rows are read here.
        """
        rows, present = await self._rows_by_log(growing), set(self._logs.log_ids)
        # Fewer rows than batches is normal after drops.
        lacking = {
            log_id for log_id, count in rows.items() if count > found.get(log_id, count) or log_id not in present
        }
        if lacking:
            sometimes("scrub: rows point to batches that a log does not list")
            await self._check_rows_into(lacking)

    async def _rows_by_log(self, growing: Container[int]) -> Counter[int]:
        counts: Counter[int] = Counter()
        lost = False
        async with aclosing(self._pages()) as pages:
            async for page in pages:
                counts.update(row.location.log_id for row in page.rows)
                for unreadable in page.unreadable:
                    sometimes("scrub: skips rows that the index cannot read")
                    _log.error(
                        "scrub found damage in the index",
                        first_ledger_id=unreadable.begin.ledger_id,
                        first_entry_id=unreadable.begin.first_entry_id,
                        last_ledger_id=unreadable.end.ledger_id,
                        last_entry_id=unreadable.end.first_entry_id,
                    )
                    self._damage.pass_over(unreadable)
                    lost = lost or not (unreadable.is_row or unreadable.refused)
                await self._check([row for row in page.rows if row.location.log_id in growing])
        if lost:
            sometimes("scrub: gives up the index")
            _log.error("part of the index cannot be read: restart the bookie to rebuild the index")
            await self._give_up_index()
        return counts

    async def _check_rows_into(self, log_ids: Container[int]) -> None:
        async with aclosing(self._pages()) as pages:
            async for page in pages:
                await self._check([row for row in page.rows if row.location.log_id in log_ids])

    async def _pages(self) -> AsyncGenerator[RangeSurvey, None]:
        at: RowKey | None = RowKey(0, 0)
        while at is not None:
            page = await self._index.survey_from(at, PAGE_ROWS)
            yield page
            at = page.behind

    # -- progress -----------------------------------------------------------------------------

    async def _noted(self) -> int:
        data = await self._disk.read_file(self._note_path, MAX_RECORD_BYTES)
        try:
            return 0 if data is None else int(decode_record(KIND, VERSION, data, self._note_path)["after"])
        except NewerFormat as error:
            # The file only saves work; it is left for a newer version that wrote it.
            self._notes = False
            _log.warning("the scrub starts from the beginning and stores no progress", error=error.message)
            return 0
        except (DamagedFile, KeyError, ValueError):
            return 0

    async def _note(self, log_id: int) -> None:
        if self._notes:
            await self._disk.replace_file(self._note_path, encode_record(KIND, VERSION, {"after": str(log_id)}))


METRICS: Final = (
    PartMetrics[Scrubber]()
    .counter(
        "scrub_failures_total",
        "tallybook_bookie_background_failures_total",
        "Failed passes of garbage collection or scrub, which are retried; the log has the reason.",
        lambda scrub: scrub.failures,
        ("task", "scrub"),
    )
    .counter(
        "scrub_rounds_total",
        "tallybook_bookie_scrub_rounds_total",
        "Complete scrub passes.",
        lambda scrub: scrub.passes,
    )
    .counter(
        "scrubbed_bytes_total",
        "tallybook_bookie_scrubbed_bytes_total",
        "Bytes of batches scrubbed.",
        lambda scrub: scrub.checked_bytes,
    )
)
