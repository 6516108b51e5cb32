"""Benchmarks, the load: every entry is counted, once, with its own latency."""

import asyncio
import time

import pytest

from tallybook.bench.add_load import AddPlan, measure_adds
from tallybook.bench.pacing import Pacer
from tallybook.client.writer.pending import AppendGroup
from tallybook.core.errors import Busy, InvalidArgument, LedgerFenced


class Ledger:
    """A writer that confirms what gathered in a turn of the event loop, ``delay`` seconds later."""

    def __init__(self, client, number):
        self.client, self.id = client, number
        self.group = None
        self.next = 0
        self.ended = False

    def append_nowait(self, payload):
        client = self.client
        if client.fail_after is not None and client.appended >= client.fail_after:
            raise LedgerFenced("another client recovered the ledger")
        if client.unconfirmed >= client.budget:
            client.busy += 1
            raise Busy("the budget is used up")
        if self.group is None:
            self.group = AppendGroup(self.next)
            asyncio.get_running_loop().call_soon(self.seal)
        client.appended += 1
        client.unconfirmed += 1
        client.most_unconfirmed = max(client.most_unconfirmed, client.unconfirmed)
        client.sizes.add(len(payload))
        self.next += 1
        return self.group.add(payload)

    def seal(self):
        group, self.group = self.group, None
        group.seal()
        asyncio.get_running_loop().call_later(self.client.delay, self.confirm, group)

    def confirm(self, group):
        self.client.unconfirmed -= group.entry_count
        group.complete(self.client.error)

    async def close(self):
        self.ended = True


class Cluster:
    """Stands for a client."""

    def __init__(self, *, delay=0.0, budget=10**9, error=None, fail_after=None):
        self.delay, self.budget, self.error, self.fail_after = delay, budget, error, fail_after
        self.appended = self.unconfirmed = self.most_unconfirmed = self.busy = 0
        self.sizes = set()
        self.ledgers, self.deleted, self.quorums = [], [], []

    async def create_ledger(self, *, ensemble, write_quorum, ack_quorum):
        self.quorums.append((ensemble, write_quorum, ack_quorum))
        self.ledgers.append(Ledger(self, len(self.ledgers)))
        return self.ledgers[-1]

    async def delete_ledger(self, number):
        self.deleted.append(number)


def plan(**changes):
    """A short load."""
    return AddPlan(**{"entry_bytes": 10, "ledgers": 2, "window": 100, "seconds": 0.1, "warm_up_seconds": 0.0} | changes)


async def test_every_appended_entry_is_counted_once():
    cluster = Cluster()
    result = await measure_adds(cluster, plan())
    assert (result.entries, result.errors) == (cluster.appended, 0)
    assert result.entries > 100
    assert cluster.sizes == {10}


async def test_the_window_is_filled_and_never_exceeded():
    cluster = Cluster(delay=0.002)
    await measure_adds(cluster, plan(window=37))
    assert cluster.most_unconfirmed == 37


async def test_the_ledgers_share_the_load_in_turns():
    cluster = Cluster()
    await measure_adds(cluster, plan(ledgers=3))
    counts = [ledger.next for ledger in cluster.ledgers]
    assert max(counts) - min(counts) <= 1


async def test_latency_runs_from_the_append_to_the_confirmation():
    result = await measure_adds(Cluster(delay=0.02), plan(window=1))
    assert result.latencies.p50_ms >= 20
    # One at a time: together the latencies are no more than the time it took.
    assert result.latencies.p50_ms * result.entries < 1.5 * result.seconds * 1000


async def test_the_warm_up_is_not_counted():
    cluster = Cluster()
    result = await measure_adds(cluster, plan(warm_up_seconds=0.1))
    assert 0 < result.entries < cluster.appended


async def test_an_open_loop_keeps_its_rate():
    cluster = Cluster()
    result = await measure_adds(cluster, plan(rate=2000.0, seconds=0.25))
    assert result.entries == 500


