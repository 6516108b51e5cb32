"""Finds ledgers with too few good copies, or with copies to be moved, and hands them out as tasks. One auditor of a
cluster works at a time.

A round asks bookies how they are; where something is wrong, and now and then in any case, it goes over all ledgers and
hands out those that need something and are not handed out yet (``walk_times`` says when). What is wrong:

- a bookie is *lost*: it was away for longer than the delay. Others take its places;
- a bookie is to be emptied, though nothing is wrong with it. Others take its places at once, and it is a source
  meanwhile;
- a bookie came back without its data, or with a part of it: what lacks is given back;
- somebody met a damaged copy: a good one takes its place;
- the metadata say that a bookie has missed entries;
- and all copies of all ledgers are looked at once a period, whatever is known.

A bookie that does not answer proves nothing, and nothing is ever deleted here. Two auditors at once hand out the same
work twice, and harm nothing.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from tallybook.client.ports import Connections
from tallybook.core.config import RepairSettings
from tallybook.core.errors import NewerFormat
from tallybook.core.marks import sometimes
from tallybook.metadata.behind import unapproved
from tallybook.metadata.bookie_modes import WantedMode, wanted_modes
from tallybook.metadata.record_format import FIRST, check_format, over_known
from tallybook.metadata.record_json import NOT_UNDERSTOOD
from tallybook.metadata.record_update import RecordUpdater
from tallybook.metadata.store import BookieInfo, Membership, MetadataStore
from tallybook.runtime.clock import Clock
from tallybook.runtime.logging import logger
from tallybook.runtime.rng import Rng
from tallybook.runtime.wire import WRITER_RETURN_SECONDS

from .absences import Absences
from .bookie_survey import BookieSurvey
from .needs import Need, Trouble, Why, bytes_to_copy
from .pause import paused_since
from .replacements import forget_replacements
from .tasks import LEDGERS_OF_A_TASK, Task, TaskBoard, is_urgent, tasks_of
from .walk import Findings, all_ledgers, note
from .walk_times import MOST_MOVING_TASKS, MOST_TASKS, Signs, WalkTimes

_log = logger("repair")

CHECKED_RECORD: Final = "repair/checked"
CHECKS_AT_ONCE: Final = 2
"""Tasks of the periodic check that are handed out at a time: it is in no hurry."""


@dataclass(frozen=True, slots=True)
class Audit:
    """What the last rounds found."""

    alive: frozenset[str] = frozenset()
    away: frozenset[str] = frozenset()
    lost: frozenset[str] = frozenset()
    draining: frozenset[str] = frozenset()
    limbo: frozenset[str] = frozenset()
    silent: frozenset[str] = frozenset()
    """Those that are there and do not say how they are: they may have lost data, or know of damage."""
    findings: Findings = field(default_factory=Findings)
    """Of the last walk over all ledgers."""
    walked_at_ms: int | None = None
    """When that ended, in milliseconds since the epoch."""
    tasks: int = 0
    checked_up_to: int = -1
    """The periodic check has handed out the ledgers up to here."""
    paused_since_ms: int | None = None
    """Since when nothing is handed out, in milliseconds since the epoch; ``None`` if the repair is not paused."""


class Auditor:
    """Looks after the copies of one cluster."""

    def __init__(
        self,
        store: MetadataStore,
        membership: Membership,
        connections: Connections,
        board: TaskBoard,
        settings: RepairSettings,
        clock: Clock,
        rng: Rng,
    ) -> None:
        self._store = store
        self._membership = membership
        self._board = board
        self._settings = settings
        self._clock = clock
        self._updater = RecordUpdater(store, clock, rng)
        self._absences = Absences(settings.lost_after_s)
        self._survey = BookieSurvey(connections)
        self._walk_times = WalkTimes(settings.interval_s)
        self._to_end_since: dict[int, float] = {}
        self._strange: set[str] = set()
        """Tasks that nobody can understand: nobody works at them."""
        self.rounds = 0
        self.walks = 0
        """Times that all ledgers were gone over."""
        self.published = 0
        self._findings = Findings()
        self._walked_at_ms: int | None = None
        self.audit = Audit()

    async def round(self, *, everything: bool = False, lost: Collection[str] = (), hand_out: bool = True) -> Audit:
        """Look once; with ``everything``, over all ledgers also where nothing seems wrong.

        Args:
            lost: bookies that somebody who knows calls lost; those of them that are there are not.
            hand_out: without, look and tell, and no more.

        Raises:
            MetadataUnavailable, MetadataConflict, MetadataOutcomeUnknown: the store does not answer.
            DamagedFile: a record of the repair holds something else.
        """
        alive = await self._membership.bookies()
        self._absences.see(alive, self._clock.monotonic())
        modes = await wanted_modes(self._store, linearizable=True)
        draining = frozenset(name for name, mode in modes.items() if mode is WantedMode.DRAINING)
        await self._survey.look(alive)
        gone = self._absences.lost(self._clock.monotonic()) | (frozenset(lost) - alive.keys())
        paused = await paused_since(self._store)
        hand_out = hand_out and paused is None
        signs = Signs(
            lost=gone, draining=draining, limbo=self._survey.losses, damaged=self._survey.damages,
            alive=frozenset(alive), handing_out=hand_out,
        )  # fmt: skip
        tasks = await self._board.names()
        self._strange.intersection_update(tasks)
        urgent = [name for name in tasks if is_urgent(name) and name not in self._strange]
        if everything or self._walk_times.is_due(signs, len(urgent), self._clock.monotonic()):
            await self._walk(signs, alive, urgent)
        checked = self.audit.checked_up_to
        if hand_out:
            checked = await self._check(sum(not is_urgent(name) for name in tasks))
        self.rounds += 1
        self.audit = Audit(
            alive=frozenset(alive),
            away=self._absences.away,
            lost=gone,
            draining=draining,
            limbo=frozenset(self._survey.losses),
            silent=frozenset(alive) - self._survey.statuses.keys(),
            findings=self._findings,
            walked_at_ms=self._walked_at_ms,
            tasks=len(tasks),
            checked_up_to=checked,
            paused_since_ms=paused,
        )
        return self.audit

    # -- over all ledgers -------------------------------------------------------------------

    async def _walk(self, signs: Signs, alive: Mapping[str, BookieInfo], urgent: Iterable[str]) -> None:
        trouble = Trouble(
            lost=signs.lost, draining=signs.draining, limbo=await self._survey.limbo(),
            damaged=await self._survey.damaged(), alive=signs.alive,
        )  # fmt: skip
        tasks = await self._board.read(urgent)
        self._strange.update(set(urgent) - tasks.keys())
        moving = {ledger_id for task in tasks.values() if _moves(task) for ledger_id in task.ledger_ids}
        handed_out = {ledger_id for task in tasks.values() if not _moves(task) for ledger_id in task.ledger_ids}
        hands = _Hands(self._board, trouble.leaving, len(tasks) if signs.handing_out else MOST_TASKS)
        findings = Findings()
        to_end: dict[int, float] = {}
        next_end: float | None = None
        began = self._clock.monotonic()
        async for metadata in all_ledgers(self._store, findings):
            needed = note(findings, metadata, trouble, alive)
            ends_now = False
            if needed.growing is not None:
                since = to_end[metadata.ledger_id] = self._to_end_since.get(metadata.ledger_id, began)
                ends_now = began >= since + self._settings.open_grace_s
                looks = [since + self._settings.open_grace_s]
                if needed.growing.ends_if_abandoned:
                    # At the first one, bookies may not be able to tell yet that no writer is there.
                    looks.append(looks[0] + WRITER_RETURN_SECONDS)
                later = [each for each in looks if each > began]
                if later:
                    next_end = min(later[0], next_end or math.inf)
            if ends_now and needed.by_hand:
                findings.note_by_hand(metadata.ledger_id)
                ends_now = needed.growing is not Why.UNFINISHED
            why = needed.foremost if ends_now else Need(needed.settled, None).foremost
            # One that waits to be moved is handed out again where it lacks something: such a task comes first.
            is_out = metadata.ledger_id in handed_out or (why is Why.DRAINING and metadata.ledger_id in moving)
            if why is not None and not is_out:
                expected = bytes_to_copy(metadata, trouble.leaving) if why.moves else None
                await hands.out(metadata.ledger_id, why, end=ends_now, expected_bytes=expected)
        await hands.rest()
        self.published += hands.published
        self.walks += 1
        self._findings, self._to_end_since, self._walked_at_ms = findings, to_end, self._clock.wall_us() // 1000
        ended = self._clock.monotonic()
        self._walk_times.walked(signs, findings, left_out=hands.left_out, next_end=next_end, began=began, ended=ended)
        self._absences.hear_of(findings.by_bookie, began)
        whole: dict[str, str] = {}
        if findings.complete:
            self._absences.forget_all_but(findings.by_bookie)
            if not findings.in_limbo and not findings.unreadable:
                known_below = await self._known_below()
                got_back = (name for name, limbo in trouble.limbo.items() if limbo.below <= known_below)
                whole = {name: self._survey.directory(name) for name in got_back}
        await forget_replacements(self._store, whole)
        self._survey.settle(whole)

    async def _known_below(self) -> int:
        """The store has all ledgers with lower ids; of none is that sure while it may be an older copy of itself."""
        # In this order: the record is written before the counter is raised.
        id_counter = await self._store.id_counter()
        try:
            return 0 if await unapproved(self._store) is not None else id_counter
        except NewerFormat:
            return 0

    # -- the periodic check -----------------------------------------------------------------

    async def _check(self, under_way: int) -> int:
        """Hand out the next ledgers of the check of all copies; up to which one it has come.

        Args:
            under_way: tasks of the check that are not done.
        """
        period_ms = self._settings.check_period_s * 1000
        if not period_ms:
            return -1
        began_ms, after = await self._checked()
        now_ms = self._clock.wall_us() // 1000
        if began_ms is None or not began_ms <= now_ms < began_ms + period_ms:
            # A clock that was set back begins anew: too early a check is one too many, and no more.
            began_ms, after = now_ms, -1
        for _ in range(CHECKS_AT_ONCE - under_way):
            page = await self._store.list_ledgers(after, LEDGERS_OF_A_TASK)
            if not page.ledger_ids:
                break
            sometimes("repair: copies are checked")
            await self._board.publish(tasks_of(page.ledger_ids, thorough=True, why=""))
            after = page.ledger_ids[-1]
        value = json.dumps({"format": FIRST, "began_ms": began_ms, "after": after}).encode()
        await self._updater.update(CHECKED_RECORD, partial(over_known, CHECKED_RECORD, value))
        return after

    async def _checked(self) -> tuple[int | None, int]:
        record = await self._store.read_record(CHECKED_RECORD)
        if record is None:
            return None, -1
        try:
            found = json.loads(record.value)
            check_format(CHECKED_RECORD, found)
            return int(found["began_ms"]), int(found["after"])
        except NOT_UNDERSTOOD as error:
            _log.error("how far the check has come cannot be understood: it begins anew", error=repr(error))
            return None, -1


def _moves(task: Task) -> bool:
    return task.why == Why.DRAINING.value


class _Hands:
    """Gathers ledgers by what is to be done with them, and hands out whole tasks as soon as they are full.

    Args:
        handed_out: urgent tasks that are not done.
    """

    def __init__(self, board: TaskBoard, leaving: frozenset[str], handed_out: int) -> None:
        self._board = board
        self._leaving = leaving
        self._handed_out = handed_out
        self._gathered: defaultdict[tuple[Why, bool], dict[int, int | None]] = defaultdict(dict)
        self.published = 0
        self.left_out = False
        """There was no room for some."""

    async def out(self, ledger_id: int, why: Why, *, end: bool, expected_bytes: int | None) -> None:
        """One more ledger; for which so much is to be copied, if that is known."""
        gathered = self._gathered[why, end]
        gathered[ledger_id] = expected_bytes
        if len(gathered) == LEDGERS_OF_A_TASK:
            await self._publish(why, end)

    async def rest(self) -> None:
        """That was all."""
        for why, end in list(self._gathered):
            await self._publish(why, end)

    async def _publish(self, why: Why, end: bool) -> None:
        ledgers = self._gathered.pop((why, end))
        moving = why is Why.DRAINING
        if self._handed_out + self.published >= (MOST_MOVING_TASKS if moving else MOST_TASKS):
            self.left_out = True
        else:
            _log.info("ledgers to be mended", ledger_count=len(ledgers), why=why.value, end=end)
            self.published += await self._board.publish(
                tasks_of(
                    ledgers,
                    leaving=self._leaving,
                    thorough=not why.moves,
                    end=end,
                    why=why.value,
                    expected=ledgers,
                ),
                later=moving,
            )
