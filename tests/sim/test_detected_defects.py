"""Defects planted in the cluster or in the simulation itself are detected, by one or two seeds each."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from typing import Any, NoReturn

import pytest

from tallybook.bookie.gc.dropping import LedgerDropper
from tallybook.client.reader.handle import LedgerReader
from tallybook.client.reader.tail import TailWaiter
from tallybook.core.add_kind import AddKind
from tallybook.core.batch import Entry
from tallybook.core.errors import BookieUnavailable, NotEnoughBookies, TallybookError
from tallybook.offload.bucket.janitor import BucketJanitor
from tallybook.offload.offloader import Offloader
from tallybook.repair.replicator import Replicator
from tallybook.sim.checks import archive_liveness as settling
from tallybook.sim.checks import liveness
from tallybook.sim.configuration.run_configuration import configuration_of_seed
from tallybook.sim.deterministic import SimDisk, World
from tallybook.sim.faults import nemesis
from tallybook.sim.faults.nemesis import Nemesis, rotting
from tallybook.sim.one_seed import run_quietly
from tallybook.sim.oracle.observed_bookie import ObservedBookie
from tallybook.sim.run import Universe
from tallybook.sim.stage.disk_bookie import ROOT, DiskBookie, batch_of
from tallybook.sim.workload import repairers
from tallybook.sim.workload.ledgers import Workload
from tallybook.sim.workload.write_modes import AppendOutcome, WorkloadWriter

from ..simulated import simulated


def first_failure(seeds: Iterable[int]) -> str:
    """Failure of the first of these seeds that fails.

    Which seed detects a defect changes with the code; that one of a few seeds detects it does not.

    Raises:
        StopIteration: none of them fails.
    """
    return next(filter(None, (run_quietly(seed).failure for seed in seeds)))


@pytest.mark.parametrize("error", [KeyError("gone"), BookieUnavailable("gone"), asyncio.CancelledError("gone")])
def test_an_error_of_the_simulation_itself_is_the_failure_of_its_seed(
    error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def until(*_: object) -> None:
        raise error

    monkeypatch.setattr(Universe, "until", until)
    report = run_quietly(111)
    assert report.failure == f"harness: {error!r}"
    assert any("in until" in line for line in report.trace), "where it was"
    assert report.digest


@pytest.mark.parametrize(
    ("owner", "name", "invariant"),
    [
        (Nemesis, "_node", "simulation"),
        (Workload, "_fill", "simulation"),
        (WorkloadWriter, "durable_up_to", "client"),
    ],
)
def test_no_task_of_a_run_dies_unnoticed(
    owner: type, name: str, invariant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> NoReturn:
        raise RuntimeError("it does not work")

    async def broken_later(*_: object) -> NoReturn:
        broken()

    later = asyncio.iscoroutinefunction(getattr(owner, name))
    monkeypatch.setattr(owner, name, broken_later if later else broken)
    failure = run_quietly(7).failure
    assert failure.startswith(f"InvariantBroken: {invariant}: ")
    assert "it does not work" in failure


def test_a_tail_that_never_sees_a_close_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    tail = LedgerReader.tail

    async def deaf(reader: LedgerReader, first: int = 0) -> AsyncIterator[Entry]:
        if not reader.closed:
            await asyncio.Event().wait()
        async for entry in tail(reader, first):
            yield entry

    monkeypatch.setattr(LedgerReader, "tail", deaf)
    monkeypatch.setattr(liveness, "LIVENESS_SECONDS", 20.0)  # to be done sooner
    assert run_quietly(1).failure == "InvariantBroken: L5: readers do not reach the end"


def test_a_tail_that_gets_no_entries_is_detected_even_if_its_ledger_stays_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def never(*_: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(TailWaiter, "wait_for_more", never)
    monkeypatch.setattr(liveness, "LIVENESS_SECONDS", 20.0)  # to be done sooner
    assert run_quietly(4).failure == "InvariantBroken: L5: readers do not reach the end"


def test_writers_that_can_append_nothing_are_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> TallybookError:
        return NotEnoughBookies("nobody is there")

    monkeypatch.setattr(WorkloadWriter, "_append", refused)
    assert run_quietly(1).failure.startswith("InvariantBroken: L2: ")


def test_a_writer_that_does_not_get_on_after_healing_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    append = WorkloadWriter._append
    entries: Counter[int] = Counter()

    def refused_above_some(writer: WorkloadWriter, payload: bytes) -> AppendOutcome:
        entries[writer.id] += 1
        return append(writer, payload) if entries[writer.id] < 6 else NotEnoughBookies("nobody is there")

    monkeypatch.setattr(WorkloadWriter, "_append", refused_above_some)
    # In some of them a writer still has its ledger.
    failures = (run_quietly(seed).failure for seed in range(1, 20))
    found = next((failure for failure in failures if "InvariantBroken: L2: writer-" in failure), "")
    assert "nobody is there" in found


def test_a_bookie_that_takes_nothing_is_detected_though_writers_do_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    add = ObservedBookie.add

    def deaf(bookie: ObservedBookie, *args: Any, **kwargs: Any) -> None:
        if bookie.bookie_id != "b0":
            add(bookie, *args, **kwargs)

    monkeypatch.setattr(ObservedBookie, "add", deaf)
    monkeypatch.setattr(liveness, "LIVENESS_SECONDS", 10.0)  # to be done sooner
    assert run_quietly(1).failure == "InvariantBroken: L2: no ledger can be written on all bookies"


@pytest.mark.parametrize(
    ("owner", "step", "invariant"),
    [
        (Offloader, "_archive", "L6"),
        (Offloader, "_release", "L6"),
        (Offloader, "_give_up_dead_attempts", "L6"),
        (BucketJanitor, "collect", "I17"),
    ],
)
def test_an_offloader_that_leaves_out_one_of_its_steps_is_detected(
    owner: type, step: str, invariant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def nothing(*_: object, **__: object) -> int:
        """Do nothing."""
        return 0

    monkeypatch.setattr(owner, step, nothing)
    monkeypatch.setattr(settling, "SETTLING_SECONDS", 30.0)  # to be done sooner
    configurations = ((seed, configuration_of_seed(seed)) for seed in range(60))
    # The other features only take time.
    archives = [seed for seed, each in configurations if each.archive and not each.repair and not each.streams]
    assert first_failure(archives).startswith(f"InvariantBroken: {invariant}: ")


def test_a_frozen_client_resumes_long_after_all_others_have_finished(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nemesis, "SLEEPS_ON", 1.0)
    for seed in range(7, 27):
        report = run_quietly(seed)
        assert report.failure == "", seed
        if report.outcome.met.get("client: frozen until the end of the run"):
            break
    assert report.outcome.met["client: frozen until the end of the run"] == 1
    assert report.seconds > nemesis.LONG_FREEZE_SECONDS


def test_a_repair_that_repairs_nothing_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    async def idle(_self: Replicator) -> bool:
        return False

    monkeypatch.setattr(Replicator, "run_one_task", idle)
    monkeypatch.setattr(repairers, "REPAIR_SECONDS", 20.0)  # to be done sooner
    seeds = (seed for seed in range(20) if configuration_of_seed(seed).repair is not None)
    assert first_failure(seeds).startswith("InvariantBroken: L3: ")


def test_a_bookie_that_keeps_what_others_have_for_ever_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    async def keep(_self: LedgerDropper, _ledger_ids: object) -> None:
        """Remove nothing."""

    monkeypatch.setattr(LedgerDropper, "drop_over_replicated", keep)
    seeds = (seed for seed in range(22, 122) if configuration_of_seed(seed).repair is not None)
    assert first_failure(seeds).startswith("InvariantBroken: L4: ")


@simulated
async def test_rot_comes_to_an_index_that_was_made_again_as_to_the_first_one(world: World) -> None:
    node = DiskBookie(SimDisk(world.rng), world.clock)

    async def live(first: int) -> None:
        await node.boot()
        for number in range(first, first + 12):
            assert (await node.add(batch_of(number), kind=AddKind.RECOVERY)).code == 0
            await node.bookie.flush()
        await node.stop()

    await live(0)
    assert {path.rpartition("/")[0] for path in rotting(node.disk, node.settings, "index")} == {f"{ROOT}/index"}
    for name in await node.disk.list(f"{ROOT}/index"):
        await node.disk.unlink(f"{ROOT}/index/{name}")
    await live(12)
    assert {path.rpartition("/")[0] for path in rotting(node.disk, node.settings, "index")} == {f"{ROOT}/index.1"}
