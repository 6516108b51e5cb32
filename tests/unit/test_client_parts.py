"""Small parts of the client: batching, waiting, budget, replica order."""

from __future__ import annotations

import asyncio
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallybook.client.budget import ByteBudget
from tallybook.client.reader.machine import (
    MAX_WAIT_SECONDS,
    RENEWED_AFTER,
    ReadAttempt,
    RecentFailures,
    SpeculationPolicy,
    replica_order,
)
from tallybook.client.writer.appends import Accumulator, AppendGroup
from tallybook.core.batch import encode_batch
from tallybook.core.errors import (
    BookieUnavailable,
    Busy,
    DataMissing,
    DiskFailed,
    EntryAbsent,
    EntryCorrupt,
    EntryUnknown,
    InvalidArgument,
    LedgerFenced,
    NoSuchLedger,
    OtherLedger,
    PeerError,
    StorageError,
    TallybookError,
)
from tallybook.core.quorum import Quorum

PLAIN = Quorum(3, 3, 2)
STRIPED = Quorum(4, 2, 2, 10)


@given(st.lists(st.integers(0, 600), min_size=1, max_size=200), st.sampled_from((PLAIN, STRIPED)), st.booleans())
def test_groups_fit_a_batch_keep_order_and_never_cross_a_stripe(sizes: list[int], quorum: Quorum, digest: bool) -> None:
    accumulator = Accumulator(quorum, 1024, digest=digest)
    ids = [accumulator.add(bytes(size)).entry_id for size in sizes]
    assert ids == list(range(len(sizes)))
    taken: list[int] = []
    while (group := accumulator.take()) is not None:
        batch = encode_batch(
            1, group.first_entry_id, group.payloads, lac=-1, ledger_length=10**9, written_at_us=0,
            digest_key=b"k" if digest else None,
        )  # fmt: skip
        assert len(batch) <= 1024
        assert group.last_entry_id <= quorum.stripe_end(group.first_entry_id)
        assert group.first_entry_id == len(taken)
        taken += [len(payload) for payload in group.payloads]
    assert taken == sizes


def test_an_entry_larger_than_a_batch_travels_alone() -> None:
    accumulator = Accumulator(PLAIN, 1024, digest=False)
    for size in (10, 5000, 10):
        accumulator.add(bytes(size))
    assert [accumulator.take().entry_count for _ in range(3)] == [1, 1, 1]  # type: ignore[union-attr]
    assert accumulator.take() is None
    assert not accumulator


async def test_all_waiters_of_a_group_are_woken_and_cancelling_one_disturbs_no_other() -> None:
    group = AppendGroup(7)
    pending = [group.add(b"x") for _ in range(3)]

    async def wait(index: int) -> int:
        return await pending[index]

    waiting = [asyncio.ensure_future(wait(index)) for index in range(3)]
    await asyncio.sleep(0)
    waiting[1].cancel()
    await asyncio.sleep(0)
    group.complete()
    assert await waiting[0] == 7
    assert await waiting[2] == 9
    assert waiting[1].cancelled()
    assert await pending[1] == 8, "awaiting again, or late, works as well"
    failed = AppendGroup(0)
    entries = [failed.add(b"x"), failed.add(b"y")]
    failed.complete(LedgerFenced("out"))
    for each in entries:
        with pytest.raises(LedgerFenced):
            await each


async def test_the_budget_serves_waiters_in_order_and_never_overruns() -> None:
    budget = ByteBudget(100)
    assert budget.try_take(60)
    assert not budget.try_take(50)
    order: list[str] = []

    async def take(name: str, size: int) -> None:
        await budget.take(size)
        order.append(name)

    large = asyncio.ensure_future(take("large", 90))
    small = asyncio.ensure_future(take("small", 10))
    await asyncio.sleep(0)
    assert not budget.try_take(1), "nobody may pass those who wait"
    budget.give(60)
    await asyncio.gather(large, small)
    assert order == ["large", "small"]
    assert budget.taken_bytes == 100
    budget.give(100)
    await budget.take(500)
    assert not budget.try_take(1), "one piece above the whole budget passes alone"


async def test_a_cancelled_wait_gives_its_place_away() -> None:
    budget = ByteBudget(100)
    await budget.take(100)
    first = asyncio.ensure_future(budget.take(80))
    second = asyncio.ensure_future(budget.take(50))
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    budget.give(100)
    await second
    assert budget.taken_bytes == 50


async def test_a_wait_cancelled_as_bytes_come_back_ends_as_cancelled_and_loses_none() -> None:
    budget = ByteBudget(100)
    await budget.take(100)
    waiting = asyncio.ensure_future(budget.take(80))
    await asyncio.sleep(0)
    waiting.cancel()
    budget.give(100)
    (outcome,) = await asyncio.gather(waiting, return_exceptions=True)
    assert isinstance(outcome, asyncio.CancelledError)
    assert budget.taken_bytes == 0
    assert budget.try_take(100)


@given(
    st.permutations("abcdefgh"),
    st.integers(1, 8),
    st.none() | st.sampled_from("abcdefghz"),
    st.sets(st.sampled_from("abcdefghz")),
)
def test_c34_the_read_order_has_each_bookie_of_the_write_set_once_after_any_history(
    names: list[str], size: int, preferred: str | None, failed: set[str]
) -> None:
    # The bookie that served last may have left the ensemble since: "z", or one beyond the write set.
    write_set = names[:size]
    order = replica_order(write_set, preferred, failed)
    assert sorted(order) == sorted(write_set)
    firsts = [name for name in order if name not in failed]
    assert order[: len(firsts)] == firsts, "those that failed come last"
    if preferred in write_set:
        assert order[0] == preferred or preferred in failed
    others = [name for name in order if name != preferred]
    assert others == sorted(others, key=lambda name: (name in failed, write_set.index(name)))


