"""The collector of garbage: drops, round by round, the ledgers that need not be kept, and removes dead entry logs.

A round goes through all ledgers with rows in the index, in pages, and asks the metadata for
each, at a pace. What ``garbage.Judge`` condemns is dropped, in this order:

1. it is refused for ever: the deletion is durable in the journal before anything is taken away.
   From then on every answer about it is NoSuchLedger, and replay takes none of its batches;
2. the caches let go of it. What a checkpoint is writing of it just now would be put into the
   index after it was dropped from there, so such a ledger waits for the next round;
3. one write batch of the index takes its rows and leaves a *tombstone*, some 20 bytes that stay:
   it refuses the ledger when the journal has long forgotten the deletion.

A crash before 1 is durable leaves the ledger as it was; after it, the ledger answers nothing,
and a later round, which meets its rows again, does the rest.

Then entry logs: one in whose map all ledgers are gone (a tombstone, and no row) is unlinked,
after the index is durable, because rows that come back must find their log. Which log is looked
at is narrowed by ``garbage.Witnesses``. Logs that are partly dead stay as they are.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Final, Protocol

from tallybook.core.config import CollectionSettings
from tallybook.core.errors import Busy, DamagedFile, DiskFailed, EntryUnknown, OutOfFiles, TallybookError, is_defect
from tallybook.core.ids import NO_ENTRY
from tallybook.core.marks import sometimes
from tallybook.runtime.clock import Clock
from tallybook.runtime.tasks import Tasks

from .fates import FateLookup
from .garbage import Fate, Judge, Witnesses
from .ledger_state import TOMBSTONE, decode_row, encode_row
from .pace import Pace
from .storage.entry_log_format import LedgerShare
from .storage.index import WRITE_BATCH_ROWS, Index
from .storage.read_cache import ReadCache
from .storage.write_cache import WriteCache

log = logging.getLogger(__name__)

PAGE_LEDGERS: Final = WRITE_BATCH_ROWS // 2
"""Ledgers looked at together: the rows of all of them go, and their tombstones come, in one write batch."""

LOOKUPS_AT_ONCE: Final = 4
LOOKUP_SECONDS: Final = 10.0
"""Longest wait for one answer of the metadata."""


class RemovableLogs(Protocol):
    """The part of the entry logs that can be let go of."""

    @property
    def settled_log_ids(self) -> list[int]:
        """Logs to which nothing is added any more and that may be removed, ascending."""

    async def complete_map(self, log_id: int) -> Mapping[int, LedgerShare]:
        """Which ledgers have batches in a log; ``DamagedFile`` where that is not certain."""

    async def remove(self, log_id: int) -> int:
        """Delete a log, durably; how many bytes it had."""


@dataclass(frozen=True, slots=True)
class Holdings:
    """Where a bookie has what it holds.

    Attributes:
        refuse: makes a ledger refused for ever, durably; ``Busy`` where there is no room for that now.
    """

    index: Index
    logs: RemovableLogs
    cache: WriteCache
    read_cache: ReadCache
    refuse: Callable[[int], Awaitable[None]]


class Collector:
    """Drops what need not be kept.

    Args:
        fate_of: what the metadata say of a ledger.
        id_counter: all ledger ids ever handed out lie below it; a linearizable read.
        fail_safe: ends the node; called with the reason when the device failed in the middle of a change.
    """

    def __init__(
        self,
        held: Holdings,
        fate_of: FateLookup,
        id_counter: Callable[[], Awaitable[int]],
        settings: CollectionSettings,
        *,
        clock: Clock,
        tasks: Tasks,
        fail_safe: Callable[[str], None],
    ) -> None:
        self._held = held
        self._fate_of = fate_of
        self._id_counter = id_counter
        self._interval_seconds = settings.interval_ms / 1000
        self._pace = Pace(clock, settings.lookups_per_second)
        self._clock = clock
        self._tasks = tasks
        self._fail_safe = fail_safe
        self._judge = Judge()
        self._witnesses = Witnesses()
        self._round = asyncio.Lock()
        self._rounds: asyncio.Task[None] | None = None
        self._change: asyncio.Task[None] | None = None
        self.rounds = 0
        """Rounds that came to their end."""
        self.dropped_ledgers = 0
        self.removed_logs = 0
        self.removed_bytes = 0

    def start(self) -> None:
        """Begin with the rounds, unless the settings want none."""
        if self._interval_seconds:
            self._rounds = self._tasks.spawn(self._run_for_ever(), name="collector", essential=True)

    async def close(self) -> None:
        """End the rounds, and wait for the change that is under way: half of one would leave storage unusable."""
        if self._rounds is not None:
            self._rounds.cancel()
            await asyncio.gather(self._rounds, return_exceptions=True)
        if self._change is not None:
            await asyncio.gather(self._change, return_exceptions=True)

    async def collect(self) -> None:
        """One round.

        Raises:
            EntryUnknown: the index cannot be read; what was found until then was dropped.
            DiskFull: there is no room for the changes; the next round does them.
            DiskFailed: the device failed, and the node ends.
        """
        async with self._round:
            self._judge.begin(await self._counter())
            async with aclosing(self._pages()) as pages:
                async for page in pages:
                    garbage = await self._garbage_of(page)
                    if garbage:
                        await self._undisturbed(self._drop(garbage))
            await self._undisturbed(self._remove_logs())
            self.rounds += 1

    async def _run_for_ever(self) -> None:
        while True:
            await self._clock.sleep(self._interval_seconds)
            try:
                await self.collect()
            except DiskFailed as error:
                self._fail_safe(f"the collector failed: {error!r}")
                raise
            except TallybookError as error:
                if is_defect(error):
                    raise
                log.warning("garbage is collected later: %s", error)

    async def _undisturbed(self, change: Coroutine[Any, Any, None]) -> None:
        """Make a change to its end, even if the round is cancelled."""
        self._change = self._tasks.spawn(change, name="collector's change")
        await asyncio.shield(self._change)

    # -- which ledgers ------------------------------------------------------------------------

    async def _counter(self) -> int | None:
        try:
            async with asyncio.timeout(LOOKUP_SECONDS):
                return await self._id_counter()
        except (TimeoutError, TallybookError) as error:
            if isinstance(error, TallybookError) and is_defect(error):
                raise
            return None

    async def _pages(self) -> AsyncGenerator[list[int], None]:
        """All ledgers that have rows, so many at a time."""
        after = -1
        while page := await self._held.index.ledgers_with_rows(after, PAGE_LEDGERS):
            yield page
            after = page[-1]

    async def _garbage_of(self, page: Sequence[int]) -> list[int]:
        garbage: list[int] = []
        for start in range(0, len(page), LOOKUPS_AT_ONCE):
            asked = page[start : start + LOOKUPS_AT_ONCE]
            await self._pace.spend(len(asked))
            fates = await asyncio.gather(*map(self._ask, asked))
            garbage += [each for each, fate in zip(asked, fates, strict=True) if self._judge.is_garbage(each, fate)]
        return garbage

    async def _ask(self, ledger_id: int) -> Fate:
        try:
            async with asyncio.timeout(LOOKUP_SECONDS):
                return await self._fate_of(ledger_id)
        except TimeoutError:
            return Fate.UNKNOWN

    # -- dropping -----------------------------------------------------------------------------

    async def _drop(self, ledger_ids: Sequence[int]) -> None:
        """Steps 1 to 3."""
        held = self._held
        refused = await asyncio.gather(*map(self._refuse, ledger_ids))
        gone: list[int] = []
        # In one turn: what no buffer holds now, none will hold again.
        for ledger_id, is_refused in zip(ledger_ids, refused, strict=True):
            if is_refused:
                held.cache.forget(ledger_id)
                held.read_cache.forget(ledger_id)
                if held.cache.flushes(ledger_id):
                    sometimes("collector: a checkpoint is writing what is to be dropped")
                else:
                    gone.append(ledger_id)
        if gone:
            sometimes("collector: drops ledgers")
            tombstones = {ledger_id: encode_row(ledger_id, TOMBSTONE) for ledger_id in gone}
            await held.index.apply((), tombstones, drop_ledgers=gone)
            self._witnesses.dropped(gone)
            self.dropped_ledgers += len(gone)
            log.info("dropped %d ledgers from %d to %d", len(gone), gone[0], gone[-1])

    async def _refuse(self, ledger_id: int) -> bool:
        try:
            await self._held.refuse(ledger_id)
        except Busy:
            return False
        return True

    # -- entry logs ---------------------------------------------------------------------------

    async def _remove_logs(self) -> None:
        logs = self._held.logs
        doubtful = self._witnesses.without(logs.settled_log_ids)
        if not doubtful:
            return
        # What was dropped and is not durable comes back after a crash, and must find its log.
        await self._held.index.sync()
        for log_id in doubtful:
            ledger_ids = await self._ledgers_in(log_id)
            if ledger_ids is None:
                continue
            witness = await self._first_held(ledger_ids)
            if witness is not None:
                self._witnesses.vouch(log_id, witness)
                continue
            sometimes("collector: removes an entry log")
            self.removed_bytes += await logs.remove(log_id)
            self.removed_logs += 1
            log.info("removed entry log %d: none of its ledgers is kept", log_id)

    async def _ledgers_in(self, log_id: int) -> list[int] | None:
        """The ledgers that have batches in a log, the youngest first: it is kept longest. ``None``: it is to stay."""
        try:
            return sorted(await self._held.logs.complete_map(log_id), reverse=True)
        except DamagedFile as error:
            log.warning("an entry log stays, because not all that is in it can be told: %s", error)
            self._witnesses.keep(log_id)
        except (DiskFailed, OutOfFiles) as error:
            log.warning("entry log %d is looked at later: %s", log_id, error)
        return None

    async def _first_held(self, ledger_ids: Iterable[int]) -> int | None:
        for ledger_id in ledger_ids:
            if not await self._is_gone(ledger_id):
                return ledger_id
        return None

    async def _is_gone(self, ledger_id: int) -> bool:
        """Whether the index says, for certain, that the ledger was dropped."""
        index = self._held.index
        try:
            state = await index.load_state(ledger_id)
            if state is None or not decode_row(ledger_id, state).deleted:
                return False
            return await index.last_entry(ledger_id) == NO_ENTRY
        except (EntryUnknown, DamagedFile):
            return False
