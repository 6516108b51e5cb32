"""The bookie side of the wire with misbehaving clients: hellos, credits, peers that do not read, invalid messages."""

import asyncio
import logging

import pytest

from tallybook.bookie.rpc import attached_ledgers
from tallybook.bookie.rpc.request_stream import MAX_REQUESTS, MAX_WAITS
from tallybook.bookie.rpc.service import HELLO_TIMEOUT_SECONDS
from tallybook.core.access import Presented, Principal
from tallybook.core.add_kind import AddKind
from tallybook.core.answers import AddAnswer, Incarnation, LacAnswer, ReadAnswer
from tallybook.core.errors import (
    AccessDenied,
    Busy,
    InvalidArgument,
    InvalidBatch,
    InvalidConfig,
    NoCommonVersion,
    ProtocolViolation,
    RequestTimeout,
    StaleIncarnation,
    TallybookError,
    Unauthenticated,
)
from tallybook.core.limits import KIB, MAX_BATCH_BYTES, MIB
from tallybook.proto import bookie_pb2 as pb
from tallybook.wire import inspection
from tallybook.wire import messages as wire
from tallybook.wire.batches import (
    MAX_ADD_COST_BYTES,
    MAX_ATTACHED_LEDGERS,
    MAX_FRAMES,
    MAX_LACS,
    add_cost_bytes,
    frame_batch,
    frame_batches,
)
from tallybook.wire.lanes import Lane
from tallybook.wire.versions import SPOKEN, Versions, agreed

from ..support.wire_bench import batch_of as batch
from ..support.wire_bench import bench, reason_of, reply_on


async def acks_on(stream, count: int) -> list[wire.Ack]:
    """The next acks of an Add stream."""
    acks = []
    while len(acks) < count:
        acks += wire.decode_acks(await stream.receive())
    return acks


# -- the hello --------------------------------------------------------------------------------


def hello(**changes) -> wire.Hello:
    return wire.Hello("cluster", "test", None)._replace(**changes)


@bench()
async def test_a_welcome_has_the_identity_and_the_credit(made):
    _, welcome = await made.open(Lane.READ)
    assert (welcome.bookie_id, welcome.incarnation) == ("b1", made.bookie.incarnation)
    assert (welcome.credit_bytes, welcome.max_requests, welcome.max_waits) == (4 * MIB, MAX_REQUESTS, MAX_WAITS)
    assert welcome.max_batch_bytes == MAX_BATCH_BYTES


@pytest.mark.parametrize("lane", list(Lane), ids=[lane.value for lane in Lane])
@pytest.mark.parametrize(
    ("said", "error"),
    [
        (hello(versions=Versions(2, 2)), NoCommonVersion),
        (hello(versions=Versions(2, 7)), NoCommonVersion),
        (hello(versions=Versions(0, 0)), ProtocolViolation),
        (hello(versions=Versions(2, 1)), ProtocolViolation),
        (hello(cluster_id="other"), InvalidConfig),
        (hello(expected=Incarnation("directory-of-b1", 2)), StaleIncarnation),
        (hello(expected=Incarnation("another", 1)), StaleIncarnation),
    ],
    ids=["version", "versions", "no version", "no range", "cluster", "boot", "directory"],
)
@bench()
async def test_a_hello_that_does_not_fit_is_refused_with_its_reason(made, lane, said, error):
    with pytest.raises(error):
        await made.open(lane, said)


class RefusingAccess:
    """Refuses every caller."""

    error: TallybookError = AccessDenied("no access")

    def principal(self, presented: Presented) -> Principal:
        raise self.error


@pytest.mark.parametrize("error", [Unauthenticated("who is it?"), AccessDenied("no access")], ids=["unknown", "denied"])
@bench(access=RefusingAccess)
async def test_an_unauthenticated_caller_takes_no_slot_and_learns_nothing_of_the_bookie(made, error):
    made.access.error = error
    silent = await made.raw(Lane.ADD)
    await made.world.clock.sleep(0.5)
    assert made.service.stream_count == 0
    reason = await reason_of(silent)
    assert (type(reason), reason.message) == (type(error), error.message), "before he has said anything"
    for said in (hello(cluster_id="other"), hello(expected=Incarnation("another", 1)), hello(versions=Versions(0, 0))):
        with pytest.raises(type(error)):
            await made.open(Lane.ADD, said)
    stream = await made.raw(Lane.ADD)
    await stream.send(b"noise")
    assert type(await reason_of(stream)) is type(error)


