"""Messages between client and bookie: decoded as encoded, and invalid ones refused."""

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallybook.core.answers import (
    AddAnswer,
    BookieStatus,
    CopyPlace,
    CopyTrace,
    DamagedBatch,
    DirectorySpace,
    EntryRange,
    FenceAnswer,
    HeldAnswer,
    HeldLedger,
    HeldLedgers,
    Incarnation,
    LacAnswer,
    ReadAnswer,
)
from tallybook.core.batch import EntrySlice
from tallybook.core.errors import (
    Busy,
    EntryAbsent,
    EntryCorrupt,
    EntryUnknown,
    InvalidArgument,
    InvariantViolation,
    Outcome,
    ProtocolViolation,
    TallybookError,
    Unauthorized,
)
from tallybook.core.ids import MAX_ID
from tallybook.core.limits import BATCH_HEADER_BYTES, KIB, MAX_BATCH_BYTES, MAX_ENTRY_BYTES, MAX_PAGE
from tallybook.proto import bookie_pb2 as pb
from tallybook.wire import inspection
from tallybook.wire import messages as wire
from tallybook.wire.batches import MAX_ATTACHED_LEDGERS, MAX_LACS
from tallybook.wire.versions import Versions

ids = st.integers(0, MAX_ID)
lacs = st.integers(-1, MAX_ID)
signed = st.integers(-(2**63), MAX_ID)
keys = st.binary(max_size=32)
identities = st.sampled_from([b"", bytes(range(16))])
u32 = st.integers(0, 2**32 - 1)
batches = st.binary(min_size=BATCH_HEADER_BYTES, max_size=200)

asks = st.one_of(
    st.builds(wire.ReadBatches, signed, signed, signed, u32),
    st.builds(wire.ReadEntry, signed, signed),
    st.builds(wire.ReadLac, signed),
    st.builds(wire.WaitLac, signed, lacs, u32, u32),
    st.builds(wire.Fence, signed, keys),
    st.builds(wire.RecoveryRead, signed, signed, keys, u32),
    st.builds(wire.RecoveryAdd, keys, batches, identities),
    st.builds(wire.WriteLac, signed, lacs, keys),
    st.builds(
        wire.WriteLacs,
        st.lists(st.builds(wire.LedgerLac, signed, lacs, keys, identities), max_size=MAX_LACS).map(tuple),
    ),
    st.builds(inspection.RepairAdd, batches, identities),
    st.builds(inspection.AskHeld, signed, signed, signed),
    st.builds(inspection.AskDamaged, lacs, lacs, u32),
    st.builds(inspection.AskHeldLedgers, lacs, u32),
    st.builds(inspection.EndLimbo, signed),
    st.just(inspection.AskStatus()),
    st.builds(inspection.AskTrace, signed, signed),
)
fractions = st.floats(0, 1)


def tuples_of(values):
    return st.lists(values, max_size=4).map(tuple)


answers = st.one_of(
    st.builds(ReadAnswer, st.lists(batches, max_size=4).map(tuple), lacs),
    st.builds(EntrySlice, ids, ids, st.binary(max_size=50), u32, ids, lacs),
    st.builds(LacAnswer, lacs, st.booleans(), st.lists(batches, max_size=4).map(tuple)),
    st.builds(FenceAnswer, lacs, lacs),
    st.none(),
    st.builds(wire.LacsAnswer, st.lists(st.builds(wire.RefusedLac, u32, u32, u32), min_size=1).map(tuple)),
    st.builds(HeldAnswer, tuples_of(st.builds(EntryRange, ids, ids)), ids, st.booleans(), st.none() | st.booleans()),
    st.builds(inspection.DamagedAnswer, tuples_of(st.builds(DamagedBatch, ids, ids, ids))),
    st.builds(HeldLedgers, tuples_of(st.builds(HeldLedger, ids, st.booleans(), st.booleans())), st.booleans()),
    st.builds(
        BookieStatus, st.booleans(), fractions, ids, ids, ids, fractions, ids, ids, ids, ids, ids, fractions,
        tuples_of(st.builds(DirectorySpace, st.text(), st.text(), u32, ids, ids, st.text())),
    ),
    st.builds(
        CopyTrace, st.text(), st.text(), lacs, lacs, u32, ids, lacs, st.booleans(), st.booleans(),
        tuples_of(st.builds(CopyPlace, st.text(), st.text(), ids)),
    ),
)  # fmt: skip


