"""Adds queued by a client: their order, and what happens to adds that would wait too long."""

import asyncio
from collections.abc import Iterable
from contextlib import asynccontextmanager

import pytest

from tallybook.client.connection.add_stream import AddStream
from tallybook.client.connection.add_window import MIN_WINDOW_BYTES
from tallybook.client.connection.port import AddInFlight
from tallybook.client.load import ClientLoad
from tallybook.core.answers import AddAnswer
from tallybook.core.batch import encode_batch, peek_ids
from tallybook.core.errors import Busy, DiskFailed
from tallybook.core.limits import KIB, MIB
from tallybook.runtime.clock import Clock, RealClock
from tallybook.runtime.concurrency.loop_slices import SLICE_S
from tallybook.runtime.tasks import Tasks
from tallybook.runtime.tracing.port import begin
from tallybook.wire import messages as wire
from tallybook.wire.batches import FrameCache, add_cost_bytes

from ..support.late_clock import LateClock
from ..support.tracing import MemoryTracer

CREDIT = 4 * MIB
PAYLOAD = 60 * KIB


def batch(number: int) -> bytes:
    return encode_batch(1, number, [bytes(PAYLOAD)], lac=-1, ledger_length=10**9, written_at_us=0)


COST = add_cost_bytes(len(batch(0)))


class Bookie:
    """The other end of a stream: records what it receives, and gives scripted answers."""

    peer = "b1:1"

    def __init__(self) -> None:
        self.taken: list[int] = []
        """First ids, in the order of their arrival."""
        self._answers: asyncio.Queue[bytes] = asyncio.Queue()
        self.answered = 0

    async def send(self, message: bytes) -> None:
        self.taken += [peek_ids(bytes(each))[1] for each in wire.decode_adds(message).batches]

    async def receive(self) -> bytes:
        return await self._answers.get()

    def answer(self, code: int = 0, retry_after_ms: int = 0, count: int = 1) -> None:
        """Answer the next ones that have no answer yet."""
        for _ in range(count):
            self.answered += 1
            first = self.taken[self.answered - 1]
            ack = wire.Ack(self.answered, AddAnswer(1, first, 1, code, retry_after_ms))
            self.say([ack])

    def say(self, acks: list[wire.Ack]) -> None:
        """Send those in one message."""
        self._answers.put_nowait(wire.encode_acks(acks))

    def abort(self) -> None:
        """Nothing is left."""

    async def close(self) -> None:
        """Nothing is left."""


class Hands(RealClock):
    """A clock whose seconds the test counts."""

    now = 1000.0

    def monotonic(self) -> float:
        return self.now


@asynccontextmanager
async def stream(clock: Clock | None = None, add_timeout_s: float = 10.0):
    bookie, tasks = Bookie(), Tasks("test", lambda name, error: pytest.fail(f"{name}: {error!r}"))
    load = ClientLoad(clock or RealClock())
    adds = AddStream(bookie, CREDIT, tasks, FrameCache(), load, add_timeout_s=add_timeout_s)
    tasks.spawn(adds.receive(), name="receive")
    yield bookie, adds
    adds.end()
    await adds.close()
    await tasks.close()


async def turns(count: int = 20) -> None:
    """Run everything that is due: nothing here waits for anything but the loop."""
    for _ in range(count):
        await asyncio.sleep(0)


async def added(adds: AddStream, numbers: Iterable[int]) -> list[AddAnswer]:
    """Add those, and have what fits sent. Their answers, as they come."""
    answers: list[AddAnswer] = []
    for number in numbers:
        adds.add(batch(number), b"", answers.append)
    await turns()
    return answers


def refused(answers: list[AddAnswer]) -> list[int]:
    return [answer.first_entry_id for answer in answers if answer.code == Busy.wire_code]