@bench(access=RefusingAccess)
async def test_a_refused_caller_does_not_flood_the_log(made, caplog):
    caplog.set_level(logging.INFO)
    for _ in range(20):
        assert isinstance(await reason_of(await made.raw(Lane.ADD)), AccessDenied)
    assert [record.getMessage() for record in caplog.records] == ["refused"]


@bench()
async def test_refusals_of_an_authenticated_caller_are_logged_once_a_second_per_lane_and_error(made, caplog):
    caplog.set_level(logging.INFO)
    for _ in range(20):
        for said in (hello(cluster_id="other"), hello(versions=Versions(0, 0))):
            with pytest.raises(TallybookError):
                await made.open(Lane.ADD, said)
    await made.world.clock.sleep(1)
    with pytest.raises(InvalidConfig):
        await made.open(Lane.ADD, hello(cluster_id="other"))
    fields = [record.tallybook_fields for record in caplog.records if record.getMessage() == "stream refused"]
    assert [(line["error_type"], line.get("untold_count")) for line in fields] == [
        ("InvalidConfig", None),
        ("ProtocolViolation", None),
        ("InvalidConfig", 19),
    ]


@bench()
async def test_a_client_that_offers_versions_gets_the_newest_that_the_bookie_has(made):
    for offered in (SPOKEN, Versions(SPOKEN.oldest, SPOKEN.newest + 1), Versions(SPOKEN.oldest, 2**32 - 1)):
        _, welcome = await made.open(Lane.ADD, hello(versions=offered))
        assert welcome.protocol_version == SPOKEN.newest


@pytest.mark.parametrize(
    ("client", "bookie", "version"),
    [
        ((1, 1), (1, 1), 1),
        ((1, 2), (1, 1), 1),
        ((1, 1), (1, 2), 1),
        ((1, 2), (1, 2), 2),
        ((1, 3), (2, 4), 3),
        ((3, 4), (1, 3), 3),
    ],
)
def test_the_newest_version_that_both_know_is_spoken(client, bookie, version):
    assert agreed(Versions(*client), Versions(*bookie)) == version


@pytest.mark.parametrize(
    ("client", "bookie", "told"),
    [
        ((2, 2), (1, 1), "the client supports protocol version 2, the bookie 1: upgrade the bookie"),
        ((3, 5), (1, 2), "the client supports protocol version 3 to 5, the bookie 1 to 2: upgrade the bookie"),
        ((1, 1), (2, 3), "the client supports protocol version 1, the bookie 2 to 3: upgrade the client"),
    ],
)
def test_without_a_common_version_the_error_names_the_older_side(client, bookie, told):
    with pytest.raises(NoCommonVersion, match=told):
        agreed(Versions(*client), Versions(*bookie))


def test_a_hello_of_the_only_version_is_what_it_was_before_there_were_several():
    assert wire.encode_hello(hello()) == bytes.fromhex("0a110801") + b"\x12\x07cluster\x1a\x04test"


@bench()
async def test_hellos_that_leave_things_open_are_welcome(made):
    for said in (hello(cluster_id=""), hello(expected=made.bookie.incarnation), hello(client_id="")):
        await made.open(Lane.ADD, said)


@pytest.mark.parametrize("first", [b"", b"GET / HTTP/1.1\r\n\r\n", frame_batch(batch(0)), b"\xff" * 100])
@bench()
async def test_a_client_that_does_not_send_hello_first_is_disconnected(made, first):
    stream = await made.raw(Lane.ADD)
    await stream.send(first)
    assert isinstance(await reason_of(stream), ProtocolViolation)
    await made.works()


