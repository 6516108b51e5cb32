"""Every power loss of a workload, tried one by one.

    async def workload(disk, promises):
        journal = await Journal.open(disk)
        promises.add("tried a")
        await journal.append(b"a")
        promises.add("acked a")

    async def check(disk, promises):
        journal = await Journal.open(disk)              # must boot
        found = await journal.read_all()
        assert "acked a" not in promises or b"a" in found

    report = enumerate_crashes(workload, check)

The workload runs once. A *crash point* lies where an operation is in flight, where one has ended,
where a promise was made, and at the end. At each, the crash states of the disk are made, together
with what had been promised by then; every distinct pair of disk and promises is checked on a
fresh loop. With ``double_crashes`` the check itself loses power too: its crash states must pass
the same check.

A failure names its crash state as ``point:state``; ``only="point:state"`` runs just that one.
"""

from __future__ import annotations

import gc
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from tallybook.core.errors import InvalidArgument
from tallybook.runtime.rng import Rng, SeededRng

from .disk import SimDisk
from .fates import CrashOptions, Fates, crash_fates
from .faults import Operation
from .loop import DAY_SECONDS
from .world import World, run_untraced

CHANGING: Final = frozenset(
    {"create", "mkdir", "rename", "sync", "sync-directory", "truncate", "unlink", "write", "write-durable"}
)
"""Operations after which a crash can look different from before."""

_CHECKS_PER_COLLECTION: Final = 256
_DOUBLES_PER_STATE: Final = 8
_THEN: Final = " >> "


class Promises:
    """What the workload has told its callers so far, in order. Only ever grows."""

    def __init__(self, on_add: Callable[[], None]) -> None:
        self._items: list[object] = []
        self._on_add = on_add

    def add(self, item: object) -> None:
        """Promise ``item``; a power loss right after is among those tried. Must not be changed afterwards."""
        self._items.append(item)
        self._on_add()

    def snapshot(self) -> tuple[object, ...]:
        """Everything promised so far."""
        return tuple(self._items)


Workload = Callable[[SimDisk, Promises], Awaitable[None]]
Check = Callable[[SimDisk, tuple[object, ...]], Awaitable[None]]


@dataclass(slots=True)
class CrashReport:
    """What was tried.

    Attributes:
        points: crash points of the workload.
        states: crash states made, equal ones counted again.
        checked: distinct pairs of disk and promises that were checked.
        doubles: of those, states of a second crash, during the check.
        broken: of those, states in which a promise was not kept: the check raised AssertionError.
        stuck: of those, states from which the check did not get so far: it raised anything else.
        failures: names of the states that failed.
    """

    points: int = 0
    states: int = 0
    checked: int = 0
    doubles: int = 0
    broken: int = 0
    stuck: int = 0
    failures: list[str] = field(default_factory=list)


class CrashFound(AssertionError):
    """Some crash states fail the check; the message names them, the first failure is the cause."""

    def __init__(self, message: str, report: CrashReport) -> None:
        super().__init__(message)
        self.report = report


@dataclass(frozen=True, slots=True)
class _Point:
    """A moment at which power may be lost: the disk as it then stood."""

    name: str
    disk: SimDisk
    promises: tuple[object, ...]


@dataclass(frozen=True, slots=True)
class _State:
    """One outcome of a power loss."""

    name: str
    point: _Point
    fates: Fates

    def disk(self) -> SimDisk:
        """A fresh disk to boot from."""
        return self.point.disk.image(self.fates)


class _Recorder:
    """Collects the crash points of one run over one disk."""

    def __init__(self, disk: SimDisk, *, prefix: str = "", promised: tuple[object, ...] | None = None) -> None:
        self.disk = disk
        self._prefix = prefix
        self._promised = promised
        self.points: list[_Point] = []
        self.promises = Promises(lambda: self.take("promise"))
        disk.on_submit = lambda operation: self._operation("in", operation)
        disk.on_operation = lambda operation: self._operation("after", operation)

    def take(self, moment: str) -> None:
        """Record a crash point here and now."""
        promised = self.promises.snapshot() if self._promised is None else self._promised
        self.points.append(_Point(f"{self._prefix}{len(self.points)} {moment}", self.disk.fork(), promised))

    def _operation(self, moment: str, operation: Operation) -> None:
        if operation.name in CHANGING:
            self.take(f"{moment} {operation.name} {operation.path}")


