"""The client side of the wire with bookies that grant little credit, answer late, or send invalid answers."""

import asyncio
import gc
import weakref
from contextlib import asynccontextmanager
from functools import partial

import pytest

from tallybook.client.connection.connection import open_bookie
from tallybook.client.load import ClientLoad
from tallybook.core.answers import AddAnswer, AddNotSent, FenceAnswer, HeldAnswer, Incarnation, LacAnswer, ReadAnswer
from tallybook.core.batch import encode_batch
from tallybook.core.errors import (
    BookieUnavailable,
    Busy,
    InvalidArgument,
    PeerUnavailable,
    ProtocolViolation,
    RequestTimeout,
    StaleIncarnation,
    Unauthorized,
)
from tallybook.core.limits import MAX_BATCH_BYTES, MIB
from tallybook.core.settings import ClientSettings
from tallybook.runtime.clock import RealClock
from tallybook.runtime.tasks import Tasks
from tallybook.sim.deterministic import SimNet
from tallybook.wire import inspection
from tallybook.wire import messages as wire
from tallybook.wire.batches import MAX_ADD_COST_BYTES, FrameCache, add_cost_bytes
from tallybook.wire.lanes import Lane

from ..simulated import on_stage

LIFE = Incarnation("directory", 3)
WELCOME = wire.Welcome("b1", LIFE, 4 * MIB, 100, 100)
UNAVAILABLE = BookieUnavailable.wire_code
LANES = pytest.mark.parametrize("lane", list(Lane), ids=[lane.value for lane in Lane])


def batch(first: int, size: int = 10, ledger_id: int = 1) -> bytes:
    return encode_batch(ledger_id, first, [b"x" * size], lac=-1, ledger_length=10**9, written_at_us=0)


class Scripted:
    """A bookie with scripted answers, message by message, and a client's connection to it."""

    def __init__(self, world) -> None:
        self.world = world
        self.net = SimNet(world.rng.fork("net"))
        self.tasks = Tasks("test", lambda name, error: pytest.fail(f"{name}: {error!r}"))
        self.welcomes: dict[Lane, wire.Welcome | None] = dict.fromkeys(Lane, WELCOME)
        self.hellos: list[wire.Hello] = []
        self.streams = {}
        self.heard: dict[Lane, asyncio.Queue[bytes]] = {lane: asyncio.Queue() for lane in Lane}
        self.settings = ClientSettings(request_timeout_ms=1000, connect_timeout_ms=2000)

    async def accept(self, lane, stream) -> None:
        self.hellos.append(wire.decode_hello(await stream.receive()))
        welcome = self.welcomes[lane]
        if welcome is None:
            await self.world.clock.sleep(3600)
        await stream.send(wire.encode_welcome(welcome))
        self.streams[lane] = stream
        try:
            while (message := await stream.receive()) is not None:
                self.heard[lane].put_nowait(message)
        except PeerUnavailable:
            return

    async def open(self, **arguments):
        return await open_bookie(
            self.net.transport("client"), "bookie:1", settings=self.settings, tasks=self.tasks,
            load=ClientLoad(self.world.clock),
            **{"bookie_id": "b1", "expected": LIFE, "cluster_id": "cluster", "client_id": "me", **arguments},
        )  # fmt: skip

    async def adds(self) -> tuple[wire.Attach | None, list[bytes]]:
        """The next message of the Add stream."""
        attaches, batches, *_ = wire.decode_adds(await self.heard[Lane.ADD].get())
        return attaches[0] if attaches else None, [bytes(given) for given in batches]

    async def sent(self) -> int:
        """How many batches have come since it was asked last."""
        await self.settle()
        found = 0
        while not self.heard[Lane.ADD].empty():
            found += len((await self.adds())[1])
        return found

    async def ack(self, number: int, answer: AddAnswer) -> None:
        await self.streams[Lane.ADD].send(wire.encode_acks([wire.Ack(number, answer)]))

    async def asked(self, lane: Lane) -> wire.Request:
        return wire.decode_request(await self.heard[lane].get())

    async def reply(self, lane: Lane, request_id: int, outcome) -> None:
        await self.streams[lane].send(wire.encode_reply(request_id, outcome))

    async def settle(self) -> None:
        await self.world.clock.sleep(0.1)

    def call(self, work) -> asyncio.Task:
        return asyncio.ensure_future(work)


