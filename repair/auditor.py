"""The auditor: finds under-replicated ledgers and ledgers of draining bookies, and publishes them as repair tasks.

A pass asks all bookies for their status. If something is wrong, and from time to time anyway (``walk_times``), it walks
over all ledgers and publishes those that need repair and are in no task yet. ``needs`` decides whether a ledger needs
repair (docs/understand/recovery.md has the reasons), ``absences`` which bookies are lost, and ``ledger_walk`` counts.

A bookie that does not answer proves nothing. Nothing is deleted here. Two auditors at the same time publish the same
work twice, which does no harm.
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
from tallybook.core.coverage import sometimes
from tallybook.core.errors import NewerFormat
from tallybook.core.settings import RepairSettings
from tallybook.metadata.records.bookie_modes import RequestedMode, requested_modes
from tallybook.metadata.records.format import FIRST, check_format, check_overwritable
from tallybook.metadata.records.json_errors import DECODE_ERRORS
from tallybook.metadata.records.restored_store import unapproved_restore
from tallybook.metadata.records.update import RecordUpdater
from tallybook.metadata.store import BookieInfo, Membership, MetadataStore
from tallybook.runtime.clock import Clock
from tallybook.runtime.logging import logger
from tallybook.runtime.metrics.catalog import MetricKind
from tallybook.runtime.metrics.part_metrics import PartMetrics
from tallybook.runtime.rng import Rng
from tallybook.wire.batches import WRITER_RETURN_SECONDS

from .absences import Absences
from .bookie_survey import BookieSurvey
from .ledger_walk import WalkFindings, add_ledger, all_ledgers
from .needs import BookieProblems, RepairNeed, RepairReason, bytes_to_copy
from .pause import paused_since
from .replaced_bookies import forget_replacements
from .tasks import LEDGERS_PER_TASK, Task, TaskBoard, is_urgent, make_tasks
from .walk_times import MAX_DRAIN_TASKS, MAX_TASKS, ClusterSigns, WalkSchedule

_log = logger("repair")

CHECKED_RECORD: Final = "repair/checked"
MAX_CHECK_TASKS: Final = 2
"""Tasks of the periodic check that are published at a time."""


@dataclass(frozen=True, slots=True)
class AuditReport:
    """The result of an auditor's pass."""

    alive: frozenset[str] = frozenset()
    away: frozenset[str] = frozenset()
    lost: frozenset[str] = frozenset()
    draining: frozenset[str] = frozenset()
    limbo: frozenset[str] = frozenset()
    silent: frozenset[str] = frozenset()
    """Registered bookies that did not answer the status request: they may have lost data or know of damage."""
    findings: WalkFindings = field(default_factory=WalkFindings)
    """Of the last walk over all ledgers."""
    walked_at_ms: int | None = None
    """When that walk ended, in milliseconds since the epoch."""
    tasks: int = 0
    checked_up_to: int = -1
    """The periodic check has published the ledgers up to this id."""
    paused_since_ms: int | None = None
    """When the repair was paused, in milliseconds since the epoch; ``None`` if it is not paused."""