@given(st.integers(1, 2**64 - 1), asks, identities)
def test_every_request_arrives_as_it_was_sent(request_id, ask, identity):
    identity = getattr(ask, "identity", identity)
    sent = wire.encode_request(request_id, ask, identity=identity)
    assert wire.decode_request(sent) == wire.Request(request_id, ask, identity=identity)


@given(st.integers(1, 2**64 - 1), answers)
def test_every_answer_arrives_as_it_was_sent(request_id, answer):
    assert wire.decode_reply(wire.encode_reply(request_id, answer)) == wire.Reply(request_id, answer)


def test_the_longest_pages_are_small_messages():
    ranges = tuple(EntryRange(MAX_ID, MAX_ID) for _ in range(MAX_PAGE))
    ledgers = tuple(HeldLedger(MAX_ID, fenced=True, limbo=True, identity=bytes(16)) for _ in range(MAX_PAGE))
    damaged = tuple(DamagedBatch(MAX_ID, MAX_ID, MAX_ID) for _ in range(MAX_PAGE))
    for answer in (
        HeldAnswer(ranges, MAX_ID, limbo=True),
        HeldLedgers(ledgers, complete=True),
        inspection.DamagedAnswer(damaged),
    ):
        assert len(wire.encode_reply(1, answer)) < 40 * KIB
        assert wire.decode_reply(wire.encode_reply(1, answer)).outcome == answer


def test_an_entry_as_large_as_may_be_arrives():
    answer = EntrySlice(1, 2, bytes(MAX_ENTRY_BYTES), 3, 4, 5)
    assert wire.decode_reply(wire.encode_reply(1, answer)).outcome == answer


@given(st.lists(st.builds(wire.Ack, ids, st.builds(AddAnswer, ids, ids, u32, u32, u32)), max_size=50))
def test_acks_arrive_as_they_were_sent(acks):
    assert wire.decode_acks(wire.encode_acks(acks)) == acks


def test_a_message_with_nothing_known_in_it_adds_nothing():
    assert wire.decode_adds(b"\xa2\x06\x02hi") == wire.Adds((), [])


some_versions = st.lists(st.integers(1, 2**32 - 1), min_size=2, max_size=2).map(lambda two: Versions(*sorted(two)))


@given(st.builds(wire.Hello, st.text(), st.text(), st.none() | st.builds(Incarnation, st.text(), ids), some_versions))
def test_a_hello_arrives_as_it_was_sent(hello):
    assert wire.decode_hello(wire.encode_hello(hello)) == hello


@given(
    st.builds(
        wire.Welcome,
        st.text(),
        st.builds(Incarnation, st.text(), ids),
        ids,
        u32,
        u32,
        u32,
        max_batch_bytes=st.integers(1, MAX_BATCH_BYTES),
        max_attached=st.integers(0, MAX_ATTACHED_LEDGERS),
        tcp_port=st.integers(0, 65_535),
    )
)
def test_a_welcome_arrives_as_it_was_sent(welcome):
    assert wire.decode_welcome(wire.encode_welcome(welcome)) == welcome


def test_a_port_that_cannot_be_is_none():
    said = pb.Reply(welcome=pb.Welcome(bookie_id="b1", protocol_version=1, tcp_port=65_536)).SerializeToString()
    assert wire.decode_welcome(said).tcp_port == 0


def test_a_bookie_that_does_not_say_what_it_takes_is_believed_to_take_any_batch():
    said = pb.Reply(welcome=pb.Welcome(bookie_id="b1", protocol_version=1)).SerializeToString()
    assert wire.decode_welcome(said).max_batch_bytes == MAX_BATCH_BYTES


