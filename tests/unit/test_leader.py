"""Leader election: who takes over and when; two never work at once while clocks agree."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest

from tallybook.core.errors import Conflict, DamagedFile, InvalidArgument, InvariantViolation, MetadataUnavailable
from tallybook.metadata.memory import MemoryMetadata
from tallybook.metadata.records.leader import MAX_POLL_SECONDS, WORK_SHARE, Leadership
from tallybook.runtime.rng import SeededRng
from tallybook.sim.deterministic import World, run_seed

from ..simulated import Parts, on_stage
from ..support.fault_script import FaultScript
from ..support.faulty_metadata import FaultyMetadataStore, MetadataFault, RandomMetadataFaults

LEASE = 9.0
RECORD = "archive/leader"


class Process:
    """The environment of a candidate: a clock, and a connection to the store, both of which may stop."""

    def __init__(self, world, store) -> None:
        self._world = world
        self._inner = store
        self._thawed = asyncio.Event()
        self._thawed.set()
        self._frozen_at = 0.0
        self._stood_still = 0.0
        self.cut = False
        self.task: asyncio.Task | None = None
        self.seconds_there = self.seconds_back = 0.01

    def freeze(self) -> None:
        self._frozen_at = self.monotonic()
        self._thawed.clear()

    def thaw(self, *, clock_stood_still: bool = False) -> None:
        if clock_stood_still:
            self._stood_still = self._world.clock.monotonic() - self._frozen_at
        self._thawed.set()

    def monotonic(self) -> float:
        return self._world.clock.monotonic() - self._stood_still

    def wall_us(self) -> int:
        raise AssertionError("asked what time it is")

    async def sleep(self, seconds: float) -> None:
        await self._world.clock.sleep(seconds)
        await self._thawed.wait()

    def __getattr__(self, name: str):
        operation = getattr(self._inner, name)

        async def carried(*arguments, **options):
            if self.cut:
                await self.sleep(5)
                raise MetadataUnavailable("cut off")
            await self.sleep(self.seconds_there)
            result = await operation(*arguments, **options)
            await self.sleep(self.seconds_back)
            return result

        return carried


@dataclass
class Stage:
    """Candidates, and which of them work since when."""

    world: object
    shared: MemoryMetadata = field(default_factory=lambda: MemoryMetadata(SeededRng(1)))
    at_work: list[str] = field(default_factory=list)
    began: list[tuple[str, float]] = field(default_factory=list)
    ended: list[tuple[str, float]] = field(default_factory=list)
    together: list[tuple[str, ...]] = field(default_factory=list)
    processes: list[Process] = field(default_factory=list)

    def candidate(self, name, *, store=None, lease=LEASE, takes_to_end=0.0) -> Process:
        process = Process(self.world, store or self.shared.client().store)
        leadership = Leadership(process, process, SeededRng(name), record=RECORD, lease_s=lease)
        process.task = asyncio.ensure_future(leadership.lead(lambda: self.work(name, takes_to_end)))
        self.processes.append(process)
        return process

    async def leader_and_other(self, **of_the_leader) -> tuple[Process, Process]:
        one = self.candidate("one", **of_the_leader)
        await self.leads("one")
        return one, self.candidate("other")

    async def work(self, name: str, takes_to_end: float) -> None:
        now = self.world.clock.monotonic
        self.at_work.append(name)
        self.began.append((name, now()))
        if len(self.at_work) > 1:
            self.together.append(tuple(self.at_work))
        try:
            await asyncio.Event().wait()
        finally:
            try:
                await self.world.clock.sleep(takes_to_end)
            finally:  # runs also on a second cancellation
                self.at_work.remove(name)
                self.ended.append((name, now()))

    async def until(self, condition: Callable[[], bool], seconds: float) -> None:
        for _ in range(round(seconds / 0.05)):
            if condition():
                return
            await self.world.clock.sleep(0.05)
        assert condition(), (self.at_work, self.began, self.ended)

    async def leads(self, name: str, seconds: float = 0.5) -> None:
        await self.until(lambda: self.at_work == [name], seconds)

    async def holder(self) -> object:
        found = await self.shared.client().store.read_record(RECORD)
        return json.loads(found.value)["holder"]


async def stop(*processes: Process) -> None:
    for process in processes:
        process.task.cancel()
    await asyncio.gather(*(process.task for process in processes), return_exceptions=True)


@asynccontextmanager
async def new_stage(world: World) -> AsyncIterator[Parts]:
    stage = Stage(world)
    yield {"stage": stage}
    await stop(*stage.processes)


with_candidates = on_stage(new_stage)


# --- one after the other ----------------------------------------------------------------------------------------------


@with_candidates
async def test_one_of_two_leads_for_as_long_as_it_likes(stage: Stage) -> None:
    await stage.leader_and_other()
    await stage.world.clock.sleep(50 * LEASE)
    assert stage.began == [("one", stage.began[0][1])]


@with_candidates
async def test_of_candidates_that_begin_together_one_leads(stage: Stage) -> None:
    for n in range(5):
        stage.candidate(f"c{n}")
    await stage.world.clock.sleep(2 * LEASE)
    assert len(stage.at_work) == len(stage.began) == 1
    assert stage.together == []


@with_candidates
async def test_a_leader_that_resigns_is_followed_at_the_next_poll(stage: Stage) -> None:
    one, other = await stage.leader_and_other(takes_to_end=2 * LEASE)
    await stage.world.clock.sleep(LEASE)
    await stop(one)
    resigned = stage.ended[0][1]
    await stage.leads("other", MAX_POLL_SECONDS + 0.5)
    assert 0 < stage.began[1][1] - resigned < MAX_POLL_SECONDS + 0.1
    assert stage.together == []
    await stop(other)
    assert await stage.holder() is None


@pytest.mark.parametrize("after", [n / 20 for n in range(60, 90)])
@with_candidates
async def test_a_leader_that_leaves_during_a_renewal_still_resigns(stage: Stage, *, after) -> None:
    process = stage.candidate("one")
    await stage.leads("one")
    process.seconds_there = process.seconds_back = 0.3
    await stage.world.clock.sleep(after)
    await stop(process)
    assert await stage.holder() is None


@with_candidates
async def test_a_leader_that_is_cut_off_stops_before_another_one_begins(stage: Stage) -> None:
    process, _ = await stage.leader_and_other(takes_to_end=(1 - WORK_SHARE) * LEASE)
    await stage.world.clock.sleep(2 * LEASE)
    cut_at = stage.world.clock.monotonic()
    process.cut = True
    await stage.until(lambda: stage.began[-1][0] == "other", 2 * LEASE)
    assert stage.together == []
    assert stage.ended[0][1] - cut_at <= LEASE
    assert LEASE / 2 < stage.began[-1][1] - cut_at < LEASE + 2
    process.cut = False
    await stage.world.clock.sleep(5 * LEASE)
    assert [name for name, _ in stage.began] == ["one", "other"]


@with_candidates
async def test_a_leader_whose_store_is_away_for_a_moment_goes_on(stage: Stage) -> None:
    process = stage.candidate("one")
    stage.candidate("other")
    await stage.until(lambda: bool(stage.at_work), 1)
    await stage.world.clock.sleep(LEASE / 3 - 0.2)
    process.cut = True
    await stage.world.clock.sleep(1)
    process.cut = False
    await stage.world.clock.sleep(5 * LEASE)
    assert [name for name, _ in stage.began] == stage.at_work


@with_candidates
async def test_a_shorter_lease_of_ones_own_does_not_cut_that_of_another_short(stage: Stage) -> None:
    process = stage.candidate("one", lease=6 * LEASE)
    await stage.leads("one")
    stage.candidate("other", lease=LEASE)
    await stage.world.clock.sleep(12 * LEASE)
    process.cut = True
    await stage.leads("other", 8 * LEASE)
    assert stage.together == []
    assert len(stage.began) == 2


# --- processes that are held up ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("clock_stood_still", [False, True])
@with_candidates
async def test_a_leader_that_was_stopped_is_out_at_its_next_renewal(stage: Stage, *, clock_stood_still) -> None:
    process, _ = await stage.leader_and_other()
    await stage.world.clock.sleep(LEASE)
    process.freeze()
    await stage.until(lambda: stage.began[-1][0] == "other", 2 * LEASE)
    await stage.world.clock.sleep(3 * LEASE)
    process.thaw(clock_stood_still=clock_stood_still)
    await stage.leads("other", LEASE / 3 + 0.2)
    await stage.world.clock.sleep(5 * LEASE)
    assert [name for name, _ in stage.began] == ["one", "other"]


@pytest.mark.parametrize("seconds", [LEASE, 3600.0])
@with_candidates
async def test_a_candidate_that_was_stopped_does_not_take_its_absence_for_the_leaders(stage: Stage, *, seconds) -> None:
    _, process = await stage.leader_and_other()
    await stage.world.clock.sleep(LEASE / 2)
    process.freeze()
    await stage.world.clock.sleep(seconds)
    process.thaw()
    await stage.world.clock.sleep(3 * LEASE)
    assert stage.at_work == ["one"]
    assert len(stage.began) == 1


# --- answers that get lost --------------------------------------------------------------------------------------------

LOST = [MetadataFault.UNKNOWN_APPLIED, MetadataFault.UNKNOWN_LOST, MetadataFault.UNKNOWN_LATE]


@pytest.mark.parametrize("fault", LOST)
@pytest.mark.parametrize("before", [0, 1, 2])
@with_candidates
async def test_a_lost_answer_does_not_cost_the_leader_its_lead(stage: Stage, *, fault, before) -> None:
    faults = FaultScript([])
    store = FaultyMetadataStore(stage.shared.client().store, faults, stage.world.clock)
    stage.candidate("one", store=store)
    if before:
        await stage.leads("one")
        await stage.world.clock.sleep((before - 1) * LEASE / 3)
    faults._steps += [("write_record", fault)] * 2
    await stage.leads("one", 3)
    stage.candidate("other")
    await stage.world.clock.sleep(5 * LEASE)
    assert faults.finished
    assert [name for name, _ in stage.began] == ["one"]


@pytest.mark.parametrize("fault", LOST)
@with_candidates
async def test_a_resigning_leader_settles_a_lost_answer(stage: Stage, *, fault) -> None:
    faults = FaultScript([])
    one = stage.candidate("one", store=FaultyMetadataStore(stage.shared.client().store, faults, stage.world.clock))
    await stage.leads("one")
    faults._steps.append(("write_record", fault))
    await stop(one)
    assert faults.finished
    assert await stage.holder() is None


@pytest.mark.parametrize("seed", range(6))
def test_two_never_work_at_once_despite_lost_answers_and_in_the_end_one_does(seed):
    async def scenario(world) -> None:
        stage, rates = Stage(world), {}
        rates.update(dict.fromkeys(LOST, 0.12) | {MetadataFault.UNAVAILABLE: 0.15})
        candidates = {}

        def begin(name: str) -> None:
            faults = RandomMetadataFaults(world.rng.fork(name), rates)
            store = FaultyMetadataStore(stage.shared.client().store, faults, world.clock)
            candidates[name] = stage.candidate(name, store=store, takes_to_end=world.rng.random())

        for n in range(3):
            begin(f"c{n}")
        for n in range(3, 60):
            await world.clock.sleep(world.rng.random() * LEASE)
            name = sorted(candidates)[world.rng.randint(0, len(candidates) - 1)]
            process = candidates[name]
            if world.rng.random() < 0.3:
                await stop(process)
                del candidates[name]
                begin(f"c{n}")
            else:
                process.cut = not process.cut
                process.seconds_there, process.seconds_back = world.rng.random(), world.rng.random()
        assert stage.together == []
        assert len(stage.began) > 5
        rates.clear()
        for process in candidates.values():
            process.cut = False
        await stage.until(lambda: len(stage.at_work) == 1, 2 * LEASE)
        await stop(*candidates.values())
        assert stage.at_work == []

    run_seed(seed, scenario)


# --- work that ends ---------------------------------------------------------------------------------------------------


@with_candidates
async def test_work_that_ends_by_itself_ends_the_lead(stage: Stage) -> None:
    leadership = Leadership(stage.shared.client().store, stage.world.clock, SeededRng(1), record=RECORD, lease_s=LEASE)
    done = []

    async def work() -> None:
        await stage.world.clock.sleep(2 * LEASE)
        done.append(await stage.holder())

    await leadership.lead(work)
    assert done[0] is not None
    assert await stage.holder() is None
    await leadership.lead(work)
    assert len(done) == 2


def once(stage: Stage, *, lease: float = LEASE) -> tuple[Process, Leadership]:
    process = Process(stage.world, stage.shared.client().store)
    return process, Leadership(process, process, SeededRng("once"), record=RECORD, lease_s=lease)


@with_candidates
async def test_work_that_is_done_once_waits_for_one_that_died_for_as_long_as_its_lease_was(stage: Stage) -> None:
    dead = json.dumps({"format": 1, "holder": "dead", "lease_ms": round(6_000 * LEASE)}).encode()
    await stage.shared.client().store.write_record(RECORD, dead, None)
    done = []

    async def work() -> None:
        done.append(stage.world.clock.monotonic())

    _, leadership = once(stage)
    await leadership.lead_once(work, busy="another one leads")
    assert 6 * LEASE <= done[0] <= 7 * LEASE


@with_candidates
async def test_work_that_is_done_once_waits_anew_but_not_for_ever_where_another_one_takes_the_lead_from_it(
    stage: Stage,
) -> None:
    process, leadership = once(stage)
    begun, clock = [], stage.world.clock

    async def work() -> None:
        begun.append(clock.monotonic())
        await clock.sleep(1_000)

    doing = asyncio.ensure_future(leadership.lead_once(work, busy="another one leads"))
    await stage.until(lambda: bool(begun), 1)
    process.cut = True
    stage.candidate("other")
    await stage.leads("other", 3 * LEASE)
    process.cut = False
    since = clock.monotonic()
    with pytest.raises(Conflict, match="another one leads"):
        await doing
    assert clock.monotonic() - since <= 3 * LEASE
    assert len(begun) == 1


@with_candidates
async def test_work_that_is_done_once_says_that_the_store_is_away_and_blames_no_other(stage: Stage) -> None:
    process, leadership = once(stage)
    process.cut = True
    with pytest.raises(MetadataUnavailable, match="archive/leader: it is not known who leads: "):
        await leadership.lead_once(asyncio.Event().wait, busy="another one leads")
    assert stage.world.clock.monotonic() <= 3 * LEASE


@with_candidates
async def test_the_error_of_the_work_ends_the_lead(stage: Stage) -> None:
    async def work() -> None:
        raise InvariantViolation("this cannot be")

    leadership = Leadership(stage.shared.client().store, stage.world.clock, SeededRng(1), record=RECORD, lease_s=LEASE)
    with pytest.raises(InvariantViolation, match="this cannot be"):
        await leadership.lead(work)
    assert await stage.holder() is None


@pytest.mark.parametrize(
    "value", [b"", b"x", b"\xff", b"[]", b"{}", b'{"holder": 1, "lease_ms": 1}', b'{"holder": "x", "lease_ms": "1"}']
)
@with_candidates
async def test_a_record_that_is_none_is_damage(stage: Stage, *, value) -> None:
    await stage.shared.client().store.write_record(RECORD, value, None)
    one = stage.candidate("one")
    with pytest.raises(DamagedFile, match="archive/leader does not name a leader"):
        await one.task


@pytest.mark.parametrize("lease", [0, -1.0, float("nan")])
def test_a_lease_is_longer_than_nothing(lease):
    with pytest.raises(InvalidArgument):
        Leadership(MemoryMetadata(SeededRng(1)).client().store, None, SeededRng(1), record=RECORD, lease_s=lease)