@bench()
async def test_a_silent_client_is_disconnected_in_time(made):
    stream = await made.raw(Lane.ADD)
    before = made.world.clock.monotonic()
    assert isinstance(await reason_of(stream), RequestTimeout)
    assert made.world.clock.monotonic() - before < HELLO_TIMEOUT_SECONDS + 1


@bench(max_streams=3)
async def test_streams_beyond_the_limit_are_refused_as_busy_and_places_come_free(made):
    streams = [(await made.open(Lane.ADD))[0] for _ in range(3)]
    with pytest.raises(Busy):
        await made.open(Lane.READ)
    await streams[0].close()
    await made.world.clock.sleep(1)
    await made.open(Lane.READ)


# -- adds -------------------------------------------------------------------------------------


@bench(stream_credit_bytes=4096)
async def test_a_small_configured_credit_still_lets_the_largest_batch_through(made):
    _, welcome = await made.open(Lane.ADD)
    assert welcome.credit_bytes >= MAX_ADD_COST_BYTES


@bench(stream_credit_bytes=2 * MIB)
async def test_a_client_may_use_its_whole_credit_and_not_a_byte_more(made):
    made.bookie.hold_commits()
    size = len(batch(0, 1000))
    fits = (2 * MIB) // add_cost_bytes(size)
    stream, _ = await made.attached()
    for first in range(fits):
        await stream.send(frame_batch(batch(first, 1000)))
    await made.world.clock.sleep(1)
    made.bookie.release_commits()
    await acks_on(stream, fits)
    made.bookie.hold_commits()
    for first in range(fits, 2 * fits + 1):
        await stream.send(frame_batch(batch(first, 1000)))
    assert isinstance(await reason_of(stream), ProtocolViolation)
    made.bookie.release_commits()
    await made.works()


@bench()
async def test_acks_are_numbered_in_the_order_of_batches_across_messages(made):
    stream, _ = await made.attached()
    await stream.send(frame_batch(batch(0)) + frame_batch(batch(1)) + frame_batch(batch(2)))
    await stream.send(frame_batch(batch(3)))
    acks = await acks_on(stream, 4)
    assert acks == [wire.Ack(first + 1, AddAnswer(1, first, 1)) for first in range(4)]


@bench()
async def test_acks_of_one_turn_leave_in_one_message(made):
    made.bookie.hold_commits()
    stream, _ = await made.attached()
    for first in range(100):
        await stream.send(frame_batch(batch(first)))
    await made.world.clock.sleep(1)
    made.bookie.release_commits()
    assert len(wire.decode_acks(await stream.receive())) == 100


@bench()
async def test_an_attachment_goes_before_the_batches_of_its_own_message(made):
    stream, _ = await made.open(Lane.ADD)
    await stream.send(frame_batch(batch(0)) + wire.encode_attach(wire.Attach(1, b"")))
    assert [ack.answer.code for ack in wire.decode_acks(await stream.receive())] == [0]


@bench()
async def test_the_ledgers_attached_last_are_remembered_and_no_more(made, monkeypatch):
    monkeypatch.setattr(attached_ledgers, "MAX_ATTACHED_LEDGERS", 3)
    stream, _ = await made.attached(1, 2, 3, 4)
    await stream.send(frame_batch(batch(0, ledger_id=2)) + frame_batch(batch(0, ledger_id=4)))
    await acks_on(stream, 2)
    await stream.send(frame_batch(batch(0, ledger_id=1)))
    assert isinstance(await reason_of(stream), ProtocolViolation)


@bench()
async def test_many_ledgers_are_attached_in_one_message_and_detached_before_it(made):
    stream, welcome = await made.open(Lane.ADD)
    assert welcome.max_attached == MAX_ATTACHED_LEDGERS
    attached = b"".join(wire.encode_attach(wire.Attach(each, b""), joined=True) for each in (1, 2, 3))
    batches = tuple(batch(0, ledger_id=each) for each in (1, 2, 3))
    await stream.send(wire.encode_detached([1]) + frame_batches(attached, batches))
    await acks_on(stream, 3)
    await stream.send(wire.encode_detached([2]) + frame_batch(batch(1, ledger_id=2)))
    assert isinstance(await reason_of(stream), ProtocolViolation)