@pytest.mark.parametrize("kind", [EntryAbsent, EntryCorrupt, EntryUnknown, Unauthorized, InvalidArgument])
def test_an_error_arrives_as_its_own_class_with_its_sentence(kind):
    reply = wire.decode_reply(wire.encode_reply(9, kind("entry 7 of ledger 1")))
    assert type(reply.outcome) is kind
    assert reply.outcome.message == "entry 7 of ledger 1"


def test_busy_arrives_with_its_hint_and_a_defect_is_not_taken_for_one_of_the_client():
    busy = wire.decode_reply(wire.encode_reply(9, Busy("full", retry_after_ms=70))).outcome
    assert (type(busy), busy.retry_after_ms) == (Busy, 70)
    defect = wire.decode_reply(wire.encode_reply(9, InvariantViolation("impossible"))).outcome
    assert (type(defect), defect.outcome) == (TallybookError, Outcome.UNKNOWN)


def test_the_documentation_lists_every_code():
    def classes(root):
        return [root, *(below for child in root.__subclasses__() for below in classes(child))]

    page = Path(__file__).parents[2].joinpath("docs/reference/formats/wire.md").read_text()
    listed = {int(code): name for code, name in re.findall(r"^\| (\d+) \| `(\w+)` \|", page, re.MULTILINE)}
    assert listed == {
        kind.wire_code: kind.__name__ for kind in classes(TallybookError) if kind.__module__.startswith("tallybook.")
    }


def test_a_long_sentence_is_cut():
    assert len(wire.encode_reply(9, EntryAbsent("x" * 10_000_000))) < 2000


def test_a_refusal_is_raised_to_callers_that_wait_for_the_welcome_or_acks_and_is_a_reply_to_others():
    refusal = wire.encode_refusal(Unauthorized("no"))
    for decode in (wire.decode_welcome, wire.decode_acks):
        with pytest.raises(Unauthorized):
            decode(refusal)
    reply = wire.decode_reply(refusal)
    assert (reply.request_id, type(reply.outcome)) == (0, Unauthorized)


@pytest.mark.parametrize(
    "ask", [wire.ReadEntry(2**63, 0), wire.WaitLac(1, 0, 2**32), wire.WaitLac(1, 0, -1), wire.Fence("1", b"")]
)
def test_a_value_that_does_not_fit_its_field_is_the_callers_error(ask):
    with pytest.raises(InvalidArgument):
        wire.encode_request(1, ask)


def test_a_request_of_a_newer_version_keeps_its_id_and_has_no_ask():
    unknown = pb.Request(request_id=5).SerializeToString() + b"\xa2\x06\x02hi"
    assert wire.decode_request(unknown) == wire.Request(5, None)


def test_a_bookie_that_names_no_directories_is_understood_and_one_that_says_more_is_too():
    older = pb.Reply(request_id=5, status_answer=pb.StatusAnswer(free_bytes=7))
    status = wire.decode_reply(older.SerializeToString()).outcome
    assert (status.free_bytes, status.directories) == (7, ())
    said = BookieStatus(False, 0.5, 7, 0, 0, 0.0, 0, 0, 0, 0, 0, 1.0, (DirectorySpace("/d", "index", 1, 9, 7, "room"),))
    newer = pb.Reply.FromString(wire.encode_reply(5, said))
    newer.status_answer.directories[0].MergeFromString(b"\xa2\x06\x02hi")
    newer.status_answer.MergeFromString(b"\xa2\x06\x02hi")
    assert wire.decode_reply(newer.SerializeToString()).outcome == said


def not_utf8(message) -> bytes:
    """The message with bytes in the place of the text "abc" that are no text."""
    found = message.SerializeToString()
    assert found.count(b"abc") == 1
    return found.replace(b"abc", b"\xff\xfe\xfd")


def request(**fields) -> bytes:
    return pb.Request(request_id=1, **fields).SerializeToString()


def reply(**fields) -> bytes:
    return pb.Reply(request_id=1, **fields).SerializeToString()


BODY = bytes(64)


