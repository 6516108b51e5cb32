"""The ledger metadata codec: values are decoded as encoded, damage is detected, newer versions are refused."""

import re
import struct
from dataclasses import replace
from pathlib import Path

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from tallybook.core.answers import Incarnation
from tallybook.core.errors import DamagedFile, InvalidArgument, NewerFormat
from tallybook.core.ids import MAX_ID
from tallybook.core.limits import MAX_METADATA_BYTES
from tallybook.core.quorum import Quorum
from tallybook.metadata.codec import StoredRegistration, decode_bookie, decode_ledger, encode_bookie, encode_ledger
from tallybook.metadata.ledger.model import DigestType, Fragment, LedgerMetadata, LedgerState, MissedRange
from tallybook.metadata.store import BookieInfo, BookieMode
from tallybook.proto import metadata_pb2 as pb

from ..support.damage import flips

ROOT = Path(__file__).resolve().parents[2]

ids = st.integers(0, MAX_ID)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)


@st.composite
def ledgers(draw) -> LedgerMetadata:
    ensemble = draw(st.integers(1, 5))
    write_quorum = draw(st.integers(1, ensemble))
    quorum = Quorum(ensemble, write_quorum, draw(st.integers(1, write_quorum)), draw(st.integers(1, 1 << 20)))
    names = texts.filter(bool)
    bookies = st.lists(names, min_size=ensemble, max_size=ensemble, unique=True).map(tuple)
    firsts = [0, *sorted(draw(st.sets(st.integers(1, MAX_ID), max_size=4)))]
    state = draw(st.sampled_from(LedgerState))
    closed = state is LedgerState.CLOSED
    last = draw(st.integers(firsts[-1] - 1, MAX_ID)) if closed else -1
    spans = draw(st.lists(st.tuples(names, ids, ids), max_size=3))
    missed = [MissedRange(name, min(a, b), max(a, b)) for name, a, b in spans]
    if not closed:
        missed += draw(st.lists(st.builds(MissedRange, names, ids, st.none()), max_size=2))
    return LedgerMetadata(
        ledger_id=draw(ids),
        quorum=quorum,
        fragments=tuple(Fragment(first, draw(bookies)) for first in firsts),
        creator_token=draw(texts),
        created_at_ms=draw(st.integers(-(2**63), 2**63 - 1)),
        state=state,
        last_entry_id=last,
        length=draw(ids) if last >= 0 else 0,
        digest=draw(st.sampled_from(DigestType)),
        key_salt=draw(st.binary(max_size=16)),
        key_verifier=draw(st.binary(max_size=32)),
        writer_token=draw(st.none() | texts),
        missed=tuple(missed),
        custom=draw(st.dictionaries(texts, st.binary(max_size=20), max_size=4)),
    )


registrations = st.builds(
    StoredRegistration,
    st.builds(
        BookieInfo,
        texts,
        texts,
        st.builds(Incarnation, texts, st.integers(0, MAX_ID)),
        st.sampled_from(BookieMode),
        texts,
        texts,
        st.integers(0, MAX_ID),
    ),
    texts,
)

LEDGER = LedgerMetadata(
    ledger_id=7,
    quorum=Quorum(3, 3, 2),
    fragments=(Fragment(0, ("b1", "b2", "b3")), Fragment(5, ("b1", "b2", "b4"))),
    creator_token="c",
    created_at_ms=1_700_000_000_000,
    state=LedgerState.CLOSED,
    last_entry_id=9,
    length=100,
    writer_token="w",
    missed=(MissedRange("b2", 6, 8),),
    custom={"k": b"v"},
)
BOOKIE = StoredRegistration(BookieInfo("b1", "host:3181", Incarnation("uuid", 3), rack="r1"), "session")

# The example of docs/reference/formats/metadata.md. It must be read for ever, so it is written out here.
GOLDEN_LEDGER = bytes.fromhex(
    "544c45440100000052000000a5e57b56080712090803100318022080081a0c12"
    "02623112026232120262331a0e08051202623112026232120262342201632880"
    "d095ffbc3130033812406448016201776a080a0262321006180872060a016b12"
    "0176"
)
GOLDEN_BOOKIE = bytes.fromhex(
    "54424b490100000026000000536bd3b20a0262311209686f73743a333138311a0475756964200328013a027231420773657373696f6e"
)