class Answers(list):
    """A callback that keeps what it is called with."""

    def __call__(self, answer: AddAnswer) -> None:
        self.append(answer)


@asynccontextmanager
async def scripted_bookie(world, *, lane=Lane.ADD, **welcome):
    """A bookie that grants ``welcome`` on ``lane``; no stream may be left at the end."""
    bookie = Scripted(world)
    bookie.welcomes[lane] = WELCOME._replace(**welcome)
    listener = await bookie.net.transport("bookie").listen("bookie:1", bookie.accept)
    yield {"bookie": bookie}
    await listener.close(0)
    await world.clock.sleep(1)
    assert bookie.net.stream_count == 0
    await bookie.tasks.close()


@asynccontextmanager
async def connected_bookie(world, **options):
    async with scripted_bookie(world, **options) as parts:
        connection = await parts["bookie"].open()
        yield parts | {"connection": connection}
        await connection.close()


scripted = partial(on_stage, scripted_bookie)
connected = partial(on_stage, connected_bookie)


# -- opening ----------------------------------------------------------------------------------


@connected()
async def test_every_stream_begins_with_the_same_hello(bookie, connection):
    assert bookie.hellos == [wire.Hello("cluster", "me", LIFE)] * 3
    assert (connection.bookie_id, connection.incarnation, connection.broken) == ("b1", LIFE, False)


@LANES
@scripted()
async def test_a_bookie_that_is_silent_on_one_stream_is_given_up_in_time(bookie, *, lane):
    bookie.welcomes[lane] = None
    before = bookie.world.clock.monotonic()
    with pytest.raises(BookieUnavailable):
        await bookie.open()
    assert bookie.world.clock.monotonic() - before <= 2.1


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"bookie_id": "b2"}, StaleIncarnation),
        ({"incarnation": Incarnation("directory", 4)}, StaleIncarnation),
        ({"credit_bytes": MAX_ADD_COST_BYTES - 1}, ProtocolViolation),
        ({"max_requests": 0}, ProtocolViolation),
        ({"max_waits": 0}, ProtocolViolation),
        ({"protocol_version": 2}, ProtocolViolation),
        ({"max_batch_bytes": 100}, ProtocolViolation),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
@LANES
@scripted()
async def test_a_welcome_that_cannot_be_right_is_refused(bookie, *, lane, change, error):
    bookie.welcomes[lane] = WELCOME._replace(**change)
    with pytest.raises(error):
        await bookie.open(expected=None)


@scripted()
async def test_an_address_without_a_server_is_unavailable(bookie):
    with pytest.raises(BookieUnavailable):
        await open_bookie(
            bookie.net.transport("client"), "bookie:2", bookie_id="b1", expected=None, settings=bookie.settings,
            tasks=bookie.tasks, load=ClientLoad(RealClock()),
        )  # fmt: skip


# -- adds -------------------------------------------------------------------------------------


LARGE = MAX_BATCH_BYTES - 104


@connected(credit_bytes=2 * add_cost_bytes(len(batch(0, LARGE))) + 100)
async def test_no_more_than_the_credit_is_sent_and_the_rest_follows_as_acks_come(bookie, connection):
    answers = Answers()
    for first in range(5):
        connection.add(batch(first, LARGE), b"", answers)
    for first, sent in enumerate([2, 1, 1, 1, 0]):
        assert await bookie.sent() == sent
        await bookie.ack(first + 1, AddAnswer(1, first, 1))
    await bookie.settle()
    assert answers == [AddAnswer(1, first, 1) for first in range(5)]
    for first in range(5, 8):
        connection.add(batch(first, LARGE), b"", answers)
    assert await bookie.sent() == 2, "the whole credit is there again"


@connected()
async def test_a_client_refused_for_lack_of_space_sends_less_until_it_is_accepted(bookie, connection):
    size = 256 * 1024 - 1024
    answers = Answers()

    async def sent(first: int, count: int) -> int:
        for entry_id in range(first, first + count):
            connection.add(batch(entry_id, size), b"", answers)
        return await bookie.sent()

    assert await sent(0, 20) == 16, "of a credit of 4 MiB"
    for number in range(1, 5):
        await bookie.ack(number, AddAnswer(1, number - 1, 1, Busy.wire_code))
    assert await sent(20, 0) == 0, "12 are unanswered, and 8 may be"
    for number in range(5, 17):
        await bookie.ack(number, AddAnswer(1, number - 1, 1))
    assert await sent(20, 0) == 1, "of the four that waited; the others would have had to wait too long"
    refused = {answer.first_entry_id: type(answer) for answer in answers if answer.code}
    assert refused == dict.fromkeys(range(4), AddAnswer) | dict.fromkeys(range(17, 20), AddNotSent)
    assert await sent(20, 20) == 7, "2 MiB, hardly more after 3 MiB that were taken, less that one"
    for number, entry_id in enumerate([16, *range(20, 36)], 17):
        await bookie.ack(number, AddAnswer(1, entry_id, 1))
        assert await sent(40, 0) <= 2