@pytest.mark.parametrize(
    "message",
    [
        pytest.param(b"\x7a\xff\xff\xff\xff\x0f", id="length"),
        pytest.param(b"random bytes", id="noise"),
        pytest.param(wire.encode_hello(wire.Hello("cluster", "again", None)), id="second hello"),
        pytest.param(frame_batch(b"TBAT"), id="short"),
        pytest.param(frame_batch(b""), id="empty"),
        pytest.param(frame_batch(b"") * 200_000, id="many empty"),
        pytest.param(b"\xa0\x06\x01" * 200_000, id="many fields"),
        pytest.param(frame_batch(batch(0, ledger_id=2)), id="not attached"),
        pytest.param(wire.encode_attach(wire.Attach(-1, b"")), id="no ledger"),
        pytest.param(wire.encode_attach(wire.Attach(1, b"k" * 33)), id="long key"),
    ],
)
@bench()
async def test_a_malformed_message_ends_its_stream_only_and_is_logged_once(made, message, caplog):
    caplog.set_level(logging.INFO)
    other, _ = await made.attached()
    stream, _ = await made.attached()
    await stream.send(message)
    assert isinstance(await reason_of(stream), ProtocolViolation)
    await other.send(frame_batch(batch(0)))
    assert wire.decode_acks(await other.receive())
    assert [record.getMessage() for record in caplog.records] == ["stream refused"]


@bench()
async def test_a_damaged_batch_is_answered_under_its_number_and_affects_no_other(made):
    damaged = bytearray(batch(0))
    damaged[-1] ^= 1
    stream, _ = await made.attached()
    await stream.send(frame_batch(bytes(damaged)) + frame_batch(batch(1)))
    acks = await acks_on(stream, 2)
    assert {ack.number: ack.answer.code for ack in acks} == {1: InvalidBatch.wire_code, 2: 0}


class Keeper:
    """A bookie that keeps small batches for ever, and refuses large ones."""

    bookie_id = "b1"
    incarnation = Incarnation("directory-of-b1", 1)
    max_batch_bytes = MAX_BATCH_BYTES

    def __init__(self) -> None:
        self.kept = []

    def add(self, batch, key, on_answer, *, kind=AddKind.ORDINARY, others_in_flight=False, identity=b""):
        if len(batch) < 2 * KIB:
            self.kept.append(batch)
        asyncio.get_running_loop().call_soon(on_answer, AddAnswer(1, 0, 1))

    @property
    def held_bytes(self) -> int:
        """The memory that the kept batches retain."""
        bodies = [kept.obj if isinstance(kept, memoryview) else kept for kept in self.kept]
        return sum(map(len, {id(body): body for body in bodies}.values()))

    @property
    def accounted_bytes(self) -> int:
        return sum(add_cost_bytes(len(kept)) for kept in self.kept)


@pytest.mark.parametrize("size", [10, 1000])
@bench(store=Keeper)
async def test_a_small_batch_beside_large_ones_does_not_keep_their_message(made, size):
    stream, _ = await made.attached()
    for first in range(0, 40, 4):
        large = b"".join(frame_batch(batch(first + beside, 20_000)) for beside in (2, 3))
        await stream.send(frame_batch(batch(first, size)) + large + frame_batch(batch(first + 1, size)))
        await made.world.clock.sleep(1)
    assert len(made.bookie.kept) == 20
    assert made.bookie.held_bytes <= 2 * made.bookie.accounted_bytes


@pytest.mark.parametrize("repair", [False, True])
@bench(store=Keeper)
async def test_a_recovered_batch_does_not_keep_what_came_with_it(made, repair):
    stream, _ = await made.open(Lane.CONTROL)
    for number in range(1, 20):
        ask = inspection.RepairAdd(batch(number)) if repair else wire.RecoveryAdd(b"", batch(number))
        request = wire.encode_request(number, ask)
        await stream.send(request + b"\xa2\x06\x80\x1f" + b"?" * 0xF80)
        assert await reply_on(stream, number) is None
    assert made.bookie.held_bytes <= 2 * made.bookie.accounted_bytes


