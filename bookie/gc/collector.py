"""The collector of garbage: drops, round by round, the ledgers that need not be kept, and removes dead entry logs.

A round goes through all ledgers with rows in the index, in pages, and asks the metadata for
each, at a pace. What ``garbage.Judge`` condemns is dropped, in this order:

1. it is refused for ever: the deletion is durable in the journal before anything is taken away.
   From then on every answer about it is NoSuchLedger, and replay takes none of its batches;
2. the caches let go of it. What a checkpoint is writing of it just now would be put into the
   index after it was dropped from there, so such a ledger waits for the next round; not so
   what a checkpoint finds no room for on the disk: that is let go of, too;
3. one write batch of the index takes its rows and leaves a *tombstone*, some 20 bytes that stay:
   it refuses the ledger when the journal has long forgotten the deletion.

A crash before 1 is durable leaves the ledger as it was; after it, the ledger answers nothing,
and a later round, which meets its rows again, does the rest.

Copies of a closed ledger that names others by now (``leftovers.py``) go too, and the ledger stays known: it is fenced
for ever instead of refused, so that no writer of long ago finds an ack here, and a repair may bring copies back.

Then entry logs: ``reclaimer`` removes those in which nothing counts any more, and compacts others. At last, when very
much was dropped, the index is compacted (``index_upkeep``).

A part of the index that cannot be read is passed over. Ledgers that may have rows there are garbage for nobody, as long
as that is so, and logs in which they have batches stay.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Final, Protocol

from tallybook.core.config import CollectionSettings
from tallybook.core.errors import (
    Busy,
    Conflict,
    DiskFailed,
    EntryUnknown,
    MetadataUnavailable,
    NoSuchLedger,
    StorageError,
    TallybookError,
    is_defect,
)
from tallybook.core.marks import sometimes
from tallybook.runtime.clock import Clock
from tallybook.runtime.histogram import LONG_SECONDS
from tallybook.runtime.logging import logger
from tallybook.runtime.meter import Meter
from tallybook.runtime.pace import Pace
from tallybook.runtime.tasks import Tasks, unless_set

from .damage import DamageList
from .fates import FateOfLedger, fate_in_time
from .garbage import Delays, Fate, Judge
from .index_upkeep import IndexUpkeep
from .late_identities import LateIdentities
from .ledger_state import TOMBSTONE, encode_row
from .ledger_table import LedgerTable
from .leftovers import Leftovers
from .limbo_count import LimboCount, NamedLedgers
from .reclaimer import ReclaimableLogs, Reclaimer
from .storage.index import WRITE_BATCH_ROWS, Index
from .storage.stored import StoredBatches
from .storage.write_cache import WriteCache
from .store_check import StoreCheck

_log = logger("bookie.collector")

PAGE_LEDGERS: Final = WRITE_BATCH_ROWS // 2
"""Ledgers looked at together: the rows of all of them go, and their tombstones come, in one write batch."""

ENDED_AT_ONCE: Final = 50
"""Ledgers that are refused together: they share commits of the journal. Each begins with work that is done in one turn
of the event loop with that of the others: 450 of them held up adds for 36 ms (measured)."""
LOOKUPS_AT_ONCE: Final = 4
SUSPECTS_SECONDS: Final = 5.0
"""Time between two looks at the store because of requests, which must not have it asked without end."""


class Ends(Protocol):
    """How nothing more is taken of a ledger: ``fences.Fences``."""

    async def delete(self, ledger_id: int) -> None:
        """Refuse it for ever."""

    async def fence_unasked(self, ledger_id: int) -> None:
        """Refuse all that writers send of it."""


@dataclass(frozen=True, slots=True)
class Holdings:
    """Where a bookie has what it holds.

    Attributes:
        fences: makes a ledger refused for ever, or fenced, durably; ``Busy`` where there is no room for that now.
    """

    index: Index
    logs: ReclaimableLogs
    cache: WriteCache
    stored: StoredBatches
    table: LedgerTable
    fences: Ends


class Collector:
    """Drops what need not be kept.

    Args:
        fate_of: what the metadata say of a ledger; whatever keeps them from it is ``Fate.UNKNOWN``, and no error.
        leftovers: when copies may go that the metadata give to others.
        check: whether the metadata store is an older copy of itself; then nothing is dropped.
        fail_safe: ends the node; called with the reason when the device failed in the middle of a change.
        settle_bytes, pressed, damage: see ``Reclaimer``.
        named: see ``LimboCount``.
        late: gives ledgers their identity that are held without one.
    """

    def __init__(
        self,
        held: Holdings,
        fate_of: FateOfLedger,
        settings: CollectionSettings,
        leftovers: Leftovers,
        check: StoreCheck,
        *,
        clock: Clock,
        tasks: Tasks,
        fail_safe: Callable[[str], None],
        settle_bytes: int,
        pressed: Callable[[], bool],
        damage: DamageList,
        named: NamedLedgers | None = None,
        late: LateIdentities | None = None,
    ) -> None:
        self._held = held
        self._fate_of = fate_of
        self._interval_seconds = settings.interval_ms / 1000
        self._pace = Pace(clock, settings.lookups_per_second)
        self._clock = clock
        self._tasks = tasks
        self._fail_safe = fail_safe
        delays = Delays(settings.deleted_delay_s, settings.missing_delay_s, settings.max_deleted_percent / 100)
        self._judge = Judge(delays)
        self._pressed = pressed
        self._leftovers = leftovers
        self._late = late
        self.check = check
        self._paused = False
        self._drop_approved = False
        """Whether the next round is approved. The approval ends with that round, also where it fails."""
        self._round = asyncio.Lock()
        self._wanted = asyncio.Event()
        self._rounds: asyncio.Task[None] | None = None
        self._counting: asyncio.Task[None] | None = None
        self._looking: asyncio.Task[None] | None = None
        self._looks_again, self._look_due_at = False, clock.monotonic()
        self._change: asyncio.Task[None] | None = None
        self.reclaimer = Reclaimer(
            held.index,
            held.logs,
            settings,
            settle_bytes=settle_bytes,
            clock=clock,
            undisturbed=self._undisturbed,
            pressed=pressed,
            damage=damage,
        )
        self.upkeep = IndexUpkeep(held.index, settings.compact_index_after)
        self._damage = damage
        self.meter = Meter(clock, LONG_SECONDS)
        """Of rounds."""
        self.rounds = 0
        """Rounds that came to their end."""
        self.failures = 0
        """Those that did not."""
        self.dropped_ledgers = 0
        self.dropped_leftovers = 0
        """Ledgers of which copies were dropped because others have them now."""
        self._limbo = LimboCount(held.table, named, self._pace)
        self.deleted_ledgers = 0
        """Deleted ledgers that stay whole for now, as of the last round."""
        self.missing_ledgers = 0
        """Ledgers whose metadata are missing without a record of their deletion, as of the last round."""
        self.held = False
        """Whether the last round dropped no deleted ledger, since an operator is to see first that it is meant."""
        self._due_at: float | None = None
        """When an approved round would drop some of what waits for one, as of the last round."""

    @property
    def ledgers_in_limbo(self) -> int:
        """Ledgers that may have lost something, as of the last round."""
        return self._limbo.ledgers

    def start(self) -> None:
        """Begin with the rounds, unless the settings want none."""
        if self._interval_seconds:
            self._rounds = self._tasks.spawn(self._run_for_ever(), name="collector", essential=True)

    def request(self) -> None:
        """Ask for a round at once, where there are rounds at all."""
        self._wanted.set()

    async def approve_store(self) -> None:
        """An operator lets the bookies of the cluster go on with a metadata store that was found behind.

        How long ledgers are deleted or missing counts anew, and dropping what waits for an operator takes an approval
        of its own.

        Raises:
            As ``StoreCheck.approve``.
        """
        await self.check.approve()
        self._due_at = None
        self.request()

    async def approve_drop(self) -> None:
        """An operator lets one round, which begins at once, drop what waits for one.

        Raises:
            Conflict: no ledger waits for that, or none for long enough, or the metadata store was found behind.
            MetadataUnavailable, NewerFormat: whether it was cannot be told.
        """
        await self.check.refuse_if_behind()
        if self._due_at is None:
            raise Conflict("no deleted or missing ledger waits for an operator, as of the last round of this bookie")
        left_seconds = self._due_at - self._clock.monotonic()
        if left_seconds > 0:
            raise Conflict(
                "none of the deleted and missing ledgers that wait for an operator may be dropped before "
                f"{math.ceil(left_seconds)} seconds from now: approve it then"
            )
        self._drop_approved = True
        self.request()

    def suspect(self, ledger_id: int) -> None:
        """A request is about another ledger of this id than is held here: see soon whether the store is behind."""
        if self.check.suspect(ledger_id):
            self._looks_again = True
            if self._looking is None or self._looking.done():
                self._looking = self._tasks.spawn(self._look_at_suspects(), name="look at the metadata store")

    async def _look_at_suspects(self) -> None:
        while self._looks_again:
            await self._clock.sleep(max(0.0, self._look_due_at - self._clock.monotonic()))
            self._look_due_at = self._clock.monotonic() + SUSPECTS_SECONDS
            self._looks_again = False
            if await self.check.other_suspected():
                await self._stop_dropping()

    async def _stop_dropping(self) -> None:
        """The metadata know another ledger of an id: drop nothing more in this round, and note it."""
        self._pause()
        if (await self.check.look()).paused:
            self._pause()  # also a round that began meanwhile

    def _pause(self) -> None:
        self._paused = True
        self._judge.pause()

    async def close(self) -> None:
        """End the rounds, and wait for the change that is under way: half of one would leave storage unusable."""
        for task in (self._rounds, self._counting, self._looking):
            if task is not None:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
        if self._change is not None:
            await asyncio.gather(self._change, return_exceptions=True)

    async def collect(self) -> None:
        """One round, and the count of ledgers in limbo.

        Raises:
            As ``_collect_once``.
        """
        in_limbo = await self._collect_once()
        await self._limbo.count(in_limbo, believed=not self._paused)

    async def _collect_once(self) -> int:
        """One round. How many ledgers in limbo it has met.

        Raises:
            EntryUnknown: the index is not there to be asked; what was found until then was dropped.
            DiskFull: there is no room for the changes; the next round does them.
            DiskFailed: the device failed, and the node ends.
        """
        async with self._round:
            approved, self._drop_approved = self._drop_approved, False
            before = self.dropped_ledgers
            try:
                with self.meter.timing():
                    in_limbo = await self._collect(approved=approved)
            finally:
                if approved:
                    self._tell_approved(self.dropped_ledgers - before)
            self.rounds += 1
            return in_limbo

    def _tell_approved(self, dropped: int) -> None:
        """An approval is for one round: say what came of it."""
        left = self._judge.count(Fate.DELETED) + self._judge.count(Fate.MISSING)
        _log.warning("the round that an operator approved has ended", ledger_count=dropped, left_count=left)

    async def _collect(self, *, approved: bool) -> int:
        store = await self.check.look()
        self._paused = store.paused
        if approved and store.paused:
            _log.error("approval to drop ledgers is void", error="nothing is dropped in this round: see above")
        self._judge.begin(
            store.id_counter,
            self._clock.monotonic(),
            short_of_space=self._pressed(),
            paused=store.paused,
            approved=approved,
            restarts=self.check.take_change(),
        )
        self._leftovers.begin()
        in_limbo = 0
        async with aclosing(self._pages()) as pages:
            async for page in pages:
                garbage, leftovers = await self._judged(page)
                if garbage:
                    await self._undisturbed(self._drop(garbage))
                if leftovers and not self._paused:
                    await self._undisturbed(self._drop_leftovers(leftovers))
                if self._late is not None:
                    await (self._late.drop() if self._paused else self._late.give(self._pace, store.reused_up_to))
                in_limbo += await self._count_limbo(set(page) - {*garbage, *leftovers})
        self._report()
        # Where ledgers are in limbo, the index may lack rows, and an older copy of the metadata does not know of all.
        in_doubt = self._paused or in_limbo > 0 or self._limbo.index_in_doubt
        await self.reclaimer.reclaim(in_doubt=in_doubt)
        await self.upkeep.compact_if_worth()
        return in_limbo

    def _report(self) -> None:
        """Count what waits, and say what waits for an operator."""
        judge = self._judge
        self.deleted_ledgers, self.missing_ledgers = judge.count(Fate.DELETED), judge.count(Fate.MISSING)
        self.held, self._due_at = judge.held, judge.due_at()
        if self.held:
            _log.error(
                "dropping deleted ledgers waits for an operator",
                ledger_count=self.deleted_ledgers,
                error="a large share of all ledgers is deleted: see that this is meant, then POST gc/approve_drop",
            )
        if self.missing_ledgers:
            _log.error(
                "metadata of ledgers are missing",
                ledger_count=self.missing_ledgers,
                error="there is no record that these were deleted: bring their metadata back, or POST gc/approve_drop",
            )

    async def _run_for_ever(self) -> None:
        while True:
            await unless_set(self._wanted, self._clock.sleep(self._interval_seconds))
            self._wanted.clear()
            try:
                in_limbo = await self._collect_once()
                # It may read the metadata of all ledgers: a round that is asked for meanwhile does not wait for it.
                if self._counting is None or self._counting.done():
                    count = self._limbo.count(in_limbo, believed=not self._paused)
                    self._counting = self._tasks.spawn(count, name="count of ledgers in limbo")
            except DiskFailed as error:
                self._fail_safe(f"the collector failed: {error!r}")
                raise
            except TallybookError as error:
                if is_defect(error):
                    raise
                self.failures += 1
                _log.warning("garbage is collected later", error=error.message)

    async def _undisturbed(self, change: Coroutine[Any, Any, None]) -> None:
        """Make a change to its end, even if the round is cancelled."""
        self._change = self._tasks.spawn(change, name="collector's change")
        await asyncio.shield(self._change)

    # -- which ledgers ------------------------------------------------------------------------

    async def _pages(self) -> AsyncGenerator[list[int], None]:
        """All ledgers of which it can be told that they have rows, so many at a time."""
        after: int | None = -1
        while after is not None:
            page = await self._held.index.survey_ledgers(after, PAGE_LEDGERS)
            for untold in page.untold:
                sometimes("collector: passes over what the index cannot tell")
                first, last = untold
                _log.warning("which ledgers have rows cannot be told", first_ledger_id=first, last_ledger_id=last)
                self._damage.untold += 1
            if page.ledger_ids:
                yield page.ledger_ids
            after = page.after

    async def _judged(self, page: Sequence[int]) -> tuple[list[int], list[int]]:
        """Which of these ledgers are garbage, and of which the copies may go."""
        garbage: list[int] = []
        leftovers: list[int] = []
        for start in range(0, len(page), LOOKUPS_AT_ONCE):
            asked = page[start : start + LOOKUPS_AT_ONCE]
            await self._pace.spend(len(asked))
            fates = await asyncio.gather(*(fate_in_time(self._fate_of, each) for each in asked))
            for ledger_id, fate in zip(asked, fates, strict=True):
                if fate is Fate.OTHER:
                    await self._met_other(ledger_id)
            for ledger_id, fate in zip(asked, fates, strict=True):
                if self._judge.is_garbage(ledger_id, fate):
                    garbage.append(ledger_id)
                elif not self._paused and self._leftovers.may_go(ledger_id, fate):
                    leftovers.append(ledger_id)
        return ([], []) if self._paused else (garbage, leftovers)

    async def _met_other(self, ledger_id: int) -> None:
        """The metadata know another ledger of this id: they are an older copy, unless an operator knows of that."""
        if not self._paused and self.check.met_other(ledger_id):
            sometimes("collector: another ledger of the same id shows that the store is behind")
            await self._stop_dropping()

    async def _count_limbo(self, ledger_ids: Iterable[int]) -> int:
        """How many of these ledgers are in limbo. Nothing is looked at where this bookie has never lost anything."""
        limbo, count = self._held.table.limbo, 0
        for ledger_id in sorted(ledger_ids):
            if limbo.covers(ledger_id, 0):
                try:
                    count += (await self._held.table.look(ledger_id)).limbo
                except StorageError:
                    count += 1  # what it is cannot be told, which is what limbo means
        return count

    # -- dropping -----------------------------------------------------------------------------

    async def _drop(self, ledger_ids: Sequence[int]) -> None:
        """Steps 1 to 3."""
        held = self._held
        refused = await _ended(held.fences.delete, ledger_ids)
        gone: list[int] = []
        # In one turn: what no buffer holds now, none will hold again.
        for ledger_id, is_refused in zip(ledger_ids, refused, strict=True):
            if is_refused:
                held.cache.forget(ledger_id)
                held.stored.forget(ledger_id)
                if held.cache.flushes(ledger_id):
                    sometimes("collector: a checkpoint is writing what is to be dropped")
                else:
                    gone.append(ledger_id)
        if gone:
            sometimes("collector: drops ledgers")
            had = await self.reclaimer.held_by(gone)
            tombstones = {ledger_id: encode_row(ledger_id, TOMBSTONE) for ledger_id in gone}
            await held.index.apply((), tombstones, drop_ledgers=gone, makes_room=True)
            self.reclaimer.dropped(had.by_log)
            self.upkeep.dropped(gone, had.row_count)
            self._damage.forget_ledgers(gone)
            for ledger_id in gone:
                self._judge.dropped(ledger_id)
            self.dropped_ledgers += len(gone)
            _tell_dropped("ledgers dropped", gone)

    async def _drop_leftovers(self, ledger_ids: Sequence[int]) -> None:
        """Fence them, durably; then their rows go, and nothing else."""
        held = self._held
        fenced = await _ended(held.fences.fence_unasked, ledger_ids)
        known = [ledger_id for ledger_id, is_fenced in zip(ledger_ids, fenced, strict=True) if is_fenced]
        had = {ledger_id: await self.reclaimer.held_by([ledger_id]) for ledger_id in known}
        # In one turn, the call of the index included: what comes into a buffer from here on is put behind what goes.
        gone = [ledger_id for ledger_id in known if self._is_at_rest(ledger_id)]
        if gone:
            sometimes("collector: drops copies that others have now")
            with self._leftovers.visits.shut(gone):
                await held.index.apply((), {}, drop_rows=gone, makes_room=True)
            for ledger_id in gone:
                held.stored.forget(ledger_id)
                self.reclaimer.dropped(had[ledger_id].by_log)
                self.upkeep.dropped([ledger_id], had[ledger_id].row_count)
            self._damage.forget_ledgers(gone)
            self.dropped_leftovers += len(gone)
            _tell_dropped("copies dropped that others have now", gone)

    def _is_at_rest(self, ledger_id: int) -> bool:
        """Whether nobody is at the ledger in this turn, and no repair has been for long."""
        ledger = self._held.table.get(ledger_id)
        if (ledger is not None and ledger.users) or self._held.cache.holds(ledger_id):
            sometimes("collector: somebody is at copies that others have now")
            return False
        return self._leftovers.is_left_alone(ledger_id)


async def _ended(end: Callable[[int], Awaitable[None]], ledger_ids: Sequence[int]) -> list[bool]:
    """Of each ledger, whether nothing more is taken of it now."""
    found: list[bool] = []
    for at in range(0, len(ledger_ids), ENDED_AT_ONCE):
        found += await asyncio.gather(*(_is_ended(end(each)) for each in ledger_ids[at : at + ENDED_AT_ONCE]))
    return found


async def _is_ended(ending: Awaitable[None]) -> bool:
    """Whether nothing more is taken of a ledger now; a later round tries what could not be done in this one."""
    try:
        await ending
    except (Busy, EntryUnknown, MetadataUnavailable, NoSuchLedger):
        return False
    return True


def _tell_dropped(event: str, gone: Sequence[int]) -> None:
    _log.info(event, ledger_count=len(gone), first_ledger_id=gone[0], last_ledger_id=gone[-1])