class Auditor:
    """The auditor of one cluster."""

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
        self._walk_schedule = WalkSchedule(settings.interval_s)
        self._to_end_since: dict[int, float] = {}
        self._undecodable: set[str] = set()
        """Names of tasks that cannot be decoded, so that no replicator claims them."""
        self.passes = 0
        self.walks = 0
        """Walks over all ledgers."""
        self.published = 0
        self._findings = WalkFindings()
        self._walked_at_ms: int | None = None
        self.audit = AuditReport()

    async def run_pass(
        self, *, full_walk: bool = False, lost: Collection[str] = (), publish: bool = True
    ) -> AuditReport:
        """Make one pass.

        Args:
            full_walk: walk over all ledgers even if nothing seems wrong.
            lost: bookies that the caller knows to be lost; those that are registered are ignored.
            publish: publish tasks. If false, only report.

        Raises:
            MetadataUnavailable, MetadataConflict, MetadataOutcomeUnknown: the store does not answer.
            DamagedFile: a record of the repair cannot be decoded.
        """
        alive = await self._membership.bookies()
        self._absences.observe(alive, self._clock.monotonic())
        modes = await requested_modes(self._store, linearizable=True)
        draining = frozenset(name for name, mode in modes.items() if mode is RequestedMode.DRAINING)
        await self._survey.poll(alive)
        gone = self._absences.lost(self._clock.monotonic()) | (frozenset(lost) - alive.keys())
        paused = await paused_since(self._store)
        publish = publish and paused is None
        signs = ClusterSigns(
            lost=gone, draining=draining, limbo=self._survey.losses, damaged=self._survey.damages,
            alive=frozenset(alive), publishing=publish,
        )  # fmt: skip
        tasks = await self._board.names()
        self._undecodable.intersection_update(tasks)
        urgent = [name for name in tasks if is_urgent(name) and name not in self._undecodable]
        if full_walk or self._walk_schedule.is_due(signs, len(urgent), self._clock.monotonic()):
            await self._walk(signs, alive, urgent)
        checked = self.audit.checked_up_to
        if publish:
            checked = await self._check(sum(not is_urgent(name) for name in tasks))
        self.passes += 1
        self.audit = AuditReport(
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

    # -- walk over all ledgers --------------------------------------------------------------

    async def _walk(self, signs: ClusterSigns, alive: Mapping[str, BookieInfo], urgent: Iterable[str]) -> None:
        problems = BookieProblems(
            lost=signs.lost, draining=signs.draining, limbo=await self._survey.limbo(),
            damaged=await self._survey.damaged(), alive=signs.alive,
        )  # fmt: skip
        tasks = await self._board.read(urgent)
        self._undecodable.update(set(urgent) - tasks.keys())
        moving = {ledger_id for task in tasks.values() if _is_drain(task) for ledger_id in task.ledger_ids}
        handed_out = {ledger_id for task in tasks.values() if not _is_drain(task) for ledger_id in task.ledger_ids}
        publisher = _TaskPublisher(self._board, problems.leaving, len(tasks) if signs.publishing else MAX_TASKS)
        findings = WalkFindings()
        to_end: dict[int, float] = {}
        next_end: float | None = None
        began = self._clock.monotonic()
        async for metadata in all_ledgers(self._store, findings):
            needed = add_ledger(findings, metadata, problems, alive)
            recover_now = False
            if needed.growing is not None:
                since = to_end[metadata.ledger_id] = self._to_end_since.get(metadata.ledger_id, began)
                recover_now = began >= since + self._settings.open_grace_s
                attempts = [since + self._settings.open_grace_s]
                if needed.growing.only_if_abandoned:
                    # At the first attempt, bookies may not know yet that the writer is gone.
                    attempts.append(attempts[0] + WRITER_RETURN_SECONDS)
                later = [each for each in attempts if each > began]
                if later:
                    next_end = min(later[0], next_end or math.inf)
            if recover_now and needed.by_hand:
                findings.note_manual(metadata.ledger_id)
                recover_now = needed.growing is not RepairReason.UNFINISHED
            why = needed.foremost if recover_now else RepairNeed(needed.confirmed, None).foremost
            # A ledger in a drain task is published again if it is under-replicated: that task is more urgent.
            is_out = metadata.ledger_id in handed_out or (why is RepairReason.DRAINING and metadata.ledger_id in moving)
            if why is not None and not is_out:
                expected = bytes_to_copy(metadata, problems.leaving) if why.moves else None
                await publisher.add(metadata.ledger_id, why, end=recover_now, expected_bytes=expected)
        await publisher.flush()
        self.published += publisher.published
        self.walks += 1
        self._findings, self._to_end_since, self._walked_at_ms = findings, to_end, self._clock.wall_us() // 1000
        ended = self._clock.monotonic()
        self._walk_schedule.record_walk(
            signs, findings, left_out=publisher.left_out, next_end=next_end, began=began, ended=ended
        )
        self._absences.note_named(findings.by_bookie, began)
        restored: dict[str, str] = {}
        if findings.complete:
            self._absences.retain(findings.by_bookie)
            if not findings.in_limbo and not findings.unreadable:
                known_below = await self._known_below()
                names = (name for name, limbo in problems.limbo.items() if limbo.below <= known_below)
                restored = {name: self._survey.directory(name) for name in names}
        await forget_replacements(self._store, restored)
        self._survey.mark_restored(restored)

    async def _known_below(self) -> int:
        """The store knows all ledgers with lower ids. 0 while the store may have been restored from an older copy."""
        # Read the counter first: the record is written before the counter is raised.
        id_counter = await self._store.id_counter()
        try:
            return 0 if await unapproved_restore(self._store) is not None else id_counter
        except NewerFormat:
            return 0

    # -- the periodic check -----------------------------------------------------------------

    async def _check(self, running_tasks: int) -> int:
        """Publish the next ledgers of the periodic check.

        Args:
            running_tasks: tasks of the check that are not done.

        Returns:
            The last ledger id that was published; -1 if there is no periodic check.
        """
        period_ms = self._settings.check_period_s * 1000
        if not period_ms:
            return -1
        began_ms, after = await self._checked()
        now_ms = self._clock.wall_us() // 1000
        if began_ms is None or not began_ms <= now_ms < began_ms + period_ms:
            # Also if the clock was set back: a check that starts too early does no harm.
            began_ms, after = now_ms, -1
        for _ in range(MAX_CHECK_TASKS - running_tasks):
            page = await self._store.list_ledgers(after, LEDGERS_PER_TASK)
            if not page.ledger_ids:
                break
            sometimes("repair: copies are checked")
            await self._board.publish(make_tasks(page.ledger_ids, thorough=True, why=""))
            after = page.ledger_ids[-1]
        value = json.dumps({"format": FIRST, "began_ms": began_ms, "after": after}).encode()
        await self._updater.update(CHECKED_RECORD, partial(check_overwritable, CHECKED_RECORD, value))
        return after

    async def _checked(self) -> tuple[int | None, int]:
        record = await self._store.read_record(CHECKED_RECORD)
        if record is None:
            return None, -1
        try:
            found = json.loads(record.value)
            check_format(CHECKED_RECORD, found)
            return int(found["began_ms"]), int(found["after"])
        except DECODE_ERRORS as error:
            _log.error(
                "the record of the periodic check cannot be decoded: the check starts again",
                error=repr(error),
            )
            return None, -1


def _is_drain(task: Task) -> bool:
    return task.why == RepairReason.DRAINING.value


class _TaskPublisher:
    """Groups ledgers by the kind of repair, and publishes a task as soon as a group is full.

    Args:
        handed_out: urgent tasks that are not done yet.
    """

    def __init__(self, board: TaskBoard, leaving: frozenset[str], handed_out: int) -> None:
        self._board = board
        self._leaving = leaving
        self._handed_out = handed_out
        self._gathered: defaultdict[tuple[RepairReason, bool], dict[int, int | None]] = defaultdict(dict)
        self.published = 0
        self.left_out = False
        """Whether some ledgers were not published, because there are too many tasks."""

    async def add(self, ledger_id: int, why: RepairReason, *, end: bool, expected_bytes: int | None) -> None:
        """Add a ledger. ``expected_bytes``: about how much is to be copied; ``None`` if not known."""
        gathered = self._gathered[why, end]
        gathered[ledger_id] = expected_bytes
        if len(gathered) == LEDGERS_PER_TASK:
            await self._publish(why, end)

    async def flush(self) -> None:
        """Publish the groups that are not full."""
        for why, end in list(self._gathered):
            await self._publish(why, end)

    async def _publish(self, why: RepairReason, end: bool) -> None:
        ledgers = self._gathered.pop((why, end))
        moving = why is RepairReason.DRAINING
        if self._handed_out + self.published >= (MAX_DRAIN_TASKS if moving else MAX_TASKS):
            self.left_out = True
        else:
            _log.info("ledgers published for repair", ledger_count=len(ledgers), why=why.value, end=end)
            self.published += await self._board.publish(
                make_tasks(
                    ledgers,
                    leaving=self._leaving,
                    thorough=not why.moves,
                    end=end,
                    why=why.value,
                    expected=ledgers,
                ),
                later=moving,
            )


METRICS: Final = (
    PartMetrics[Auditor]()
    .counter(
        "rounds",
        "tallybook_repair_rounds_total",
        "Completed passes of the auditor.",
        lambda auditor: auditor.passes,
    )
    .counter(
        "walks",
        "tallybook_repair_walks_total",
        "Walks of the auditor over all ledgers.",
        lambda auditor: auditor.walks,
    )
    .counter(
        "published",
        "tallybook_repair_tasks_published_total",
        "Tasks that the auditor published.",
        lambda auditor: auditor.published,
    )
)

_REASONS: Final = {why.name.lower(): why for why in RepairReason if why is not RepairReason.UNFINISHED}
"""Reasons with which ledgers are counted in ``WalkFindings.needing``."""

AUDIT_METRICS: Final = (
    PartMetrics[AuditReport]()
    .gauge(
        "bookies_away",
        "tallybook_repair_bookies_away",
        "Bookies that ledgers name and that are not registered.",
        lambda audit: len(audit.away),
    )
    .gauge(
        "bookies_lost",
        "tallybook_repair_bookies_lost",
        "Of these, the ones that count as lost.",
        lambda audit: len(audit.lost),
    )
    .gauge(
        "bookies_draining",
        "tallybook_repair_bookies_draining",
        "Bookies that are being drained.",
        lambda audit: len(audit.draining),
    )
    .gauge(
        "bookies_in_limbo",
        "tallybook_repair_bookies_in_limbo",
        "Bookies that lost data.",
        lambda audit: len(audit.limbo),
    )
    .gauge(
        "ledgers",
        "tallybook_repair_ledgers",
        "Ledgers, as of the last walk.",
        lambda audit: audit.findings.ledgers,
    )
    .each(
        MetricKind.GAUGE,
        "needing_{}",
        "tallybook_repair_ledgers_needing",
        "Ledgers to be repaired, by reason. For the reason draining, no copy is missing.",
        "reason",
        _REASONS,
        lambda audit, reason: audit.findings.needing[_REASONS[reason]],
    )
    .gauge(
        "to_end",
        "tallybook_repair_ledgers_to_end",
        "Open ledgers whose last fragment names a bookie that is lost or lost its data.",
        lambda audit: audit.findings.to_end,
    )
    .gauge(
        "in_one_rack",
        "tallybook_repair_ledgers_in_one_rack",
        "Ledgers with all copies of an entry in one rack.",
        lambda audit: audit.findings.in_one_rack,
    )
    .gauge(
        "unreadable",
        "tallybook_repair_ledgers_unreadable",
        "Ledgers whose metadata cannot be decoded.",
        lambda audit: audit.findings.unreadable,
    )
    .gauge(
        "tasks",
        "tallybook_repair_tasks",
        "Tasks that are published and not done, as of the last pass.",
        lambda audit: audit.tasks,
    )
)