@connected()
async def test_small_batches_that_wait_together_leave_together_and_large_ones_alone(bookie, connection):
    connection.add(batch(0), b"", Answers())
    await bookie.adds()
    for first in range(1, 101):
        connection.add(batch(first), b"", Answers())
    connection.add(batch(101, 200_000), b"", Answers())
    connection.add(batch(102, 200_000), b"", Answers())
    counts = [len((await bookie.adds())[1]) for _ in range(3)]
    assert counts == [100, 1, 1]


@connected()
async def test_joined_messages_have_a_bounded_size(bookie, connection):
    for first in range(200):
        connection.add(batch(first, 2000), b"", Answers())
    seen = 0
    while seen < 200:
        message = await bookie.heard[Lane.ADD].get()
        assert len(message) <= 65 * 1024
        seen += len(wire.decode_adds(message).batches)


@scripted()
async def test_a_batch_for_several_bookies_is_framed_once(bookie):
    frames = FrameCache()
    one, other = await bookie.open(frames=frames), await bookie.open(frames=frames)
    sent = batch(0, 1000)
    before = frames.held_bytes
    one.add(sent, b"", Answers())
    framed = frames.held_bytes - before
    other.add(sent, b"", Answers())
    assert framed > 1000
    assert frames.held_bytes - before == framed
    await one.close()
    await other.close()


@scripted()
async def test_an_answer_never_comes_from_within_add(bookie):
    connection = await bookie.open()
    await connection.close()
    answers = Answers()
    connection.add(batch(7), b"", answers)
    assert answers == []
    await bookie.settle()
    assert answers == [AddAnswer(1, 7, 1, UNAVAILABLE)]


@pytest.mark.parametrize(
    ("acks", "code"),
    [
        ([(1, AddAnswer(1, 1, 1))], UNAVAILABLE),
        ([(1, AddAnswer(2, 0, 1))], UNAVAILABLE),
        ([(1, AddAnswer(1, 0, 2))], UNAVAILABLE),
        ([(2, AddAnswer(1, 0, 1))], UNAVAILABLE),
        ([(0, AddAnswer(1, 0, 1))], UNAVAILABLE),
        ([(1, AddAnswer(1, 0, 1))] * 2, 0),
    ],
    ids=["entry", "ledger", "count", "never sent", "zero", "twice"],
)
@connected()
async def test_an_ack_of_what_was_not_sent_so_ends_the_connection_and_counts_for_nothing(
    bookie, connection, *, acks, code
):
    answers = Answers()
    connection.add(batch(0), b"", answers)
    await bookie.adds()
    for number, answer in acks:
        await bookie.ack(number, answer)
    await bookie.settle()
    assert answers == [AddAnswer(1, 0, 1, code)]
    assert connection.broken


@connected()
async def test_acks_in_any_order_find_their_adds(bookie, connection):
    answers = {first: Answers() for first in range(5)}
    for first, callback in answers.items():
        connection.add(batch(first), b"", callback)
    await bookie.adds()
    for first in (3, 0, 4, 1, 2):
        await bookie.ack(first + 1, AddAnswer(1, first, 1, first))
    await bookie.settle()
    assert {first: list(told) for first, told in answers.items()} == {n: [AddAnswer(1, n, 1, n)] for n in range(5)}


@LANES
@connected()
async def test_the_end_of_one_stream_is_the_end_of_all(bookie, connection, *, lane):
    answers = Answers()
    held = weakref.ref(answers)
    for first in range(3):
        connection.add(batch(first), b"", answers)
    calls = [bookie.call(connection.fence(1, b"")), bookie.call(connection.wait_lac(1, 0, 60_000))]
    await bookie.settle()
    bookie.streams[lane].abort()
    for call in calls:
        with pytest.raises(BookieUnavailable):
            await call
    await bookie.settle()
    assert answers == [AddAnswer(1, first, 1, UNAVAILABLE) for first in range(3)]
    del answers
    gc.collect()
    assert held() is None, "nothing of the adds stays in memory"
    with pytest.raises(BookieUnavailable):
        await connection.read_lac(1)