def sealed(magic: bytes, body: bytes, version: int = 1) -> bytes:
    """A header that fits any ``body``."""
    header = struct.pack("<4sHHI", magic, version, 0, len(body))
    return header + struct.pack("<I", crc32c(body, crc32c(header))) + body


def with_field(message: bytes, number: int) -> bytes:
    """A protobuf message with one more field, a varint of 1."""
    tag = number << 3
    varint = bytearray()
    while tag > 0x7F:
        varint.append(tag & 0x7F | 0x80)
        tag >>= 7
    return message + bytes([*varint, tag, 1])


# --- round trip -------------------------------------------------------------------------------------------------------


@given(ledgers())
def test_any_ledger_comes_back_as_it_was(metadata):
    data = encode_ledger(metadata)
    assert decode_ledger(data, metadata.ledger_id, "here") == metadata
    assert encode_ledger(decode_ledger(data, metadata.ledger_id, "here")) == data


@given(registrations)
def test_any_registration_comes_back_as_it_was(registered):
    assert decode_bookie(encode_bookie(registered), "here") == registered


def test_the_order_of_custom_metadata_does_not_matter():
    one = replace(LEDGER, custom={"a": b"1", "b": b"2", "c": b"3"})
    other = replace(LEDGER, custom={"c": b"3", "a": b"1", "b": b"2"})
    assert encode_ledger(one) == encode_ledger(other)


def test_the_golden_values_are_still_written_and_read():
    assert encode_ledger(LEDGER).hex() == GOLDEN_LEDGER.hex()
    assert decode_ledger(GOLDEN_LEDGER, 7, "here") == LEDGER
    assert encode_bookie(BOOKIE).hex() == GOLDEN_BOOKIE.hex()
    assert decode_bookie(GOLDEN_BOOKIE, "here") == BOOKIE


def test_the_documented_example_is_the_golden_value():
    example = (ROOT / "docs" / "reference" / "formats" / "metadata.md").read_text().split("```")[1]
    digits = "".join(re.match(r"((?:[0-9a-f]{2}|[ |])+) ", line)[1] for line in example.strip().splitlines())
    assert bytes.fromhex(digits.replace("|", "")) == GOLDEN_LEDGER


# --- what cannot be stored --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "fields",
    [
        {"created_at_ms": 2**63},
        {"length": 2**63},
        {"creator_token": "\ud800"},
        {"writer_token": 5},
        {"key_salt": "text"},
        {"fragments": (Fragment(0, ("b1", "b2", "\udfff")),)},
        {"missed": (MissedRange("b1", 2**63, 2**63),)},
        {"custom": {"\ud800": b""}},
    ],
    ids=repr,
)
def test_a_value_that_does_not_fit_its_field_is_refused(fields):
    with pytest.raises(InvalidArgument, match="ledger 7 cannot be stored"):
        encode_ledger(replace(LEDGER, **fields))


def test_a_registration_that_does_not_fit_is_refused():
    with pytest.raises(InvalidArgument, match="bookie 'b1' cannot be stored"):
        encode_bookie(StoredRegistration(replace(BOOKIE.info, rack="\ud800"), "session"))


