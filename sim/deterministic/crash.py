"""Enumerates power losses of a workload and checks each one: ``enumerate_crashes(workload, check)``, for example with

    async def workload(disk, promises):
        journal = await Journal.open(disk)
        await journal.append(b"a")
        promises.add("acked a")

    async def check(disk, promises):
        journal = await Journal.open(disk)              # must boot
        assert "acked a" not in promises or b"a" in await journal.read_all()

A failure names its crash state, which can be run alone (``only``).
"""

from __future__ import annotations

import gc
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from tallybook.core.errors import InvalidArgument
from tallybook.runtime.rng import Rng, SeededRng

from .crash_outcomes import ChangeOutcomes, CrashOptions, power_loss_outcomes
from .disk import SimDisk
from .faults import DiskOperation
from .loop import DAY_SECONDS
from .world import World, run_untraced

CHANGING: Final = frozenset(
    {"create", "mkdir", "rename", "sync", "sync-directory", "truncate", "unlink", "write", "write-durable"}
)
"""Operations that change the possible crash states."""

_CHECKS_PER_COLLECTION: Final = 256
_DOUBLES_PER_STATE: Final = 8
_THEN: Final = " >> "


class Promises:
    """Promises of the workload to its callers, in order; it only grows."""

    def __init__(self, on_add: Callable[[], None]) -> None:
        self._items: list[object] = []
        self._on_add = on_add

    def add(self, item: object) -> None:
        """Promise ``item``, which must not change later; adds a crash point directly after it."""
        self._items.append(item)
        self._on_add()

    def snapshot(self) -> tuple[object, ...]:
        """All promises so far."""
        return tuple(self._items)


CrashWorkload = Callable[[SimDisk, Promises], Awaitable[None]]
CrashCheck = Callable[[SimDisk, tuple[object, ...]], Awaitable[None]]


@dataclass(slots=True)
class CrashReport:
    """Result of an enumeration.

    Attributes:
        points: number of crash points of the workload.
        states: number of crash states, including duplicates.
        distinct: number of distinct pairs of disk and promises.
        checked: how many of those were checked.
        doubles: how many of the checked ones are states of a second crash, during the check.
        broken: how many of the checked ones broke a promise: the check raised AssertionError.
        stuck: how many of the checked ones failed otherwise: the check raised another exception.
        failures: names of the failed states.
    """

    points: int = 0
    states: int = 0
    distinct: int = 0
    checked: int = 0
    doubles: int = 0
    broken: int = 0
    stuck: int = 0
    failures: list[str] = field(default_factory=list)


class CrashFound(AssertionError):
    """Some crash states fail the check; the message has their names, and the first failure is the cause."""

    def __init__(self, message: str, report: CrashReport) -> None:
        super().__init__(message)
        self.report = report


@dataclass(frozen=True, slots=True)
class _Point:
    """A crash point, with a copy of the disk."""

    name: str
    disk: SimDisk
    promises: tuple[object, ...]


@dataclass(frozen=True, slots=True)
class _State:
    """One outcome of a power loss."""

    name: str
    point: _Point
    outcomes: ChangeOutcomes

    def disk(self) -> SimDisk:
        """A fresh disk to boot from."""
        return self.point.disk.image(self.outcomes)


class _Recorder:
    """Collects the crash points of one run on one disk."""

    def __init__(self, disk: SimDisk, *, prefix: str = "", promised: tuple[object, ...] | None = None) -> None:
        self.disk = disk
        self._prefix = prefix
        self._promised = promised
        self.points: list[_Point] = []
        self.promises = Promises(lambda: self.take("promise"))
        disk.on_submit = lambda operation: self._operation("in", operation)
        disk.on_operation = lambda operation: self._operation("after", operation)

    def take(self, moment: str) -> None:
        """Record a crash point."""
        promised = self.promises.snapshot() if self._promised is None else self._promised
        self.points.append(_Point(f"{self._prefix}{len(self.points)} {moment}", self.disk.fork(), promised))

    def _operation(self, moment: str, operation: DiskOperation) -> None:
        if operation.name in CHANGING:
            self.take(f"{moment} {operation.name} {operation.path}")


def enumerate_crashes(
    workload: CrashWorkload,
    check: CrashCheck,
    *,
    disk: SimDisk | None = None,
    seed: int = 0,
    options: CrashOptions | None = None,
    sample: int = 1,
    double_crashes: int = 0,
    only: str | None = None,
    max_failures: int = 3,
    deadline_seconds: float = DAY_SECONDS,
) -> CrashReport:
    """Run ``workload`` once, then ``check`` on distinct crash states.

    *Crash points* are: while an operation is in flight, after each operation, after each promise, and the end. At each
    one the possible crash states of the disk are created, together with the promises made by then; every distinct pair
    of disk and promises is checked on a fresh loop.

    Args:
        workload: gets the disk, and adds a promise whenever it acknowledges something to a caller.
        check: boots from the crashed disk and compares with the promises; any exception is a failure.
        disk: initial disk of the workload; default an empty disk without latency.
        seed: decides the random choices among crash states.
        options: how many states to create at each crash point.
        sample: check every ``sample``-th distinct state of the workload; 1 checks all of them.
        double_crashes: maximum number of states of a second crash to check: the check itself loses power, and its
            crash states must pass the same check.
        only: name of the one state to check (``point:state``), from the message of a failure.
        max_failures: stop after so many failures.
        deadline_seconds: simulated time limit of the workload and of each check.

    Raises:
        CrashFound: at least one state failed.
        InvalidArgument: there is no state called ``only``.
    """
    run = _Enumeration(check, seed, options or CrashOptions(), sample, max_failures, deadline_seconds)
    recorder = _Recorder(disk or SimDisk(SeededRng(seed)))
    with _rare_collection():
        run.record(recorder, workload)
        gc.freeze()  # the crash points live to the end, so later collections need not scan them
        if only is not None:
            run.replay(recorder.points, only)
        else:
            first = run.check_points(recorder.points)
            run.crash_again(first, double_crashes)
    run.finish()
    return run.report