@pytest.mark.parametrize(
    ("lane", "message"), [*((lane, b"\xff" * 30) for lane in Lane), (Lane.READ, wire.encode_reply(77, None))]
)
@connected()
async def test_a_message_that_cannot_be_ends_the_connection(bookie, connection, *, lane, message):
    await bookie.streams[lane].send(message)
    await bookie.settle()
    assert connection.broken


@LANES
@connected()
async def test_a_reason_sent_by_the_bookie_is_in_the_error(bookie, connection, *, lane):
    call = bookie.call(connection.fence(1, b""))
    await bookie.settle()
    await bookie.streams[lane].send(wire.encode_refusal(ProtocolViolation("too many of everything")))
    with pytest.raises(BookieUnavailable, match="too many of everything"):
        await call


# -- requests ---------------------------------------------------------------------------------


@connected()
async def test_each_question_goes_out_on_its_lane(bookie, connection):
    questions = [
        (Lane.READ, connection.read_batches(1, 2, 3, 4), wire.ReadBatches(1, 2, 3, 4), ReadAnswer((batch(2),), 9)),
        (Lane.READ, connection.wait_lac(1, 2, 3), wire.WaitLac(1, 2, 3), LacAnswer(9, False)),
        (Lane.CONTROL, connection.read_lac(1), wire.ReadLac(1), LacAnswer(9, True)),
        (Lane.CONTROL, connection.fence(1, b"k"), wire.Fence(1, b"k"), FenceAnswer(9, 10)),
        (Lane.CONTROL, connection.recovery_read(1, 2, b"k"), wire.RecoveryRead(1, 2, b"k"), ReadAnswer((batch(2),), 9)),
        (Lane.CONTROL, connection.write_lac(1, 2, b"k"), wire.WriteLac(1, 2, b"k"), None),
        (Lane.CONTROL, connection.recovery_add(batch(2), b"k"), wire.RecoveryAdd(b"k", batch(2)), None),
        (Lane.CONTROL, connection.repair_add(batch(2)), inspection.RepairAdd(batch(2)), None),
        (Lane.CONTROL, connection.held(1, 2, 3), inspection.AskHeld(1, 2, 3), HeldAnswer((), 3, limbo=True)),
    ]
    for lane, question, ask, answer in questions:
        call = bookie.call(question)
        request = await bookie.asked(lane)
        assert request.ask == ask
        await bookie.reply(lane, request.request_id, answer)
        assert await call == answer


@connected()
async def test_replies_in_any_order_find_their_callers(bookie, connection):
    calls = [bookie.call(connection.fence(ledger_id, b"")) for ledger_id in range(5)]
    requests = [await bookie.asked(Lane.CONTROL) for _ in calls]
    for request in reversed(requests):
        await bookie.reply(Lane.CONTROL, request.request_id, FenceAnswer(request.ask.ledger_id, 0))
    assert [(await call).lac for call in calls] == list(range(5))


@pytest.mark.parametrize("answer", [None, LacAnswer(1, False), ReadAnswer((), 1)], ids=["done", "lac", "no batch"])
@connected()
async def test_an_answer_to_another_question_is_a_violation(bookie, connection, *, answer):
    call = bookie.call(connection.read_batches(1, 0, 1, 100))
    await bookie.reply(Lane.READ, (await bookie.asked(Lane.READ)).request_id, answer)
    with pytest.raises(ProtocolViolation):
        await call


@connected(lane=Lane.CONTROL, max_requests=2)
async def test_calls_beyond_what_is_granted_wait_their_turn(bookie, connection):
    calls = [bookie.call(connection.fence(ledger_id, b"")) for ledger_id in range(4)]
    await bookie.settle()
    assert bookie.heard[Lane.CONTROL].qsize() == 2
    for _ in calls:
        request = await bookie.asked(Lane.CONTROL)
        await bookie.reply(Lane.CONTROL, request.request_id, Unauthorized("no"))
    for call in calls:
        with pytest.raises(Unauthorized):
            await call


