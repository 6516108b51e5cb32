"""Memory of a bookie that clients can occupy if they do not read, or read everything at once."""

import asyncio
import tracemalloc
from contextlib import asynccontextmanager

import pytest

from tallybook.bookie.rpc.answer_budget import MAX_MEMORY_WAIT_SECONDS, AnswerBudget
from tallybook.bookie.rpc.request_stream import ANSWER_BYTES, MAX_REQUESTS, MAX_SEND_SECONDS, MAX_WAITS
from tallybook.bookie.write.admission import RECOVERY_SHARE
from tallybook.core.add_kind import AddKind
from tallybook.core.answers import AddAnswer, FenceAnswer, HeldAnswer, HeldLedgers, Incarnation, LacAnswer, ReadAnswer
from tallybook.core.errors import Busy, InvalidArgument, PeerUnavailable
from tallybook.core.limits import MAX_BATCH_BYTES, MIB
from tallybook.runtime.concurrency.weighted_semaphore import WeightedSemaphore
from tallybook.wire import inspection
from tallybook.wire import messages as wire
from tallybook.wire.batches import frame_batch
from tallybook.wire.lanes import Lane

from ..support.wire_bench import WINDOW_BYTES, bench, reply_on
from ..support.wire_bench import batch_of as batch


class Library:
    """A bookie whose reads give 2 MiB each, newly allocated."""

    bookie_id = "b1"
    incarnation = Incarnation("directory-of-b1", 1)
    max_batch_bytes = MAX_BATCH_BYTES

    def __init__(self) -> None:
        self.reads = 0

    def add(self, batch, key, on_answer, *, kind=AddKind.ORDINARY, others_in_flight=False, identity=b""):
        asyncio.get_running_loop().call_soon(on_answer, AddAnswer(1, 0, 1))

    async def read_batches(self, ledger_id, first, last, max_bytes, *, background=False):
        self.reads += 1
        return ReadAnswer((bytes(max_bytes),), 0)

    async def recovery_read(self, ledger_id, entry_id, key, max_bytes=0):
        return ReadAnswer((bytes(MIB // 2),), 0)

    async def fence(self, ledger_id, key):
        return FenceAnswer(0, 0)

    async def wait_lac(self, ledger_id, above, timeout_ms):
        return LacAnswer(1, False)


@asynccontextmanager
async def memory_within(limit_bytes: int):
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        yield
        grown = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert grown < limit_bytes


@bench(store=Library)
async def test_a_peer_that_requests_and_does_not_read_ties_up_bounded_memory_and_delays_no_other(made):
    deaf, _ = await made.open(Lane.READ)
    async with memory_within(24 * MIB):
        for request_id in range(1, MAX_REQUESTS + 1):
            await deaf.send(wire.encode_request(request_id, wire.ReadBatches(1, 0, 0, 2 * MIB)))
        await made.world.clock.sleep(20)
        assert made.bookie.reads < 12
    other, _ = await made.open(Lane.READ)
    await other.send(wire.encode_request(1, wire.ReadBatches(1, 0, 0, 2 * MIB)))
    assert isinstance(await reply_on(other, 1), ReadAnswer)
    # It starts to read after all: everything comes.
    for _ in range(MAX_REQUESTS):
        assert isinstance(wire.decode_reply(await deaf.receive()).outcome, ReadAnswer)


async def sent_until_stopped(made, stream, messages) -> int:
    """Send without ever reading, until the other side lets nothing more in; how many it let in."""
    for sent, message in enumerate(messages):
        try:
            async with asyncio.timeout(60):
                await stream.send(message)
                await made.world.clock.sleep(0.0001)
        except (TimeoutError, PeerUnavailable):
            return sent
    pytest.fail("everything was taken")


@bench(stream_credit_bytes=MIB, store=Library)
async def test_a_peer_that_adds_and_does_not_read_its_acks_is_cut_when_its_credit_is_gone(made):
    deaf, welcome = await made.attached()
    frame = frame_batch(batch(0))
    taken = await sent_until_stopped(made, deaf, (frame for _ in range(1_000_000)))
    assert taken < 3 * welcome.credit_bytes / len(frame)
    assert made.service.stream_count == 0
    await made.works()


@bench(store=Library)
async def test_small_replies_to_a_peer_that_does_not_read_are_bounded_too(made):
    deaf, _ = await made.open(Lane.READ)
    waits = (wire.encode_request(number, wire.WaitLac(1, 0, 0)) for number in range(1, 1_000_000))
    assert await sent_until_stopped(made, deaf, waits) < 5 * MAX_WAITS
    assert made.service.stream_count == 0
    await made.works()


# -- all streams together ---------------------------------------------------------------------

SHARED_BYTES = 32 * MIB
READ = wire.ReadBatches(1, 0, 10**6, 2 * MIB)


async def deaf_readers(made, count: int = 30, reads: int = 10):
    """Streams that request much and read nothing."""
    streams = []
    for _ in range(count):
        stream, _ = await made.open(Lane.READ)
        # What the network itself takes is full after the first answer.
        await stream.send(wire.encode_request(reads + 1, READ._replace(max_bytes=2 * WINDOW_BYTES)))
        await made.world.clock.sleep(0.01)
        for request_id in range(1, reads + 1):
            await stream.send(wire.encode_request(request_id, READ))
        streams.append(stream)
    await made.world.clock.sleep(1)
    return streams


@bench(store=Library, max_read_bytes=SHARED_BYTES)
async def test_many_peers_that_do_not_read_tie_up_a_bounded_memory_and_are_cut(made):
    async with memory_within(SHARED_BYTES + 6 * MIB):
        count = len(await deaf_readers(made))
        assert (made.bookie.reads - count) * 2 * MIB <= SHARED_BYTES
        assert made.service.answer_bytes <= SHARED_BYTES
    patient, _ = await made.open(Lane.READ)
    before = made.world.clock.monotonic()
    await patient.send(wire.encode_request(1, READ))
    busy = await reply_on(patient, 1)
    assert isinstance(busy, Busy)
    assert busy.retry_after_ms
    assert made.world.clock.monotonic() - before < MAX_MEMORY_WAIT_SECONDS + 0.1
    await made.world.clock.sleep(MAX_SEND_SECONDS)
    assert made.service.stream_count == 1
    await patient.send(wire.encode_request(2, READ))
    assert isinstance(await reply_on(patient, 2), ReadAnswer)
    assert made.service.answer_bytes == 0


@bench(store=Library, max_read_bytes=SHARED_BYTES)
async def test_recoveries_adds_and_long_polls_do_not_wait_for_peers_that_do_not_read(made):
    await deaf_readers(made)
    before = made.world.clock.monotonic()
    control, _ = await made.open(Lane.CONTROL)
    for request_id, ask in enumerate((wire.Fence(1, b""), wire.RecoveryRead(1, 0, b"", 64 * MIB)), start=1):
        await control.send(wire.encode_request(request_id, ask))
        assert isinstance(await reply_on(control, request_id), FenceAnswer | ReadAnswer)
    poll, _ = await made.open(Lane.READ)
    await poll.send(wire.encode_request(1, wire.WaitLac(1, 0, 0)))
    assert await reply_on(poll, 1) == LacAnswer(1, False)
    await made.works()
    assert made.world.clock.monotonic() - before < 0.1


@bench(max_read_bytes=SHARED_BYTES)
async def test_long_polls_take_no_memory_while_they_wait(made):
    stream, _ = await made.open(Lane.READ)
    for request_id in range(1, MAX_WAITS + 1):
        await stream.send(wire.encode_request(request_id, wire.WaitLac(1, 0, 60_000)))
    await made.world.clock.sleep(1)
    assert made.service.answer_bytes == 0


@bench(store=Library, max_read_bytes=SHARED_BYTES)
async def test_long_polls_bring_something_along_only_where_there_is_room(made):
    ask = wire.WaitLac(1, 0, 0, 1000)
    poll, _ = await made.open(Lane.READ)
    await poll.send(wire.encode_request(1, ask))
    assert len((await reply_on(poll, 1)).batches) == 1
    assert made.service.answer_bytes == 0
    await deaf_readers(made)
    before = made.world.clock.monotonic()
    await poll.send(wire.encode_request(2, ask))
    assert await reply_on(poll, 2) == LacAnswer(1, False)
    assert made.world.clock.monotonic() - before < 0.1


class Inspected(Library):
    """A scan of the inventory that blocks until the test releases it."""

    def __init__(self) -> None:
        super().__init__()
        self.looks = 0
        self.go_on = asyncio.Event()

    async def held(self, ledger_id, first, last):
        self.looks += 1
        await self.go_on.wait()
        return HeldAnswer((), last, False)

    async def held_ledgers(self, after, limit):
        self.looks += 1
        await self.go_on.wait()
        return HeldLedgers((), True)


@pytest.mark.parametrize("ask", [inspection.AskHeld(1, 0, 9), inspection.AskHeldLedgers(-1, 1_000)])
@bench(store=Inspected, max_read_bytes=SHARED_BYTES)
async def test_inventory_requests_reserve_memory_like_reads(made, ask):
    streams = [(await made.open(Lane.CONTROL))[0] for _ in range(4)]
    for stream in streams:
        for request_id in range(1, 51):
            await stream.send(wire.encode_request(request_id, ask))
    await made.world.clock.sleep(0.1)
    assert made.bookie.looks == SHARED_BYTES // RECOVERY_SHARE // MAX_BATCH_BYTES
    made.bookie.go_on.set()
    answers = [wire.decode_reply(await stream.receive()).outcome for stream in streams for _ in range(50)]
    assert all(isinstance(answer, HeldAnswer | HeldLedgers) for answer in answers)
    assert made.service.answer_bytes == 0


class SlowLibrary(Library):
    """Reads take for ever."""

    async def read_batches(self, ledger_id, first, last, max_bytes, *, background=False):
        await asyncio.Event().wait()


@bench(store=SlowLibrary, max_read_bytes=SHARED_BYTES)
async def test_a_long_poll_does_not_wait_for_what_it_could_bring_along(made):
    poll, _ = await made.open(Lane.READ)
    before = made.world.clock.monotonic()
    await poll.send(wire.encode_request(1, wire.WaitLac(1, 0, 0, 1000)))
    assert await reply_on(poll, 1) == LacAnswer(1, False)
    assert made.world.clock.monotonic() - before < 0.1
    assert made.service.answer_bytes == 0


@bench(store=Library, max_read_bytes=SHARED_BYTES)
async def test_long_polls_of_a_peer_that_does_not_read_take_bounded_memory(made):
    deaf, _ = await made.open(Lane.READ)
    for request_id in range(1, 101):
        await deaf.send(wire.encode_request(request_id, wire.WaitLac(1, 0, 0, 2 * MIB)))
    await made.world.clock.sleep(1)
    assert made.bookie.reads < 20
    assert made.service.answer_bytes <= 8 * MIB


@bench(store=Library, max_read_bytes=SHARED_BYTES)
async def test_streams_that_end_release_what_they_had_and_what_they_waited_for(made):
    streams = await deaf_readers(made)
    for stream in streams[:20]:
        stream.abort()
    for stream in streams[20:]:
        await stream.close()
    await made.world.clock.sleep(3)
    assert made.service.answer_bytes == 0
    assert made.service.stream_count == 0


@bench(store=Library, max_read_bytes=8 * MIB)
async def test_a_caller_with_few_requests_is_served_between_those_of_one_with_many(made):
    greedy, _ = await made.open(Lane.READ)
    modest, _ = await made.open(Lane.READ)
    for request_id in range(1, 101):
        await greedy.send(wire.encode_request(request_id, READ))
    await modest.send(wire.encode_request(1, READ))
    served = []

    async def take(stream, count):
        for _ in range(count):
            wire.decode_reply(await stream.receive())
            served.append(stream)

    await asyncio.gather(take(greedy, 100), take(modest, 1))
    assert served.index(modest) < 10


async def test_a_stream_that_ends_while_it_waits_for_space_frees_no_more_than_it_had():
    shared = WeightedSemaphore(4 * MIB)
    other, ending = AnswerBudget(ANSWER_BYTES, shared), AnswerBudget(ANSWER_BYTES, shared)
    await other.take(3 * MIB)
    await ending.take(MIB)
    waiting = asyncio.ensure_future(ending.take(2 * MIB))
    await asyncio.sleep(0)
    ending.end()
    assert shared.in_use == 3 * MIB
    other.end()
    with pytest.raises(PeerUnavailable):
        await waiting
    assert shared.in_use == 0


@bench(max_read_bytes=5 * MIB)
async def test_a_read_on_the_wrong_lane_is_refused_and_takes_none_of_what_is_kept_for_recovery(made):
    stream, _ = await made.open(Lane.CONTROL)
    for request_id in (1, 2):
        await stream.send(wire.encode_request(request_id, wire.ReadBatches(1, 0, 9, 4 * MIB)))
        assert isinstance(await reply_on(stream, request_id), InvalidArgument)
    assert made.service.answer_bytes == 0
