"""The load of benchmarks: every entry is counted once, with its own latency."""

import asyncio
import time

import pytest

from tallybook.cli.measure.adds import AddPlan, adds_until, measure_adds
from tallybook.client.writer.appends import AppendGroup
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

    async def append_many(self, payloads):
        self.client.calls.append(len(payloads))
        appended = [self.append_nowait(payload) for payload in payloads]
        return range(await appended[0], await appended[-1] + 1)

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
        self.ledgers, self.deleted, self.quorums, self.calls = [], [], [], []

    async def create_ledger(self, *, ensemble, write_quorum, ack_quorum):
        self.quorums.append((ensemble, write_quorum, ack_quorum))
        self.ledgers.append(Ledger(self, len(self.ledgers)))
        return self.ledgers[-1]

    async def delete_ledger(self, number):
        self.deleted.append(number)


def plan(**changes):
    """A short load."""
    return AddPlan(**{"entry_bytes": 10, "ledgers": 2, "window": 100, "seconds": 0.1, "warm_up_seconds": 0.0} | changes)


async def test_every_entry_after_the_warm_up_is_counted_once_within_the_window_and_the_ledgers_are_removed():
    cluster = Cluster(delay=0.002)
    result = await measure_adds(cluster, plan(window=37, ensemble=1, write_quorum=1, ack_quorum=1))
    assert (result.entries, result.errors) == (cluster.appended, 0)
    assert result.entries > 100
    assert (cluster.most_unconfirmed, cluster.sizes) == (37, {10})
    assert (cluster.deleted, cluster.quorums) == ([0, 1], [(1, 1, 1)] * 2)
    assert all(ledger.ended for ledger in cluster.ledgers)
    warm = Cluster()
    assert 0 < (await measure_adds(warm, plan(warm_up_seconds=0.1))).entries < warm.appended


async def test_append_many_has_one_call_at_a_time_for_each_ledger_with_its_share_of_the_window():
    cluster = Cluster(delay=0.002)
    result = await measure_adds(cluster, plan(append_many=True, ledgers=4, window=100))
    assert set(cluster.calls) == {25}
    assert (result.entries, result.errors, result.failure) == (cluster.appended, 0, None)
    assert (cluster.most_unconfirmed, result.latencies.p50_ms >= 2) == (100, True)
    failed = await measure_adds(Cluster(fail_after=500), plan(append_many=True, seconds=30.0))
    assert isinstance(failed.failure, LedgerFenced)
    assert failed.errors > 0


async def test_latency_runs_from_the_append_to_the_confirmation():
    result = await measure_adds(Cluster(delay=0.02), plan(window=1))
    assert result.latencies.p50_ms >= 20
    # One at a time: together the latencies are no more than the time it took.
    assert result.latencies.p50_ms * result.entries < 1.5 * result.seconds * 1000


async def test_in_an_open_loop_a_stall_counts_for_every_entry_that_was_planned_meanwhile():
    cluster = Cluster()
    asyncio.get_running_loop().call_later(0.1, time.sleep, 0.1)
    result = await measure_adds(cluster, plan(rate=2000.0, seconds=0.25))
    # 200 of 500 entries were planned into the stall, on average 50 ms before its end.
    assert result.latencies.p99_ms > 80
    assert result.entries == 500


async def test_an_entry_that_was_due_and_not_sent_when_an_open_loop_ended_is_a_late_one():
    over = asyncio.Event()

    def stall(_writers):
        # The only entry of the window is unconfirmed for 0.2 s; after half of that the load is told to end.
        asyncio.get_running_loop().call_later(0.1, over.set)

    adds = await adds_until(Cluster(delay=0.2), plan(rate=1000.0, seconds=30.0, window=1), over, stall)
    assert len(adds.planned_ns) == len(adds.latencies_ns) > 150
    assert max(adds.latencies_ns) >= 0.19e9
    ends = [planned + latency for planned, latency in zip(adds.planned_ns, adds.latencies_ns, strict=True)]
    assert len(set(ends[1:])) == 1, "all that were not sent waited until the end"


async def test_a_load_that_is_given_up_has_the_waits_of_its_unsent_entries_and_counts_them_as_errors():
    result = await measure_adds(Cluster(delay=0.2), plan(rate=1000.0, seconds=0.1, window=10))
    assert 0 < result.entries < 100
    assert result.entries + result.errors == 100
    assert result.latencies.p99_ms > 200


async def test_a_busy_client_is_back_pressure_and_no_error():
    cluster = Cluster(budget=10, delay=0.002)
    result = await measure_adds(cluster, plan(window=100))
    assert cluster.busy > 0
    assert (result.entries, result.errors) == (cluster.appended, 0)


@pytest.mark.parametrize(("cluster", "entries"), [({"error": LedgerFenced("fenced")}, 0), ({"fail_after": 50}, 50)])
async def test_a_failure_ends_the_load_and_what_was_confirmed_counts(cluster, entries):
    result = await measure_adds(Cluster(**cluster), plan(seconds=30.0))
    assert (result.entries, result.errors > 0) == (entries, not entries)
    assert isinstance(result.failure, LedgerFenced)


async def test_a_failed_warm_up_is_an_error():
    with pytest.raises(LedgerFenced):
        await measure_adds(Cluster(fail_after=5), plan(warm_up_seconds=30.0))


@pytest.mark.parametrize(
    "changes",
    [
        *({"window": 0}, {"ledgers": 0}, {"seconds": 0}, {"rate": -1}, {"entry_bytes": -1}, {"entry_bytes": 1 << 21}),
        *({"append_many": True, "rate": 10.0}, {"append_many": True, "window": 1}),
    ],
)
async def test_a_plan_that_cannot_be_run_is_refused_before_anything_is_created(changes):
    cluster = Cluster()
    with pytest.raises(InvalidArgument):
        await measure_adds(cluster, plan(**changes))
    assert cluster.ledgers == []