def enumerate_crashes(
    workload: Workload,
    check: Check,
    *,
    disk: SimDisk | None = None,
    seed: int = 0,
    options: CrashOptions | None = None,
    double_crashes: int = 0,
    only: str | None = None,
    max_failures: int = 3,
    deadline_seconds: float = DAY_SECONDS,
) -> CrashReport:
    """Run ``workload`` once, then ``check`` on every distinct crash state.

    Args:
        workload: gets the disk, and the promises it is to extend whenever it tells a caller something.
        check: boots from the crashed disk and compares with the promises; any exception is a failure.
        disk: where the workload starts; by default an empty disk without latency.
        seed: decides the random choices among crash states.
        options: how many states to make at each crash point.
        double_crashes: states of a second crash to check as well, at most.
        only: the name of the one state to check, as a failure gave it.
        max_failures: stop after so many.
        deadline_seconds: simulated time that the workload, and each check, may take.

    Raises:
        CrashFound: at least one state failed.
        InvalidArgument: there is no state called ``only``.
    """
    run = _Enumeration(check, seed, options or CrashOptions(), max_failures, deadline_seconds)
    recorder = _Recorder(disk or SimDisk(SeededRng(seed)))
    with _rare_collection():
        run.record(recorder, workload)
        gc.freeze()  # the crash points stay to the end: no need to look at them at every collection
        if only is not None:
            run.replay(recorder.points, only)
        else:
            first = run.check_points(recorder.points)
            run.crash_again(first, double_crashes)
    run.finish()
    return run.report


class _Enumeration:
    """The work of one ``enumerate_crashes``."""

    def __init__(
        self, check: Check, seed: int, options: CrashOptions, max_failures: int, deadline_seconds: float
    ) -> None:
        self._check = check
        self._seed = seed
        self._rng = SeededRng(seed).fork("crashes")
        self._options = options
        self._max_failures = max_failures
        self._deadline_seconds = deadline_seconds
        self._seen: set[tuple[bytes, int]] = set()
        self._first_error: Exception | None = None
        self.report = CrashReport()

    def record(self, recorder: _Recorder, workload: Workload) -> None:
        """Run the workload, and add the crash point after its end."""

        async def scenario(_world: World) -> None:
            await workload(recorder.disk, recorder.promises)

        run_untraced(self._seed, scenario, deadline_seconds=self._deadline_seconds)
        recorder.take("end")
        self.report.points = len(recorder.points)

    def check_points(self, points: list[_Point]) -> list[_State]:
        """Check every distinct state of these crash points; return those."""
        distinct: list[_State] = []
        for point in points:
            for state in self._states(point):
                if self._enough():
                    return distinct
                self.report.states += 1
                if self._check_if_new(state):
                    distinct.append(state)
        return distinct

    def crash_again(self, first: list[_State], limit: int) -> None:
        """Lose power a second time, while the check of one of these states runs, until ``limit`` states were tried."""
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
        """Raise what was found."""
        if self.report.failures:
            names = "\n  ".join(f"only={name!r}" for name in self.report.failures)
            raise CrashFound(
                f"{len(self.report.failures)} of {self.report.checked} crash states fail:\n  {names}\n"
                f"the first one with {self._first_error!r}",
                self.report,
            ) from self._first_error

    def _states(self, point: _Point) -> Iterator[_State]:
        pending = point.disk.state.pending()
        for description, fates in crash_fates(pending, self._rng.fork(point.name), self._options):
            yield _State(f"{point.name}: {description}", point, fates)

    def _states_of_check(self, state: _State) -> list[_State]:
        """The states of a second crash, during a boot from ``state``."""
        recorder = _Recorder(state.disk(), prefix=f"{state.name}{_THEN}", promised=state.point.promises)
        self._run_check(recorder.disk, state.point.promises)
        return [second for point in recorder.points for second in self._states(point)]

    def _check_if_new(self, state: _State) -> bool:
        disk = state.disk()
        key = (disk.state.digest(), len(state.point.promises))
        if key in self._seen:
            return False
        self._seen.add(key)
        self.report.checked += 1
        if self.report.checked % _CHECKS_PER_COLLECTION == 0:
            gc.collect()
        try:
            self._run_check(disk, state.point.promises)
        except Exception as error:  # noqa: BLE001 - whatever a check raises is its verdict
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
    """Collect garbage between checks only: no cycle ends in the middle of one."""
    collecting, set_aside = gc.isenabled(), gc.get_freeze_count() > 0
    gc.disable()
    try:
        yield
    finally:
        gc.unfreeze()
        if collecting:
            gc.enable()
        gc.collect()
        if set_aside:
            gc.freeze()  # as the caller had it, for the sake of collections to come