class _Enumeration:
    """State of one ``enumerate_crashes``."""

    def __init__(
        self,
        check: CrashCheck,
        seed: int,
        options: CrashOptions,
        sample: int,
        max_failures: int,
        deadline_seconds: float,
    ) -> None:
        self._check = check
        self._seed = seed
        self._rng = SeededRng(seed).fork("crashes")
        self._options = options
        self._sample = sample
        self._max_failures = max_failures
        self._deadline_seconds = deadline_seconds
        self._seen: set[tuple[bytes, int]] = set()
        self._first_error: Exception | None = None
        self.report = CrashReport()

    def record(self, recorder: _Recorder, workload: CrashWorkload) -> None:
        """Run the workload, and add a crash point after its end."""

        async def scenario(_world: World) -> None:
            await workload(recorder.disk, recorder.promises)

        run_untraced(self._seed, scenario, deadline_seconds=self._deadline_seconds)
        recorder.take("end")
        self.report.points = len(recorder.points)

    def check_points(self, points: list[_Point]) -> list[_State]:
        """Check every ``sample``-th distinct state of these crash points; return the checked ones."""
        checked: list[_State] = []
        for point in points:
            for state in self._states(point):
                if self._enough():
                    return checked
                self.report.states += 1
                if self._check_if_new(state, self._sample):
                    checked.append(state)
        return checked

    def crash_again(self, first: list[_State], limit: int) -> None:
        """Check states of a second power loss, during the check of one of these states; ``limit`` states at most."""
        rng = self._rng.fork("double")
        for state in _shuffled(first, rng):
            if self.report.doubles >= limit or self._enough():
                return
            for second in _shuffled(self._states_of_check(state), rng)[:_DOUBLES_PER_STATE]:
                self.report.states += 1
                if self.report.doubles < limit and not self._enough() and self._check_if_new(second):
                    self.report.doubles += 1

    def replay(self, points: list[_Point], name: str) -> None:
        """Check the state called ``name`` alone."""
        first, _, _second = name.partition(_THEN)
        states = [state for point in points for state in self._states(point) if state.name == first]
        if name != first:
            states = [again for state in states for again in self._states_of_check(state) if again.name == name]
        if not states:
            raise InvalidArgument(f"no crash state is called {name!r}")
        self._check_if_new(states[0])

    def finish(self) -> None:
        """Raise ``CrashFound`` if there was a failure."""
        if self.report.failures:
            names = "\n  ".join(f"only={name!r}" for name in self.report.failures)
            raise CrashFound(
                f"{len(self.report.failures)} of {self.report.checked} crash states fail:\n  {names}\n"
                f"the first one with {self._first_error!r}",
                self.report,
            ) from self._first_error

    def _states(self, point: _Point) -> Iterator[_State]:
        pending = point.disk.state.pending()
        for description, outcomes in power_loss_outcomes(pending, self._rng.fork(point.name), self._options):
            yield _State(f"{point.name}: {description}", point, outcomes)

    def _states_of_check(self, state: _State) -> list[_State]:
        """The states of a second crash, during a boot from ``state``."""
        recorder = _Recorder(state.disk(), prefix=f"{state.name}{_THEN}", promised=state.point.promises)
        self._run_check(recorder.disk, state.point.promises)
        return [second for point in recorder.points for second in self._states(point)]

    def _check_if_new(self, state: _State, sample: int = 1) -> bool:
        disk = state.disk()
        key = (disk.state.digest(), len(state.point.promises))
        if key in self._seen:
            return False
        self._seen.add(key)
        self.report.distinct += 1
        if self.report.distinct % sample:
            return False
        self.report.checked += 1
        if self.report.checked % _CHECKS_PER_COLLECTION == 0:
            gc.collect()
        try:
            self._run_check(disk, state.point.promises)
        except Exception as error:  # noqa: BLE001 - any exception of a check is a failure
            self.report.failures.append(state.name)
            if isinstance(error, AssertionError):
                self.report.broken += 1
            else:
                self.report.stuck += 1
            self._first_error = self._first_error or error
        return True

    def _run_check(self, disk: SimDisk, promises: tuple[object, ...]) -> None:
        async def scenario(_world: World) -> None:
            await self._check(disk, promises)

        run_untraced(self._seed, scenario, deadline_seconds=self._deadline_seconds)

    def _enough(self) -> bool:
        return len(self.report.failures) >= self._max_failures


def _shuffled(states: list[_State], rng: Rng) -> list[_State]:
    return [states[int(index)] for index in rng.shuffled([str(index) for index in range(len(states))])]


@contextmanager
def _rare_collection() -> Iterator[None]:
    """Collect garbage only between checks, so that no object is finalized during one."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()
        gc.collect()