@connected(lane=Lane.CONTROL, max_requests=1)
async def test_a_call_given_up_keeps_its_place_until_it_is_answered(bookie, connection):
    with pytest.raises(RequestTimeout):
        await connection.fence(1, b"")
    late = await bookie.asked(Lane.CONTROL)
    with pytest.raises(RequestTimeout):
        await connection.fence(2, b"")
    assert bookie.heard[Lane.CONTROL].empty()
    await bookie.reply(Lane.CONTROL, late.request_id, FenceAnswer(0, 0))
    call = bookie.call(connection.fence(3, b""))
    request = await bookie.asked(Lane.CONTROL)
    assert request.ask == wire.Fence(3, b"")
    await bookie.reply(Lane.CONTROL, request.request_id, FenceAnswer(3, 3))
    assert await call == FenceAnswer(3, 3)


@connected(lane=Lane.CONTROL, max_requests=1)
async def test_cancelled_calls_leave_their_places_to_others(bookie, connection):
    calls = [bookie.call(connection.fence(ledger_id, b"")) for ledger_id in range(10)]
    await bookie.settle()
    for call in calls[1:9]:
        call.cancel()
    await asyncio.gather(*calls[1:9], return_exceptions=True)
    for ledger_id in (0, 9):
        request = await bookie.asked(Lane.CONTROL)
        assert request.ask.ledger_id == ledger_id
        await bookie.reply(Lane.CONTROL, request.request_id, FenceAnswer(0, 0))
        await calls[ledger_id]


@pytest.mark.parametrize("repair", [False, True])
@connected(lane=Lane.CONTROL, credit_bytes=2 * MAX_ADD_COST_BYTES)
async def test_recovery_and_repair_adds_wait_for_credit(bookie, connection, *, repair):
    large = [batch(first, 900_000) for first in range(4)]
    calls = [
        bookie.call(connection.repair_add(each) if repair else connection.recovery_add(each, b"")) for each in large
    ]
    await bookie.settle()
    assert bookie.heard[Lane.CONTROL].qsize() == 2
    # A fence is never behind them.
    fence = bookie.call(connection.fence(1, b""))
    await bookie.settle()
    assert bookie.heard[Lane.CONTROL].qsize() == 3
    for _ in range(5):
        request = await bookie.asked(Lane.CONTROL)
        await bookie.reply(
            Lane.CONTROL, request.request_id, FenceAnswer(0, 0) if request.ask == wire.Fence(1, b"") else None
        )
    await asyncio.gather(*calls, fence)


@pytest.mark.parametrize("repair", [False, True])
@connected()
async def test_the_deadline_of_recovery_and_repair_adds_counts_from_the_last_answer(bookie, connection, *, repair):
    each_s = 0.9 * bookie.settings.request_timeout_ms / 1000
    calls = [
        bookie.call(connection.repair_add(batch(first)) if repair else connection.recovery_add(batch(first), b""))
        for first in range(5)
    ]
    for answered in range(3):
        await bookie.world.clock.sleep(each_s)
        request = await bookie.asked(Lane.CONTROL)
        await bookie.reply(Lane.CONTROL, request.request_id, None)
        await calls[answered]
    began = bookie.world.clock.monotonic()
    for late in calls[3:]:
        with pytest.raises(RequestTimeout):
            await late
    assert bookie.world.clock.monotonic() - began <= 1.01 * bookie.settings.request_timeout_ms / 1000


@scripted()
async def test_long_polls_have_places_of_their_own(bookie):
    bookie.welcomes[Lane.READ] = WELCOME._replace(max_waits=2, max_requests=1)
    connection = await bookie.open()
    waits = [bookie.call(connection.wait_lac(1, 0, 500)) for _ in range(5)]
    read = bookie.call(connection.read_entry(1, 0))
    await bookie.settle()
    kinds = [type((await bookie.asked(Lane.READ)).ask) for _ in range(3)]
    assert sorted(kind.__name__ for kind in kinds) == ["ReadEntry", "WaitLac", "WaitLac"]
    await connection.close()
    for call in (*waits, read):
        with pytest.raises(BookieUnavailable):
            await call


@connected()
async def test_a_value_that_no_message_can_hold_is_the_callers_error_and_harms_nothing(connection):
    with pytest.raises(InvalidArgument):
        await connection.read_entry(2**63, 0)
    assert not connection.broken


@scripted()
async def test_closing_twice_is_closing_once(bookie):
    connection = await bookie.open()
    call = bookie.call(connection.fence(1, b""))
    await bookie.settle()
    await connection.close()
    await connection.close()
    with pytest.raises(BookieUnavailable):
        await call