@bench(store=Keeper)
async def test_a_batch_that_came_alone_is_kept_as_it_came(made):
    stream, _ = await made.attached()
    await stream.send(frame_batch(batch(0, 1000)))
    await made.world.clock.sleep(1)
    assert isinstance(made.bookie.kept[0], memoryview)


class Slow:
    """A bookie that answers on demand, and records for each add whether its caller has others in flight."""

    bookie_id = "b1"
    incarnation = Incarnation("directory-of-b1", 1)
    max_batch_bytes = MAX_BATCH_BYTES

    def __init__(self) -> None:
        self.others = []
        self._waiting = []

    def add(self, batch, key, on_answer, *, kind=AddKind.ORDINARY, others_in_flight=False, identity=b""):
        self.others.append(others_in_flight)
        self._waiting.append(on_answer)

    def answer(self) -> None:
        self._waiting.pop(0)(AddAnswer(1, 0, 1))


@bench(store=Slow)
async def test_the_store_hears_whether_the_same_client_has_other_batches_in_flight(made):
    stream, _ = await made.attached()
    other, _ = await made.attached()

    async def send(on, first):
        await on.send(frame_batch(batch(first)))
        await made.world.clock.sleep(1)
        return made.bookie.others[-1]

    assert [await send(stream, 0), await send(stream, 1), await send(other, 2)] == [False, True, False]
    for _ in range(2):
        made.bookie.answer()
    # Whether acks were read by their client does not matter.
    assert await send(stream, 3) is False


# -- requests ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lane", "ask"),
    [
        (Lane.READ, wire.Fence(1, b"")),
        (Lane.READ, wire.RecoveryAdd(b"", batch(0))),
        (Lane.CONTROL, wire.ReadBatches(1, 0, 1, 1)),
        (Lane.READ, wire.ReadLac(-1)),
        (Lane.READ, wire.ReadEntry(1, -1)),
        (Lane.READ, wire.ReadBatches(1, 5, 4, 1)),
        (Lane.READ, wire.WaitLac(1, -2, 1)),
        (Lane.CONTROL, wire.WriteLac(1, -2, b"")),
        (Lane.CONTROL, wire.WriteLacs((wire.LedgerLac(1, 0, b""),) * (MAX_LACS + 1))),
        (Lane.CONTROL, wire.Fence(1, b"k" * 33)),
        (Lane.CONTROL, wire.RecoveryRead(-5, 0, b"")),
        (Lane.READ, inspection.RepairAdd(batch(0))),
        (Lane.READ, inspection.AskStatus()),
        (Lane.CONTROL, inspection.AskHeld(-1, 0, 9)),
        (Lane.CONTROL, inspection.AskHeld(1, -1, 9)),
        (Lane.CONTROL, inspection.AskHeld(1, 9, 8)),
        (Lane.CONTROL, inspection.AskDamaged(-2, 0, 9)),
        (Lane.CONTROL, inspection.AskDamaged(0, -2, 9)),
        (Lane.CONTROL, inspection.AskDamaged(0, 0, 0)),
        (Lane.CONTROL, inspection.AskHeldLedgers(-2, 9)),
        (Lane.CONTROL, inspection.AskHeldLedgers(0, 0)),
        (Lane.CONTROL, inspection.EndLimbo(-1)),
        (Lane.CONTROL, inspection.AskTrace(1, -1)),
    ],
    ids=repr,
)
@bench()
async def test_a_request_that_cannot_be_is_answered_and_the_stream_goes_on(made, lane, ask):
    stream, _ = await made.open(lane)
    await stream.send(wire.encode_request(7, ask))
    assert isinstance(await reply_on(stream, 7), InvalidArgument)
    await stream.send(wire.encode_request(8, wire.ReadLac(1)))
    assert isinstance(await reply_on(stream, 8), TallybookError)


@bench()
async def test_a_request_of_a_newer_version_is_answered(made):
    stream, _ = await made.open(Lane.READ)
    await stream.send(pb.Request(request_id=3).SerializeToString() + b"\xa2\x06\x02hi")
    assert isinstance(await reply_on(stream, 3), InvalidArgument)