@pytest.mark.parametrize(
    ("decode", "message"),
    [
        (wire.decode_hello, b""),
        (wire.decode_hello, request(read_lac=pb.ReadLac())),
        (wire.decode_hello, wire.encode_hello(wire.Hello("cluster", "c" * 5000, None))),
        (wire.decode_hello, b"\x0a\x05\x12\x03\xff\xfe\xfd"),  # a cluster id that is not UTF-8
        (wire.decode_hello, b"\x08\x01"),  # the hello as a number
        (wire.decode_welcome, b""),
        (wire.decode_welcome, b"\xff" * 20),
        (wire.decode_welcome, b"\x08\x01"),
        (wire.decode_welcome, not_utf8(pb.Reply(welcome=pb.Welcome(bookie_id="abc")))),
        (wire.decode_adds, b"\x0a\x00"),  # a second hello
        (wire.decode_adds, b"\x12\x7f"),
        (wire.decode_acks, b"\x12\x7f"),
        (wire.decode_acks, not_utf8(pb.AddReply(failure=pb.Failure(code=1, message="abc")))),
        (wire.decode_request, b""),
        (wire.decode_request, b"\x12\x01a"),  # an id that is text
        (wire.decode_request, pb.Request(read_lac=pb.ReadLac()).SerializeToString()),  # no id
        (wire.decode_request, request(recovery_add=pb.RecoveryAdd())),
        (wire.decode_request, request(recovery_add=pb.RecoveryAdd(), batches=[BODY, BODY])),
        (wire.decode_request, request(repair_add=pb.RepairAdd())),
        (wire.decode_request, request(trace=pb.Trace(), batches=[BODY])),
        (wire.decode_request, request(fence=pb.Fence(), batches=[BODY])),
        (wire.decode_request, request(fence=pb.Fence(key=bytes(5000)))),
        (wire.decode_reply, b""),
        (wire.decode_reply, b"\x12\x01a"),
        (wire.decode_reply, reply()),
        (wire.decode_reply, reply(status_answer=pb.StatusAnswer(), batches=[BODY])),
        (wire.decode_reply, reply(done_answer=pb.DoneAnswer(), batches=[BODY])),
        (wire.decode_reply, not_utf8(pb.Reply(request_id=1, failure=pb.Failure(code=1, message="abc")))),
    ],
)
def test_what_is_not_a_message_of_its_kind_is_a_violation(decode, message):
    with pytest.raises(ProtocolViolation):
        decode(message)


def test_batches_of_the_wrong_type_are_passed_over_as_any_field_is_that_is_not_known():
    number = b"\x78\x01"
    assert wire.decode_adds(number) == wire.Adds((), [])
    fence = pb.Request(request_id=1, fence=pb.Fence(ledger_id=7)).SerializeToString()
    assert wire.decode_request(fence + number) == wire.decode_request(fence)


@pytest.mark.parametrize("depth", [10, 101, 250_000])
@pytest.mark.parametrize("ended", [True, False], ids=["whole", "cut"])
def test_groups_within_groups_are_passed_over_or_refused_and_not_followed_down(depth, ended):
    nested = b"\xa3\x06" * depth + b"\xa4\x06" * (depth - (not ended))
    hello = wire.encode_hello(wire.Hello("cluster", "client", None))
    welcome = wire.encode_welcome(wire.Welcome("b1", Incarnation("uuid", 1), 1, 1, 1))
    acks = wire.encode_acks([(7, AddAnswer(1, 0, 1))])
    for decode, good in ((wire.decode_hello, hello), (wire.decode_welcome, welcome), (wire.decode_acks, acks)):
        if ended and depth <= 100 and len(good + nested) <= 4096:
            assert decode(good + nested) == decode(good)
        else:
            with pytest.raises(ProtocolViolation):
                decode(good + nested)
    # What may carry batches is looked through for them first: by fields, of which none is a group.
    fence = pb.Request(request_id=1, fence=pb.Fence()).SerializeToString()
    reply = wire.encode_reply(1, LacAnswer(4, False))
    for decode, good in ((wire.decode_request, fence), (wire.decode_reply, reply), (wire.decode_adds, b"")):
        with pytest.raises(ProtocolViolation):
            decode(good + nested)
