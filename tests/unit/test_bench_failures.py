"""Benchmarks of what happens when a bookie or a writer dies: the moments, the loads, and how they are shown."""

import asyncio
from types import SimpleNamespace

import pytest

from tallybook.bench.change_load import ChangePlan, figures_of, measure_change
from tallybook.bench.gates import FAILURE_GATES, GATES, TALLYBOOK, Measurement, judge
from tallybook.bench.recovery_load import WINDOW, measure_recovery, write_for_ever
from tallybook.bench.report import render
from tallybook.bench.workloads import FAILURES, GROUPS, WORKLOADS, Kind, chosen
from tallybook.core.config import ClientSettings
from tallybook.core.errors import InvalidArgument, InvariantViolation, NotEnoughBookies
from tallybook.runtime.clock import RealClock
from tallybook.runtime.rng import SeededRng
from tallybook.sim.stage.cluster import MemoryCluster

MS = 1_000_000
SETTINGS = ClientSettings(away_timeout_ms=400, reconnect_ms=20)


async def cluster_of(bookies):
    """Bookies in memory, in real time."""
    cluster = MemoryCluster(SimpleNamespace(rng=SeededRng(1), clock=RealClock()), bookies=bookies)
    await cluster.start()
    return cluster


def test_detection_and_change_are_told_apart_and_the_gap_begins_before_the_death():
    confirmed = [1 * MS, 9 * MS, 10 * MS, 1_500 * MS, 1_501 * MS]
    assert figures_of(confirmed, killed_ns=11 * MS, wanted_ns=1_211 * MS, changed_ns=1_500 * MS) == {
        "gap_ms": 1490.0,
        "detection_ms": 1200.0,
        "change_ms": 289.0,
    }


def test_gaps_from_before_the_death_do_not_count():
    figures = figures_of([1 * MS, 900 * MS, 905 * MS, 920 * MS], 901 * MS, 910 * MS, 920 * MS)
    assert figures["gap_ms"] == 15.0


def test_a_death_before_anything_was_confirmed_says_nothing():
    with pytest.raises(InvariantViolation):
        figures_of([5 * MS], 1 * MS, 2 * MS, 5 * MS)


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

    plan = ChangePlan(ack_quorum, 100, rate=500.0, before_seconds=0.2, after_seconds=0.1, patience_seconds=5.0)
    figures = await measure_change(cluster.client(SETTINGS)._opened, plan, kill, SETTINGS)
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


async def test_spares_that_hang_are_passed_over_and_one_that_serves_is_left():
    cluster = await cluster_of(6)
    hung, killed = [], []

    def hang(bookie_id):
        cluster.bookies[bookie_id].pause()
        hung.append(bookie_id)

    def kill(bookie_id):
        killed.append(cluster.die(bookie_id).bookie_id)

    plan = ChangePlan(3, 100, rate=500.0, before_seconds=0.1, after_seconds=0.1, patience_seconds=5.0, hung=2)
    figures = await measure_change(cluster.client(SETTINGS)._opened, plan, kill, SETTINGS, hang=hang)
    await cluster.stop()
    assert figures["errors"] == 0
    assert figures["change_ms"] > 0
    assert len({*hung, *killed}) == 3


async def test_a_plan_that_leaves_no_spare_is_refused():
    cluster = await cluster_of(5)
    plan = ChangePlan(3, 100, rate=500.0, hung=2)
    with pytest.raises(InvalidArgument, match="2 of 2 spares are to hang"):
        await measure_change(cluster.client(SETTINGS)._opened, plan, cluster.die, SETTINGS, hang=cluster.die)
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
    plan = ChangePlan(2, 100, rate=200.0, before_seconds=0.1, after_seconds=0.1, patience_seconds=0.3)
    with pytest.raises(NotEnoughBookies, match="nobody took the place"):
        await measure_change(cluster.client(SETTINGS)._opened, plan, cluster.die, SETTINGS)
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


def test_failures_are_no_part_of_the_comparison():
    assert {workload.name for workload in FAILURES} == {gate.workload for gate in FAILURE_GATES}
    assert not {gate.workload for gate in GATES} & {workload.name for workload in FAILURES}
    assert not any(gate.ratio for gate in FAILURE_GATES)
    kinds = {WORKLOADS[workload.name].kind for group in GROUPS for workload in group}
    assert not kinds & {Kind.CHANGE, Kind.RECOVERY}


def test_the_page_has_a_section_on_failures_only_where_they_were_measured():
    figures = {"errors": 0, "gap_ms": 1300.0, "detection_ms": 1100.0, "change_ms": 80.0}
    page = render({}, [Measurement(1, TALLYBOOK, "change-qa3", figures)], plot=False)
    assert "## When something dies" in page
    assert "| ≤ 500 | **80.0** | yes | 80.0 |" in page
    assert "| round | system | errors | longest gap ms | detection ms | change ms |" in page
    assert "recovery without reading" not in page
    assert "## When something dies" not in render({}, [], plot=False)
