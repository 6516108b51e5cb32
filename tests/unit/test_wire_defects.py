"""A bookie with defects, on the wire: every request is answered, or the process ends."""

import pytest

from tallybook.bookie.rpc import add_stream as add_lane
from tallybook.core.add_kind import AddKind
from tallybook.core.answers import FenceAnswer, Incarnation, LacAnswer
from tallybook.core.batch import decode_header
from tallybook.core.errors import DiskFailed, InvariantViolation, PeerUnavailable, TallybookError
from tallybook.core.limits import MAX_BATCH_BYTES
from tallybook.wire import messages as wire
from tallybook.wire.batches import frame_batch
from tallybook.wire.lanes import Lane

from ..support.wire_bench import batch_of as batch
from ..support.wire_bench import bench, reply_on


class BrokenStore:
    """A bookie with a defect in every method."""

    bookie_id = "b1"
    incarnation = Incarnation("directory-of-b1", 1)
    max_batch_bytes = MAX_BATCH_BYTES

    def add(self, batch, key, on_answer, *, kind=AddKind.ORDINARY, others_in_flight=False, identity=b""):
        if kind is AddKind.RECOVERY:
            raise InvariantViolation("impossible recovery")
        raise InvariantViolation("impossible add") if decode_header(batch).first_entry_id else ZeroDivisionError

    async def fence(self, ledger_id, key):
        return FenceAnswer(2**70, 0)

    async def read_lac(self, ledger_id):
        raise DiskFailed("a path that is not text: \udcff") if ledger_id else ZeroDivisionError

    async def wait_lac(self, ledger_id, above, timeout_ms):
        return LacAnswer(7, False)


def defects(caplog) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]


@bench(store=BrokenStore)
async def test_a_defect_is_answered_as_internal_and_the_stream_goes_on(made, caplog):
    adds, _ = await made.attached()
    for number in (1, 2):
        await adds.send(frame_batch(batch(0)))
        (ack,) = wire.decode_acks(await adds.receive())
        assert (ack.number, ack.answer.code) == (number, TallybookError.wire_code)
    control, _ = await made.open(Lane.CONTROL)
    for request_id in (5, 6):
        await control.send(wire.encode_request(request_id, wire.ReadLac(0)))
        assert type(await reply_on(control, request_id)) is TallybookError
    assert len(defects(caplog)) == 4
    assert made.failures == []
    told = [vars(record)["tallybook_fields"] for record in caplog.records if record.getMessage() == "request failed"]
    assert [(each["kind"], each["request_id"], each["ledger_id"]) for each in told] == [
        ("ReadLac", 5, 0),
        ("ReadLac", 6, 0),
    ]


@bench(store=BrokenStore)
async def test_an_invariant_that_does_not_hold_ends_the_node_wherever_it_is_met(made, caplog):
    adds, _ = await made.attached()
    await adds.send(frame_batch(batch(1)))
    (ack,) = wire.decode_acks(await adds.receive())
    assert ack.answer.code == TallybookError.wire_code
    assert "impossible add" in made.failures[0]
    control, _ = await made.open(Lane.CONTROL)
    await control.send(wire.encode_request(6, wire.RecoveryAdd(b"", batch(0))))
    assert type(await reply_on(control, 6)) is TallybookError
    assert "impossible recovery" in made.failures[1]
    assert len(defects(caplog)) == 2


@bench()
async def test_an_invariant_that_does_not_hold_for_a_stream_ends_the_node(made, caplog, monkeypatch):
    def impossible(said):
        raise InvariantViolation("impossible hello")

    monkeypatch.setattr(made.service, "_checked", impossible)
    with pytest.raises(TallybookError):
        await made.open(Lane.READ)
    assert "impossible hello" in made.failures[0]
    assert defects(caplog) == ["stream failed"]


@bench(store=BrokenStore)
async def test_answers_that_no_message_can_hold_are_internal_errors_and_free_their_places(made, caplog):
    control, _ = await made.open(Lane.CONTROL)
    for request_id, ask in ((1, wire.Fence(1, b"")), (2, wire.ReadLac(1))) * 2:
        await control.send(wire.encode_request(request_id, ask))
        assert type(await reply_on(control, request_id)) is TallybookError
    assert len(defects(caplog)) == 4


@bench()
async def test_acks_that_cannot_be_written_end_the_stream_with_one_line_in_the_log(made, caplog, monkeypatch):
    def broken(acks):
        raise ValueError("no such number")

    monkeypatch.setattr(add_lane, "encode_acks", broken)
    stream, _ = await made.attached()
    await stream.send(frame_batch(batch(0)))
    with pytest.raises(PeerUnavailable):
        await stream.receive()
    await made.world.clock.sleep(1)
    assert made.service.stream_count == 0
    assert defects(caplog) == ["nothing more can be sent"]
