"""Scrub: reads everything again while there are other copies, and looks whether index and entry logs agree.

A copy that rots is noticed when somebody reads it, which may be never, until the other copies are gone. So a bookie
goes through its logs, one after the other, at a pace at which it is through once in a while:

- each batch that counts is read and checked, as for a reader; what fails is put on the list of damage, to be mended
  from another bookie;
- what the index has in a log must be in it: if fewer batches are found than rows point there, those are looked for;
- of a log that still grows in the end, what the index has in it is read;
- so is every row of the index: one that is damaged is put on the list. A part that cannot be read is passed over, and
  where it is damaged, and not only refused by the device just now, the index is given up: nothing that is put there
  could be found. It serves what it can, and the next start makes another one from the entry logs.

How fast it reads is said in ``scrub_round.py``. Where it stands is noted in a file, so that a bookie that starts often
comes to the end of its logs, too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Container, Mapping, Sequence
from contextlib import aclosing
from typing import Final, NamedTuple, Protocol

from tallybook.core.answers import DamagedBatch
from tallybook.core.config import ScrubSettings
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
from tallybook.core.marks import sometimes
from tallybook.runtime.clock import Clock
from tallybook.runtime.disk import Disk
from tallybook.runtime.logging import logger

from .damage import DamageList, batch_of
from .scrub_round import LogSizes, ScrubRound
from .storage.index import Index
from .storage.live_bytes import Measured
from .storage.location import IndexRow
from .storage.log_contents import LogContents, in_pieces, size_of
from .storage.told import RowKey, Told
from .text_record import MAX_RECORD_BYTES, decode_record, encode_record

_log = logger("bookie.scrub")

KIND: Final = "scrub"
VERSION: Final = 1
PAGE_ROWS: Final = 1_000
MAX_LOOKS: Final = 100
"""Batches that are read again for one question what is damaged."""
RETRY_MS: Final = 20
"""When to ask again where they all were mended."""
PAUSE_SECONDS: Final = 60.0
"""Between two rounds, at least, and between two looks whether a log was finished meanwhile; a tenth of the period where
that is less."""
ON_TIME: Final = 0.9
"""A round begins after so much of a period. What is read just before it rots is read again within a period, then, even
if the next round gets to it a little later than this one."""
LATE_AFTER_ERROR: Final = 0.01
"""Part of a period after which a round that failed is tried again, if that is longer than the pause."""
STEP_SECONDS: Final = 1.0
"""How long a wait goes by one rate: the bookie may be filled meanwhile."""


class ReadableLogs(LogSizes, Protocol):
    """The part of the entry logs that a scrub reads."""

    async def read_many(self, rows: Sequence[IndexRow]) -> list[bytes]:
        """The batches of ``rows``, up to the first that cannot be had."""


class _Walk(NamedTuple):
    """One way through a log."""

    batches: int
    """That count, and were found."""
    whole: bool
    """Whether there are no others."""


class Scrub:
    """Goes through the logs, round after round.

    Args:
        note_path: file in which it is noted how far a round has come.
        give_up_index: lets the next start make another index.
        measured: told how much of a log counts, now that it is known exactly.
    """

    def __init__(
        self,
        contents: LogContents,
        index: Index,
        logs: ReadableLogs,
        damage: DamageList,
        settings: ScrubSettings,
        *,
        disk: Disk,
        note_path: str,
        clock: Clock,
        give_up_index: Callable[[], Awaitable[None]],
        measured: Callable[[int, Measured], None],
    ) -> None:
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
        self._round = self._new_round(after=0)
        self.rounds = 0
        """Rounds that came to their end."""
        self.failures = 0
        """How often it had to go on later."""
        self.checked_bytes = 0

    async def run_for_ever(self) -> None:
        """Scrub, round after round. The first one leaves a bookie that starts the time to do so."""
        await self._clock.sleep(self._pause_seconds)
        is_looked_for_lost = False
        while True:
            try:
                if not is_looked_for_lost:
                    # What lay in a log that is not there any more need not wait for a round to be given back.
                    await self._agree({}, growing=())
                    is_looked_for_lost = True
                await self.round()
                await self._rest()
            except TallybookError as error:
                if is_defect(error):
                    raise
                self.failures += 1
                _log.warning("scrub goes on later", error=error.message)
                # What fails may be the last step of a round, and go on failing: not all before it is read every minute.
                late = self._settings.period_s * LATE_AFTER_ERROR if is_looked_for_lost else 0
                await self._clock.sleep(max(self._pause_seconds, late))

    async def _rest(self) -> None:
        """Until the next round. What is finished meanwhile does not wait for that: it may be far away."""
        # What was left of a round that was cut off had only its part of a period.
        until = max(self._clock.monotonic(), self._round.ends_at) + self._pause_seconds
        while (left := until - self._clock.monotonic()) > 0:
            await self._clock.sleep(min(left, self._pause_seconds))
            try:
                await self._read_finished(until)
            except TallybookError as error:
                if is_defect(error):
                    raise
                self.failures += 1
                _log.warning("scrub goes on later", error=error.message)

    async def _read_finished(self, until: float) -> None:
        in_part = set[int]()
        while (log_id := self._round.next_log(now := self._clock.monotonic())) is not None and now < until:
            if not (await self._scrub(log_id)).whole:
                in_part.add(log_id)
            self._round.passed(log_id)
        if in_part:
            await self._check_rows_into(in_part)

    @property
    def _pause_seconds(self) -> float:
        return min(PAUSE_SECONDS, self._settings.period_s / 10)

    async def round(self) -> None:
        """Go through all logs, from where the round before was cut off; then see whether the index agrees.

        Raises:
            EntryUnknown: the index is not there to be asked.
            DiskFailed, DiskFull: it cannot be noted how far it has come.
        """
        self._round = self._new_round(after=await self._noted())
        found: dict[int, int] = {}
        while (log_id := self._round.next_log(self._clock.monotonic())) is not None:
            found[log_id] = (await self._scrub(log_id)).batches
            self._round.passed(log_id)
            await self._note(self._round.passed_up_to)
        # Of a log that still grows, only what has rows is known to be there: a bookie may take years to fill its last.
        await self._agree(found, growing=self._round.growing())
        await self._note(0)
        self.rounds += 1

    def _new_round(self, *, after: int) -> ScrubRound:
        seconds = ON_TIME * self._settings.period_s - self._pause_seconds
        return ScrubRound(self._logs, self._settings, after=after, now=self._clock.monotonic(), seconds=seconds)

    async def _scrub(self, log_id: int) -> _Walk:
        """Check all that counts in a log, as far as it says what is in it."""
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
            self._measured(log_id, Measured(everything, live_bytes))
        except (DamagedFile, NewerFormat, EntryUnknown, OutOfFiles) as error:
            # What rows point at in it is looked for one by one.
            _log.warning("entry log cannot be scrubbed as a whole", log_id=log_id, error=error.message)
            return _Walk(count, whole=False)
        return _Walk(count, whole=True)

    async def _check(self, rows: Sequence[IndexRow]) -> None:
        """Read these batches, never more than a piece of them at a time."""
        for piece in in_pieces(rows):
            left = piece
            while left:
                count, size = await self._read(left)
                left = left[count:]
                self.checked_bytes += size
                await self._wait_for(size)

    async def _wait_for(self, size: int) -> None:
        """Give what was read the time that it is to take."""
        left = float(size)
        while left >= 1:
            began = self._clock.monotonic()
            rate = self._round.bytes_per_second(began)
            await self._clock.sleep(min(left / rate, STEP_SECONDS))
            left -= rate * (self._clock.monotonic() - began)
        # Not before: of what is left, this is a part, and may be all.
        self._round.read(size)

    async def _read(self, rows: Sequence[IndexRow]) -> tuple[int, int]:
        """Read up to the first that cannot be had; how many batches are dealt with, and their bytes."""
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
        """Batches that are known to be damaged, behind this ledger and first entry; those that still are.

        None only if there are no more of them. Each is read, so one question costs about ``MAX_LOOKS`` reads at most.

        Raises:
            Busy: so many were not damaged any more, and there are others. The next question need not look at them.
        """
        still: list[DamagedBatch] = []
        looks = 0
        while not still and (page := self._damage.page(after, min(limit, MAX_LOOKS))):
            if looks >= MAX_LOOKS:
                raise Busy("what was damaged is mended, and the list is looked through", retry_after_ms=RETRY_MS)
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
        """See whether all that rows point at was found in the logs that were gone through, and no log is missing.

        Args:
            growing: logs that were not, whose batches are read on the way.
        """
        rows, present = await self._rows_by_log(growing), set(self._logs.log_ids)
        # Fewer rows than batches is what drops leave behind.
        lacking = {
            log_id for log_id, count in rows.items() if count > found.get(log_id, count) or log_id not in present
        }
        if lacking:
            sometimes("scrub: rows point at what a log does not say that it has")
            await self._check_rows_into(lacking)

    async def _rows_by_log(self, growing: Container[int]) -> Counter[int]:
        counts: Counter[int] = Counter()
        lost = False
        async with aclosing(self._pages()) as pages:
            async for page in pages:
                counts.update(row.location.log_id for row in page.rows)
                for untold in page.untold:
                    sometimes("scrub: passes over what the index cannot tell")
                    _log.error(
                        "scrub found damage in the index",
                        first_ledger_id=untold.begin.ledger_id,
                        first_entry_id=untold.begin.first_entry_id,
                        last_ledger_id=untold.end.ledger_id,
                        last_entry_id=untold.end.first_entry_id,
                    )
                    self._damage.pass_over(untold)
                    lost = lost or not (untold.is_row or untold.refused)
                await self._check([row for row in page.rows if row.location.log_id in growing])
        if lost:
            sometimes("scrub: gives the index up")
            _log.error("part of the index cannot be read: start the bookie again, and it makes another index")
            await self._give_up_index()
        return counts

    async def _check_rows_into(self, log_ids: Container[int]) -> None:
        async with aclosing(self._pages()) as pages:
            async for page in pages:
                await self._check([row for row in page.rows if row.location.log_id in log_ids])

    async def _pages(self) -> AsyncGenerator[Told, None]:
        at: RowKey | None = RowKey(0, 0)
        while at is not None:
            page = await self._index.survey_from(at, PAGE_ROWS)
            yield page
            at = page.behind

    # -- where it stands ----------------------------------------------------------------------

    async def _noted(self) -> int:
        data = await self._disk.read_file(self._note_path, MAX_RECORD_BYTES)
        try:
            return 0 if data is None else int(decode_record(KIND, VERSION, data, self._note_path)["after"])
        except NewerFormat as error:
            # It saves work, and no more: a newer version that comes back finds what it has written.
            self._notes = False
            _log.warning("the scrub begins anew and notes nothing", error=error.message)
            return 0
        except (DamagedFile, KeyError, ValueError):
            return 0

    async def _note(self, log_id: int) -> None:
        if self._notes:
            await self._disk.replace_file(self._note_path, encode_record(KIND, VERSION, {"after": str(log_id)}))