def test_c36_the_wait_before_a_second_request_follows_the_95th_percentile_between_its_bounds() -> None:
    pace = SpeculationPolicy(0.02)
    assert pace.speculates
    for _ in range(RENEWED_AFTER - 1):
        pace.answered(0.001)
    assert pace.wait_seconds == MAX_WAIT_SECONDS, "nothing is known yet"
    pace.answered(0.001)
    assert pace.wait_seconds == 0.02
    for index in range(64):
        pace.answered(0.1 + index / 1000)
    assert pace.wait_seconds == pytest.approx(0.16)
    for _ in range(64):
        pace.answered(3.0)
    assert pace.wait_seconds == MAX_WAIT_SECONDS
    for index in range(64):
        pace.answered(3.0 if index % 32 == 0 else 0.1)
    assert pace.wait_seconds == 0.1, "two slow ones in 64 do not count"


def test_c36_a_shortest_wait_above_the_longest_stays_and_zero_is_never() -> None:
    patient = SpeculationPolicy(5.0)
    for _ in range(RENEWED_AFTER):
        patient.answered(0.001)
    assert patient.wait_seconds == 5.0
    assert not SpeculationPolicy(0.0).speculates


def test_replicas_that_failed_lately_are_asked_last_until_it_is_forgotten_or_they_answer() -> None:
    failed = RecentFailures(30.0)
    failed.note("a", now=0.0)
    failed.note("b", now=5.0)
    assert replica_order(["a", "b", "c"], "a", failed.now(10.0)) == ["c", "a", "b"]
    failed.forgive("b")
    assert failed.now(29.0) == {"a"}
    assert failed.now(30.0) == set()


def test_only_replicas_that_are_all_busy_are_worth_a_pause_as_long_as_the_longest_hint() -> None:
    attempt = ReadAttempt(1, 5, ["a", "b", "c"])
    assert attempt.busy_pause_ms is None
    attempt.failed("a", Busy("later", retry_after_ms=250))
    assert attempt.verdict().retry_after_ms == 250
    attempt.failed("b", Busy("much later", retry_after_ms=900))
    assert attempt.busy_pause_ms == 900
    attempt.failed("c", EntryAbsent("never had it"))
    assert attempt.busy_pause_ms is None


@pytest.mark.parametrize(
    ("errors", "verdict"),
    [
        ((EntryAbsent, EntryAbsent, EntryAbsent), DataMissing),
        ((EntryAbsent, EntryCorrupt, BookieUnavailable), EntryCorrupt),
        ((EntryAbsent, EntryUnknown, BookieUnavailable), EntryUnknown),
        ((EntryAbsent, EntryAbsent, BookieUnavailable), BookieUnavailable),
        ((BookieUnavailable, DiskFailed, EntryUnknown), EntryUnknown),
        ((EntryAbsent, BookieUnavailable, DiskFailed), DiskFailed),
        ((EntryAbsent, TallybookError, BookieUnavailable), BookieUnavailable),
        # A refusal says nothing about the entry. One replica alone cannot decide that the request was wrong.
        ((EntryAbsent, TallybookError, EntryAbsent), EntryUnknown),
        ((NoSuchLedger, EntryAbsent, InvalidArgument), EntryUnknown),
    ],
)
def test_the_most_serious_answer_wins(errors: tuple[type, ...], verdict: type) -> None:
    attempt = ReadAttempt(1, 5, ["a", "b", "c"])
    for kind in errors:
        bookie_id = attempt.next()
        assert bookie_id is not None
        attempt.failed(bookie_id, kind("told"))
    assert attempt.next() is None
    assert type(attempt.verdict()) is verdict
    assert "entry 5" in str(attempt.verdict())


def test_an_unconfirmed_entry_without_copies_is_absent_and_not_missing() -> None:
    attempt = ReadAttempt(1, 5, ["a", "b"], confirmed=False)
    attempt.failed("a", EntryAbsent("never had it"))
    attempt.failed("b", EntryAbsent("neither"))
    assert type(attempt.verdict()) is EntryAbsent
    attempt.failed("b", BookieUnavailable("who knows"))
    assert type(attempt.verdict()) is BookieUnavailable


def kinds(root: type[TallybookError]) -> list[type[TallybookError]]:
    """A class of errors, and all below it."""
    return [root, *(kind for child in root.__subclasses__() for kind in kinds(child))]


@pytest.mark.parametrize("kind", [kind for kind in kinds(TallybookError) if kind is not EntryAbsent])
def test_absent_from_the_others_never_outweighs_one_unknown(kind: type[TallybookError]) -> None:
    for position, confirmed in product(range(3), (True, False)):
        attempt = ReadAttempt(1, 5, ["a", "b", "c"], confirmed=confirmed)
        for at in range(3):
            attempt.failed("abc"[at], kind("told") if at == position else EntryAbsent("never had it"))
        verdict = attempt.verdict()
        told = issubclass(kind, PeerError | StorageError) or kind is OtherLedger
        assert type(verdict) is (kind if told else EntryUnknown)
        assert kind.__name__ in verdict.message