async def test_in_an_open_loop_a_stall_counts_for_every_entry_that_was_planned_meanwhile():
    cluster = Cluster()
    asyncio.get_running_loop().call_later(0.1, time.sleep, 0.1)
    result = await measure_adds(cluster, plan(rate=2000.0, seconds=0.25))
    # 200 of 500 entries were planned into the stall, on average 50 ms before its end.
    assert result.latencies.p99_ms > 80
    assert result.entries == 500


async def test_planned_entries_that_can_never_be_sent_are_errors():
    result = await measure_adds(Cluster(delay=0.05), plan(rate=2000.0, window=1, seconds=0.1))
    assert result.entries + result.errors == 200
    assert result.errors > 150


async def test_a_full_window_delays_an_open_loop_and_the_delay_is_latency():
    result = await measure_adds(Cluster(delay=0.002), plan(rate=1000.0, window=1, seconds=0.1))
    # On a busy machine some are not even sent in time; those are errors, and none is forgotten.
    assert result.entries + result.errors == 100
    assert result.entries > 0
    assert result.latencies.p99_ms > 50


async def test_a_busy_client_is_back_pressure_and_no_error():
    cluster = Cluster(budget=10, delay=0.002)
    result = await measure_adds(cluster, plan(window=100))
    assert cluster.busy > 0
    assert (result.entries, result.errors) == (cluster.appended, 0)


async def test_failed_entries_are_errors_and_end_the_load():
    result = await measure_adds(Cluster(error=LedgerFenced("fenced")), plan(seconds=30.0))
    assert (result.entries, result.errors > 0) == (0, True)
    assert isinstance(result.failure, LedgerFenced)
    assert result.as_record()["entries_per_s"] == 0


async def test_a_refused_append_ends_the_load_and_what_was_confirmed_counts():
    result = await measure_adds(Cluster(fail_after=50), plan(seconds=30.0))
    assert (result.entries, result.errors) == (50, 0)
    assert isinstance(result.failure, LedgerFenced)


async def test_a_failed_warm_up_is_an_error():
    with pytest.raises(LedgerFenced):
        await measure_adds(Cluster(fail_after=5), plan(warm_up_seconds=30.0))


async def test_the_ledgers_are_closed_and_removed():
    cluster = Cluster()
    await measure_adds(cluster, plan(ensemble=1, write_quorum=1, ack_quorum=1))
    assert cluster.deleted == [0, 1]
    assert all(ledger.ended for ledger in cluster.ledgers)
    assert cluster.quorums == [(1, 1, 1)] * 2


@pytest.mark.parametrize(
    "changes",
    [{"window": 0}, {"ledgers": 0}, {"seconds": 0}, {"rate": -1}, {"entry_bytes": -1}, {"entry_bytes": 1 << 21}],
)
async def test_a_plan_that_cannot_be_run_is_refused_before_anything_is_created(changes):
    cluster = Cluster()
    with pytest.raises(InvalidArgument):
        await measure_adds(cluster, plan(**changes))
    assert cluster.ledgers == []


def test_the_record_has_the_names_that_scripts_rely_on(run):
    record = run(measure_adds(Cluster(), plan())).as_record()
    assert {"entries_per_s", "mb_per_s", "p50_ms", "p99_ms", "p999_ms", "errors"} <= set(record)
    assert record["mb_per_s"] == pytest.approx(record["entries_per_s"] * 10 / 1e6, abs=0.001)


async def test_the_pacer_wakes_at_its_moment_and_not_a_millisecond_late_each_time():
    with Pacer() as pacer:
        late = []
        for _ in range(50):
            moment = time.monotonic_ns() + 300_000
            await pacer.until(moment)
            late.append(time.monotonic_ns() - moment)
    assert min(late) >= 0
    assert min(late) < 500_000


async def test_the_pacer_does_not_wait_for_the_past():
    with Pacer() as pacer:
        await pacer.until(time.monotonic_ns() - 1)
        await pacer.until(0)