async def test_what_exceeds_the_credit_waits_however_much_it_is_as_long_as_nothing_is_refused():
    async with stream() as (bookie, adds):
        answers = await added(adds, range(200))
        assert bookie.taken == list(range(CREDIT // COST))
        for _ in range(200):
            bookie.answer()
            await turns(5)
        assert [answer[:4] for answer in answers] == [(1, number, 1, 0) for number in range(200)]


async def test_one_refusal_refuses_all_adds_that_would_wait_for_more_than_another_window():
    async with stream() as (bookie, adds):
        answers = await added(adds, range(200))
        sent = len(bookie.taken)
        bookie.answer(Busy.wire_code, retry_after_ms=70)
        await turns()
        # All of the old window is unanswered still, which is twice the new one: one batch may wait, to go first.
        assert refused(answers) == [0, *range(199, sent, -1)]
        assert {answer.retry_after_ms for answer in answers} == {70}
        bookie.answer(count=sent - 1)
        await turns()
        assert bookie.taken[-1] == sent
        assert refused(answers) == [0, *range(199, sent, -1)]


async def test_a_client_that_was_refused_repeatedly_has_two_windows_at_most_and_the_rest_is_refused_at_once():
    async with stream() as (bookie, adds):
        for number in range(8):
            await added(adds, [number])
            bookie.answer(Busy.wire_code, retry_after_ms=40)
            await turns(5)
        answers = await added(adds, range(100, 120))
        held = 2 * MIN_WINDOW_BYTES // COST
        assert bookie.taken[8:] == list(range(100, 100 + MIN_WINDOW_BYTES // COST))
        assert refused(answers) == list(range(100 + held, 120))
        assert {answer.retry_after_ms for answer in answers} == {40}
        for _ in range(held):
            bookie.answer()
            await turns(5)
        assert bookie.taken[8:] == list(range(100, 100 + held))


async def test_what_is_refused_here_ends_its_span_with_that():
    tracer = MemoryTracer()
    async with stream() as (bookie, adds):
        with begin(tracer, "tallybook.add"):
            await added(adds, range(200))
        await turns(200)
        bookie.answer(Busy.wire_code)
        await turns()
        assert tracer.spans[-1].error == "Busy"
        assert all(span.ends == 1 for span in tracer.spans if span.error == "Busy")


@pytest.mark.parametrize("add_timeout_s", [0.5, 300.0])
async def test_a_batch_that_was_passed_over_is_owed_since_then_for_as_long_as_the_add_timeout(add_timeout_s: float):
    clock = Hands()
    async with stream(clock, add_timeout_s) as (bookie, adds):
        passed_over = adds.add(batch(0), b"", lambda answer: None)
        await added(adds, [1])
        bookie.answered = 1
        passed_at = clock.now
        for number in range(2, 500):
            bookie.answer()
            await added(adds, [number])
            assert abs(passed_over.owed_since - passed_at) <= add_timeout_s / 50
            clock.now += add_timeout_s / 400


async def test_what_was_refused_here_and_then_withdrawn_is_given_up_once():
    async with stream() as (bookie, adds):
        sendings: list[AddInFlight] = []

        def withdraw_all(answer: AddAnswer) -> None:
            for sending in sendings:
                sending.withdraw()

        sendings += [adds.add(batch(number), b"", [lambda _: None, withdraw_all][number == 1]) for number in range(200)]
        await turns()
        sent = len(bookie.taken)
        # In one message: waiting adds have been refused by the second ack, but not resumed yet.
        codes = (Busy.wire_code, DiskFailed.wire_code)
        bookie.say([wire.Ack(at + 1, AddAnswer(1, at, 1, code, 0)) for at, code in enumerate(codes)])
        await turns()
        # Nothing waits any more: there is credit for as many as were answered.
        answers = await added(adds, range(200, 300))
        assert len(bookie.taken) == sent
        assert refused(answers) == list(range(202, 300))


async def test_the_event_loop_is_not_blocked_while_very_many_batches_are_failed():
    clock = LateClock(RealClock())
    told: list[int] = []

    def lost(answer: AddAnswer) -> None:
        clock.stand_still(SLICE_S)
        told.append(answer.first_entry_id)

    async with stream(clock) as (_, adds):
        for number in range(10):
            adds.add(batch(number), b"", lost)
        adds.end()
        for done in range(10):
            assert told == list(range(done))
            await asyncio.sleep(0)