@bench()
async def test_an_id_in_use_is_a_violation_and_a_used_one_is_free_again(made):
    stream, _ = await made.open(Lane.READ)
    for _ in range(2):
        await stream.send(wire.encode_request(1, wire.WaitLac(1, -1, 10)))
        assert await reply_on(stream, 1) == LacAnswer(-1, False)
    for _ in range(2):
        await stream.send(wire.encode_request(1, wire.WaitLac(1, -1, 10_000)))
    assert isinstance(await reason_of(stream), ProtocolViolation)


@pytest.mark.parametrize(
    ("ask", "limit"),
    [(wire.WaitLac(1, -1, 60_000), MAX_WAITS), (wire.ReadEntry(1, 0), MAX_REQUESTS)],
    ids=["waits", "reads"],
)
@bench()
async def test_requests_beyond_the_limit_end_the_stream(made, ask, limit):
    made.bookie.pause()
    stream, _ = await made.open(Lane.READ)
    for request_id in range(1, limit + 1):
        await stream.send(wire.encode_request(request_id, ask))
    await made.world.clock.sleep(1)
    assert made.service.stream_count == 1
    await stream.send(wire.encode_request(limit + 1, ask))
    assert isinstance(await reason_of(stream), ProtocolViolation)
    made.bookie.resume()


@pytest.mark.parametrize("repair", [False, True])
@bench(stream_credit_bytes=2 * MIB)
async def test_recovery_and_repair_adds_beyond_the_credit_end_the_stream(made, repair):
    made.bookie.pause()
    stream, _ = await made.open(Lane.CONTROL)
    for number in range(1, 4):
        large = batch(number, 900_000)
        ask = inspection.RepairAdd(large) if repair else wire.RecoveryAdd(b"", large)
        await stream.send(wire.encode_request(number, ask))
    assert isinstance(await reason_of(stream), ProtocolViolation)
    made.bookie.resume()


@bench()
async def test_a_long_poll_for_ever_is_ended_by_the_bookie(made):
    stream, _ = await made.open(Lane.READ)
    before = made.world.clock.monotonic()
    await stream.send(wire.encode_request(1, wire.WaitLac(1, -1, 2**32 - 1)))
    assert await reply_on(stream, 1) == LacAnswer(-1, False)
    assert made.world.clock.monotonic() - before < 61


@bench()
async def test_a_stream_that_ends_takes_its_waiting_requests_along(made):
    stream, _ = await made.open(Lane.READ)
    for request_id in range(1, 50):
        await stream.send(wire.encode_request(request_id, wire.WaitLac(1, -1, 60_000)))
    await made.world.clock.sleep(1)
    await stream.close()
    await made.world.clock.sleep(1)
    assert made.service.stream_count == 0
    assert [task for task in made.world.loop.living_tasks() if "WaitLac" in task.get_name()] == []


class Miser:
    """A bookie with batches of minimal size."""

    bookie_id = "b1"
    incarnation = Incarnation("directory-of-b1", 1)
    max_batch_bytes = MAX_BATCH_BYTES

    async def read_batches(self, ledger_id, first, last, max_bytes, *, background=False):
        return ReadAnswer((batch(0, 0),) * (max_bytes // len(batch(0, 0))), 7)


@bench(store=Miser)
async def test_an_answer_of_many_small_batches_has_as_many_as_a_message_may_have(made):
    stream, _ = await made.open(Lane.READ)
    await stream.send(wire.encode_request(1, wire.ReadBatches(1, 0, 2**62, 3 * MIB)))
    answer = await reply_on(stream, 1)
    assert (len(answer.batches), answer.lac) == (MAX_FRAMES, 7)


class Muddled(Miser):
    """A bookie whose answer is invalid."""

    async def read_lac(self, ledger_id):
        return object()


@bench(store=Muddled)
async def test_an_answer_that_cannot_be_sent_is_counted_as_the_defect_that_it_is(made):
    stream, _ = await made.open(Lane.READ)
    await stream.send(wire.encode_request(1, wire.ReadLac(1)))
    assert type(await reply_on(stream, 1)) is TallybookError
    assert made.service.readings()["errors_TallybookError"] == 1
