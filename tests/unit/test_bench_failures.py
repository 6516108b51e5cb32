"""Benchmarks of the death of a bookie or a writer: the moments, the loads, and the report."""

import asyncio
from types import SimpleNamespace

import pytest

from tallybook.bench.compare.gates import FAILURE_GATES
from tallybook.bench.compare.workloads import chosen
from tallybook.bench.gates import TALLYBOOK, Measurement, judge
from tallybook.bench.loads.ensemble_change import ChangePlan, figures_of, measure_change
from tallybook.bench.loads.recovery import WINDOW, measure_recovery, write_for_ever
from tallybook.core.errors import InvalidArgument, InvariantViolation, NotEnoughBookies
from tallybook.core.settings import ClientSettings
from tallybook.runtime.clock import RealClock
from tallybook.runtime.rng import SeededRng

from ..support.memory_cluster import MemoryCluster

MS = 1_000_000
SETTINGS = ClientSettings(away_timeout_ms=400, reconnect_ms=20)


async def cluster_of(bookies):
    """Bookies in memory, in real time."""
    cluster = MemoryCluster(SimpleNamespace(rng=SeededRng(1), clock=RealClock()), bookies=bookies)
    await cluster.start()
    return cluster


def test_a_death_before_anything_was_confirmed_says_nothing():
    with pytest.raises(InvariantViolation):
        figures_of([5 * MS], 1 * MS, 2 * MS, 5 * MS)


def test_detection_and_change_are_told_apart_and_only_the_gap_around_the_death_counts():
    confirmed = [1 * MS, 9 * MS, 10 * MS, 1_500 * MS, 1_501 * MS]
    assert figures_of(confirmed, killed_ns=11 * MS, wanted_ns=1_211 * MS, changed_ns=1_500 * MS) == {
        "gap_ms": 1490.0, "detection_ms": 1200.0, "change_ms": 289.0,
    }  # fmt: skip
    earlier_gap = [1 * MS, 900 * MS, 905 * MS, 920 * MS]
    assert figures_of(earlier_gap, 901 * MS, 910 * MS, 920 * MS)["gap_ms"] == 15.0


@pytest.mark.parametrize(
    "wrong", [{"ack_quorum": 4}, {"ack_quorum": 0}, {"ack_quorum": 2, "rate": 0.0}, {"ack_quorum": 2, "hung": -1}]
)
def test_a_plan_that_cannot_be_run_is_refused(wrong):
    with pytest.raises(InvalidArgument):
        ChangePlan(**wrong).check()


@pytest.mark.parametrize("ack_quorum", [2, 3])
async def test_a_bookie_dies_under_a_steady_writer_and_the_moments_are_in_order(ack_quorum):
    cluster = await cluster_of(4)
    killed = []

    def kill(bookie_id):
        killed.append(cluster.die(bookie_id).bookie_id)

    plan = ChangePlan(ack_quorum, 100, rate=500.0, before_seconds=0.2, after_seconds=0.1, timeout_seconds=5.0)
    figures = await measure_change(cluster.client(SETTINGS).world, plan, kill, SETTINGS)
    await cluster.stop()
    assert len(killed) == 1
    assert figures["errors"] == 0
    patience_ms = 400 if ack_quorum == 2 else 100
    assert figures["detection_ms"] >= patience_ms - 1
    assert figures["change_ms"] > 0
    if ack_quorum == 3:
        assert figures["gap_ms"] >= patience_ms, "nothing can be confirmed meanwhile"
    else:
        assert figures["gap_ms"] < patience_ms, "the two that are left confirm what comes"


async def test_a_plan_that_leaves_no_spare_is_refused():
    cluster = await cluster_of(5)
    plan = ChangePlan(3, 100, rate=500.0, hung=2)
    with pytest.raises(InvalidArgument, match="2 of 2 candidates are to hang"):
        await measure_change(cluster.client(SETTINGS).world, plan, cluster.die, SETTINGS, hang=cluster.die)
    await cluster.stop()


@pytest.mark.parametrize("gate", FAILURE_GATES, ids=lambda gate: f"{gate.workload}-{gate.figure}")
def test_one_bad_round_or_one_that_failed_is_enough_to_miss_a_gate_on_failures(gate):
    def judged(*rounds):
        return judge(gate, [Measurement(i, TALLYBOOK, gate.workload, figures) for i, figures in enumerate(rounds)])

    good, bad = {"errors": 0, gate.figure: gate.bound / 2}, {"errors": 0, gate.figure: gate.bound + 1}
    assert judged(good, good, good).met
    assert not judged(good, good, bad).met
    assert judged(good, good, bad).value == gate.bound + 1
    failed = judged(good, {"errors": 1, gate.figure: 1.0}, good)
    assert not failed.met
    assert len(failed.pairs) == 3
    assert not judged().met


async def test_a_change_that_never_comes_is_an_error_and_not_a_figure():
    cluster = await cluster_of(3)
    plan = ChangePlan(2, 100, rate=200.0, before_seconds=0.1, after_seconds=0.1, timeout_seconds=0.3)
    with pytest.raises(NotEnoughBookies, match="the bookie was not replaced"):
        await measure_change(cluster.client(SETTINGS).world, plan, cluster.die, SETTINGS)
    await cluster.stop()


async def test_a_ledger_whose_writer_died_is_recovered_with_all_it_said_was_confirmed():
    cluster = await cluster_of(3)
    told = asyncio.get_running_loop().create_future()
    async with cluster.client() as client, cluster.client() as other:
        async with cluster.client() as dying:
            writing = asyncio.ensure_future(write_for_ever(dying, 2_000, 20, lambda *what: told.set_result(what)))
            ledger_id, confirmed = await told
            writing.cancel()
            await asyncio.gather(writing, return_exceptions=True)
        figures = await measure_recovery(client, other, ledger_id)
    await cluster.stop()
    assert confirmed >= 2_000
    assert figures["ledger_entries"] >= confirmed
    assert 0 <= figures["tail_entries"] <= WINDOW + 64
    assert figures["beyond_tail_ms"] == pytest.approx(figures["recovery_ms"] - figures["tail_read_ms"], abs=0.01)


def test_a_name_stands_for_itself_or_for_all_that_begin_with_it():
    assert [workload.name for workload in chosen(["adds-1KiB"])] == ["adds-1KiB"]
    assert [workload.name for workload in chosen(["change", "recovery"])] == [
        "change-qa2", "change-qa3", "change-stopped", "change-hung", "recovery"
    ]  # fmt: skip
    assert chosen([]) == []
    for unknown in ("chang", "adds-1KiB-", ""):
        with pytest.raises(InvalidArgument):
            chosen([unknown])