def test_more_than_the_largest_size_is_refused():
    bookies = tuple("x" * 4000 + str(n) for n in range(3))
    fragments = tuple(Fragment(first, bookies) for first in range(MAX_METADATA_BYTES // 12_000))
    long = replace(LEDGER, last_entry_id=10_000, fragments=fragments[:-2])
    assert len(encode_ledger(long)) <= MAX_METADATA_BYTES
    with pytest.raises(InvalidArgument, match=f"more than {MAX_METADATA_BYTES}"):
        encode_ledger(replace(long, fragments=(*fragments, Fragment(10_000, bookies))))


# --- damage -----------------------------------------------------------------------------------------------------------

DECODERS = {
    "ledger": (encode_ledger(LEDGER), lambda data: decode_ledger(data, 7, "node /x")),
    "bookie": (encode_bookie(BOOKIE), lambda data: decode_bookie(data, "node /x")),
}
each_kind = pytest.mark.parametrize(("data", "decode"), DECODERS.values(), ids=DECODERS)


@each_kind
def test_every_truncation_is_found(data, decode):
    for size in range(len(data)):
        with pytest.raises(DamagedFile, match="node /x"):
            decode(data[:size])


@each_kind
def test_every_flipped_bit_is_found(data, decode):
    for damaged in flips(data):
        with pytest.raises(DamagedFile, match="node /x"):
            decode(damaged)


@each_kind
def test_zeros_and_anything_after_the_end_are_found(data, decode):
    for other in (bytes(16), bytes(len(data)), data + b"\0", data + data):
        with pytest.raises(DamagedFile):
            decode(other)


def test_one_kind_is_not_taken_for_the_other():
    with pytest.raises(DamagedFile, match="TBKI"):
        decode_ledger(encode_bookie(BOOKIE), 7, "node /x")
    with pytest.raises(DamagedFile, match="TLED"):
        decode_bookie(encode_ledger(LEDGER), "node /x")


def test_a_ledger_found_under_the_id_of_another_is_refused():
    with pytest.raises(DamagedFile, match="ledger 7 are stored under ledger 8"):
        decode_ledger(encode_ledger(LEDGER), 8, "node /x")


SPOILERS = {
    "no quorum": lambda message: message.quorum.Clear(),
    "no fragments": lambda message: message.ClearField("fragments"),
    "two fragments from 0": lambda message: message.fragments[1].ClearField("first_entry_id"),
    "a bookie too many": lambda message: message.fragments[0].bookies.append("b9"),
    "no state": lambda message: message.ClearField("state"),
    "no digest": lambda message: message.ClearField("digest"),
    "too much custom metadata": lambda message: message.custom.update({"large": bytes(70_000)}),
}


@pytest.mark.parametrize("spoil", SPOILERS.values(), ids=SPOILERS)
def test_a_well_formed_message_that_is_no_ledger_is_refused(spoil):
    message = pb.Ledger.FromString(encode_ledger(LEDGER)[16:])
    spoil(message)
    with pytest.raises(DamagedFile, match="node /x"):
        decode_ledger(sealed(b"TLED", message.SerializeToString()), 7, "node /x")


# --- newer versions ---------------------------------------------------------------------------------------------------


def test_a_format_before_the_first_never_existed():
    with pytest.raises(DamagedFile, match="format 0 does not exist"):
        decode_ledger(sealed(b"TLED", encode_ledger(LEDGER)[16:], version=0), 7, "node /x")


@pytest.mark.parametrize("number", [15, 23, 34, 40, 41, 99, 5000])
def test_a_field_that_is_not_known_is_refused_by_its_number(number):
    body = with_field(encode_ledger(LEDGER)[16:], number)
    with pytest.raises(NewerFormat, match=rf"format 1 with fields Ledger\.{number}, this Tallybook knows no such"):
        decode_ledger(sealed(b"TLED", body), 7, "node /x")


@pytest.mark.parametrize("kind", ["Quorum", "Fragment", "MissedRange"])
def test_an_unknown_field_deep_inside_is_refused_too(kind):
    message = pb.Ledger.FromString(encode_ledger(LEDGER)[16:])
    part = {"Quorum": message.quorum, "Fragment": message.fragments[1], "MissedRange": message.missed[0]}[kind]
    part.MergeFromString(with_field(b"", 77))
    with pytest.raises(NewerFormat, match=rf"with fields {kind}\.77,"):
        decode_ledger(sealed(b"TLED", message.SerializeToString()), 7, "node /x")


def test_a_field_that_is_not_known_in_a_registration_is_passed_over():
    # Or one bookie of a newer version would make all of them invisible to older processes.
    body = with_field(encode_bookie(BOOKIE)[16:], 77)
    assert decode_bookie(sealed(b"TBKI", body), "node /x") == BOOKIE


def test_an_unknown_choice_is_refused():
    for field, what in (("state", "ledger state"), ("digest", "digest type")):
        message = pb.Ledger.FromString(encode_ledger(LEDGER)[16:])
        setattr(message, field, 9)
        with pytest.raises(NewerFormat, match=f"with {what} 9,"):
            decode_ledger(sealed(b"TLED", message.SerializeToString()), 7, "node /x")
    bookie = pb.Bookie.FromString(encode_bookie(BOOKIE)[16:])
    bookie.mode = 9
    with pytest.raises(NewerFormat, match="with bookie mode 9,"):
        decode_bookie(sealed(b"TBKI", bookie.SerializeToString()), "node /x")
