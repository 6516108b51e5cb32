"""Hand-written framing of batches in messages: the same bytes as protobuf."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallybook.core.batch import encode_batch
from tallybook.core.errors import InvalidBatch, ProtocolViolation
from tallybook.core.limits import BATCH_HEADER_BYTES, MAX_BATCH_BYTES, MAX_MESSAGE_BYTES
from tallybook.proto import bookie_pb2 as pb
from tallybook.wire import batches as wire
from tallybook.wire.batches import MAX_FRAMES, MAX_REST_BYTES, FrameCache, frame_batch, frame_batches, split_batches

small = st.binary(min_size=BATCH_HEADER_BYTES, max_size=300)
ONE, TWO = b"one".ljust(BATCH_HEADER_BYTES), b"two".ljust(BATCH_HEADER_BYTES)


def batch(first: int, size: int = 10) -> bytes:
    return encode_batch(1, first, [b"x" * size], lac=-1, ledger_length=10**9, written_at_us=0)


@pytest.mark.parametrize("size", [0, 1, 127, 128, 16_383, 16_384, MAX_BATCH_BYTES])
def test_a_frame_is_what_protobuf_makes_of_the_batch(size):
    payload = b"b" * size
    assert frame_batch(payload) == pb.AddRequest(batches=[payload]).SerializeToString()


@given(st.lists(small, max_size=5))
def test_framed_batches_after_other_fields_are_one_message_for_protobuf(batches):
    front = pb.Reply(request_id=7, batches_answer=pb.BatchesAnswer(lac=-1)).SerializeToString()
    reply = pb.Reply.FromString(frame_batches(front, tuple(batches)))
    assert (reply.request_id, reply.batches_answer.lac, list(reply.batches)) == (7, -1, batches)


@given(st.binary(max_size=50), st.integers(0, 2**63 - 1), st.lists(small, max_size=5))
def test_batches_are_found_in_what_protobuf_made(key, ledger_id, batches):
    message = pb.AddRequest(attach=pb.Attach(ledger_id=ledger_id, key=key), batches=batches).SerializeToString()
    rest, found = split_batches(message)
    assert [bytes(view) for view in found] == batches
    assert pb.AddRequest.FromString(rest) == pb.AddRequest(attach=pb.Attach(ledger_id=ledger_id, key=key))


def test_found_batches_are_views_into_the_message_not_copies():
    message = frame_batch(ONE)
    _, (view,) = split_batches(message)
    assert view.obj is message


def test_fields_of_a_newer_version_of_any_type_are_skipped():
    # Fields 100 to 103 with the wire types varint, fixed64, length-delimited and fixed32.
    unknown = b"\xa0\x06\xff\xff\x03" + b"\xa9\x06" + b"8" * 8 + b"\xb2\x06\x05\x7a\x02ab!" + b"\xbd\x06" + b"4" * 4
    rest, found = split_batches(unknown + frame_batch(ONE) + unknown)
    assert [bytes(view) for view in found] == [ONE]
    assert rest == unknown * 2


@pytest.mark.parametrize(
    "message",
    [
        b"\x7a",  # a tag and no length
        b"\x7a\x05abcd",  # one byte short
        b"\x7a\xff\xff\xff\xff\x0fabc",  # 4 GiB announced
        b"\x7a" + b"\xff" * 10 + b"\x01",  # a length that never ends
        b"\x08",  # a varint field without its varint
        b"\x09abc",  # a fixed64 of three bytes
        b"\x0dabc",  # a fixed32 of three bytes
        b"\x0b",  # a group, which proto3 has not
        b"\x0f",  # wire type 7
    ],
)
def test_a_message_whose_fields_do_not_add_up_is_a_violation(message):
    with pytest.raises(ProtocolViolation):
        split_batches(frame_batch(ONE) + message)


class Counted:
    """``_read_varint`` that counts its calls: the work spent on a message."""

    def __init__(self, monkeypatch) -> None:
        self.calls = 0
        self._read = wire._read_varint
        monkeypatch.setattr(wire, "_read_varint", self)

    def __call__(self, message, at):
        self.calls += 1
        return self._read(message, at)


@pytest.mark.parametrize(
    "message",
    [
        b"\x7a\x00" * (MAX_MESSAGE_BYTES // 2),
        (b"\x7a\x3f" + bytes(63)) * 80_000,
        frame_batch(ONE) * 79_000,
        b"\xa0\x06\x01" * (MAX_MESSAGE_BYTES // 3),
        b"\xb2\x06\x00" * (MAX_MESSAGE_BYTES // 3),
        b"\xa9\x06" + b"8" * 8 + b"\xa0\x06\x01" * (MAX_MESSAGE_BYTES // 4),
    ],
    ids=["empty batches", "short batches", "batches", "numbers", "empty fields", "mixed"],
)
def test_a_message_of_far_too_many_fields_is_refused_before_much_work_is_spent_on_it(message, monkeypatch):
    counted = Counted(monkeypatch)
    with pytest.raises(ProtocolViolation):
        split_batches(message)
    assert counted.calls <= 2 * MAX_FRAMES + 2


SIZE = MAX_REST_BYTES - 4
UNKNOWN = b"\xa2\x06" + bytes([SIZE & 0x7F | 0x80, SIZE >> 7]) + b"?" * SIZE


@pytest.mark.parametrize(
    ("most", "more"),
    [(frame_batch(ONE) * MAX_FRAMES, frame_batch(ONE)), (UNKNOWN + frame_batch(ONE), b"\xa0\x06\x01")],
    ids=["batches", "other bytes"],
)
def test_as_much_as_may_be_in_a_message_is_taken_and_not_one_more(most, more):
    rest, batches = split_batches(most)
    assert len(rest) + sum(len(frame_batch(bytes(each))) for each in batches) == len(most)
    with pytest.raises(ProtocolViolation):
        split_batches(most + more)


@given(st.lists(small, min_size=1, max_size=3), st.data())
def test_a_cut_message_never_yields_a_shortened_batch(batches, data):
    message = b"".join(map(frame_batch, batches))
    cut = message[: data.draw(st.integers(0, len(message) - 1))]
    try:
        _, found = split_batches(cut)
    except ProtocolViolation:
        return
    assert [bytes(view) for view in found] == batches[: len(found)]


def test_one_batch_for_several_bookies_is_framed_once_and_other_bytes_under_its_ids_are_too():
    cache = FrameCache()
    first, second, other = batch(0), batch(1), batch(0, 20)
    frames = [cache.frame(given) for given in (first, second, first, second)]
    assert frames[0] is frames[2]
    assert frames[1] is frames[3]
    assert [*frames[:2], cache.frame(other), cache.frame(first)] == [
        frame_batch(each) for each in (first, second, other, first)
    ]


def test_remembered_frames_are_bounded():
    cache = FrameCache()
    batches = [batch(n, 100_000) for n in range(100)]
    frames = [cache.frame(given) for given in batches]
    assert cache.held_bytes <= FrameCache.MAX_BYTES
    assert cache.frame(batches[-1]) is frames[-1]
    assert cache.frame(batches[0]) is not frames[0]


def test_bytes_too_short_for_a_batch_are_not_framed():
    with pytest.raises(InvalidBatch):
        FrameCache().frame(b"TBAT")
