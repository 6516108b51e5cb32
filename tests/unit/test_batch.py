"""The batch codec: a batch is decoded as it was encoded, and every change is detected."""

import struct

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from tallybook.core import batch as codec
from tallybook.core import limits
from tallybook.core.batch import (
    Entry,
    cut_entry,
    decode_header,
    encode_batch,
    encoded_bytes,
    entries,
    entry_crc,
    payload_slices,
    verify_batch,
)
from tallybook.core.errors import EntryTooLarge, InvalidArgument, InvalidBatch, NewerFormat
from tallybook.core.ids import MAX_ID, NO_ENTRY

KEY = bytes(range(32))


def seal(payloads=(b"hello", b"", b"tally"), ledger_id=7, first=3, **changes):
    fields = {"lac": first - 1, "ledger_length": 99 + sum(map(len, payloads)), "written_at_us": 1_763_726_400_000_000}
    return encode_batch(ledger_id, first, list(payloads), **fields | changes)


def patched(data: bytes, offset: int, replacement: bytes, *, mend: bool = False) -> bytes:
    """``data`` with bytes replaced; with ``mend`` the batch CRC is made to fit again."""
    changed = bytearray(data)
    changed[offset : offset + len(replacement)] = replacement
    if mend:
        crc = crc32c(bytes(changed[64:]), crc32c(bytes(changed[:60])))
        changed[60:64] = struct.pack("<I", crc)
    return bytes(changed)


@st.composite
def batches(draw):
    payloads = draw(st.lists(st.binary(max_size=40), min_size=1, max_size=20))
    first = draw(st.integers(0, MAX_ID - len(payloads) + 1))
    total = sum(map(len, payloads))
    fields = {
        "lac": draw(st.integers(NO_ENTRY, first - 1)),
        "ledger_length": draw(st.integers(total, MAX_ID)),
        "written_at_us": draw(st.integers(-MAX_ID, MAX_ID)),
    }
    return draw(st.integers(0, MAX_ID)), first, payloads, fields, draw(st.sampled_from((None, KEY)))


@given(batches())
def test_a_sealed_batch_gives_back_its_header_and_its_entries(drawn):
    ledger_id, first, payloads, fields, key = drawn
    data = encode_batch(ledger_id, first, payloads, **fields, digest_key=key)
    header = verify_batch(data, key)
    assert len(data) == header.total_bytes == encoded_bytes(len(payloads), sum(map(len, payloads)), digest=bool(key))
    assert (header.ledger_id, header.first_entry_id, header.entry_count) == (ledger_id, first, len(payloads))
    assert {name: getattr(header, name) for name in fields} == fields
    assert header.last_entry_id == first + len(payloads) - 1
    at = fields["written_at_us"]
    assert entries(data, header) == [Entry(ledger_id, first + i, p, at) for i, p in enumerate(payloads)]


@given(batches(), st.data())
def test_every_entry_cut_out_alone_is_the_one_that_was_sealed(drawn, data):
    ledger_id, first, payloads, fields, key = drawn
    encoded = encode_batch(ledger_id, first, payloads, **fields, digest_key=key)
    index = data.draw(st.integers(0, len(payloads) - 1))
    piece = cut_entry(encoded, decode_header(encoded), first + index)
    assert piece.verify() == Entry(ledger_id, first + index, payloads[index], fields["written_at_us"])
    assert piece.lac == fields["lac"]


@given(batches(), st.data())
def test_a_range_of_a_batch_holds_exactly_the_entries_of_that_range(drawn, data):
    ledger_id, first, payloads, fields, _ = drawn
    encoded = encode_batch(ledger_id, first, payloads, **fields)
    low = data.draw(st.integers(max(0, first - 3), min(MAX_ID, first + len(payloads) + 3)))
    high = data.draw(st.integers(max(0, first - 3), min(MAX_ID, first + len(payloads) + 3)))
    wanted = [(first + i, p) for i, p in enumerate(payloads) if low <= first + i <= high]
    assert [(e.entry_id, e.payload) for e in entries(encoded, decode_header(encoded), low, high)] == wanted


@pytest.mark.parametrize("buffer", [bytes, bytearray, memoryview])
def test_any_buffer_of_bytes_serves_as_payload_and_as_batch(buffer):
    data = seal()
    assert seal([buffer(b"hello"), buffer(b""), buffer(b"tally")]) == data
    assert verify_batch(buffer(data)) == verify_batch(data)
    assert entries(buffer(data), verify_batch(data)) == entries(data, verify_batch(data))


def test_the_documented_example_is_what_the_code_writes():
    expected = """
        54 42 41 54 01 00 00 00 03 00 00 00 0a 00 00 00
        07 00 00 00 00 00 00 00 03 00 00 00 00 00 00 00
        02 00 00 00 00 00 00 00 63 00 00 00 00 00 00 00
        00 90 8d 8d 19 44 06 00 00 00 00 00 cd 37 66 b9
        05 00 00 00 a0 a5 55 13 00 00 00 00 92 b7 71 76
        05 00 00 00 7e bf aa 84 68 65 6c 6c 6f 74 61 6c
        6c 79
    """
    assert seal(ledger_length=99) == bytes.fromhex(expected)


def test_an_entry_checksum_is_the_plain_crc_started_from_the_documented_seed():
    seed = (crc32c(struct.pack("<q", 7)) + 3) % 2**32
    assert entry_crc(7, 3, b"hello") == crc32c(b"hello", seed) == 0x1355A5A0


def test_entry_checksums_go_on_where_their_seed_wraps_around():
    first = 2**32 - 2 - crc32c(struct.pack("<q", 7))
    data = seal([b"a", b"b", b"c", b"d"], first=first)
    seeds = [2**32 - 2, 2**32 - 1, 0, 1]
    header = verify_batch(data)
    for i, (payload, seed) in enumerate(zip((b"a", b"b", b"c", b"d"), seeds, strict=True)):
        piece = cut_entry(data, header, first + i)
        assert piece.payload_crc == crc32c(payload, seed)
        assert piece.verify().payload == payload


# --- refusals when sealing ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "changes",
    [
        {"payloads": []},
        {"payloads": [b""] * (limits.MAX_BATCH_ENTRIES + 1)},
        {"ledger_id": -1},
        {"ledger_id": MAX_ID + 1},
        {"first": -1, "lac": -1},
        {"first": MAX_ID, "payloads": [b"a", b"b"]},
        {"lac": -2},
        {"lac": 3},
        {"ledger_length": 9},
        {"ledger_length": MAX_ID + 1},
        {"written_at_us": MAX_ID + 1},
        {"written_at_us": -MAX_ID - 1},
        {"payloads": [memoryview(b"abcd").cast("I")]},
        {"payloads": [bytes(600_000), bytes(600_000)]},
    ],
)
def test_what_could_not_be_decoded_is_not_encoded_either(changes):
    with pytest.raises(InvalidArgument):
        seal(**changes)


def test_the_largest_entry_fits_with_either_digest_and_one_byte_more_does_not():
    largest = bytes(limits.MAX_ENTRY_BYTES)
    assert len(seal([largest], digest_key=KEY)) == limits.MAX_BATCH_BYTES
    verify_batch(seal([largest]))
    with pytest.raises(EntryTooLarge):
        seal([largest + b"x"])


def test_the_most_entries_and_the_highest_id_fit():
    data = seal([b""] * limits.MAX_BATCH_ENTRIES)
    assert len(entries(data, verify_batch(data))) == limits.MAX_BATCH_ENTRIES
    assert verify_batch(seal([b"a", b"b"], first=MAX_ID - 1)).last_entry_id == MAX_ID


# --- refusals when decoding -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("offset", "replacement"),
    [
        (0, b"TBAU"),
        (4, b"\x00"),
        (5, b"\x02"),
        (6, b"\x01"),
        (8, struct.pack("<I", 0)),
        (8, struct.pack("<I", 4)),
        (8, struct.pack("<I", 2**32 - 1)),
        (12, struct.pack("<I", 11)),
        (12, struct.pack("<I", 2**32 - 1)),
        (16, struct.pack("<q", -1)),
        (24, struct.pack("<q", -1)),
        (24, struct.pack("<q", MAX_ID - 1)),
        (32, struct.pack("<q", 3)),
        (32, struct.pack("<q", -2)),
        (40, struct.pack("<q", 9)),
        (40, struct.pack("<q", -1)),
        (56, b"\x01"),
    ],
)
def test_a_header_field_outside_its_domain_is_refused_even_under_a_fitting_checksum(offset, replacement):
    with pytest.raises(InvalidBatch):
        verify_batch(patched(seal(), offset, replacement, mend=True))


def test_a_count_that_would_fill_memory_is_refused_from_the_header_alone():
    data = patched(seal(), 8, struct.pack("<I", limits.MAX_BATCH_ENTRIES + 1), mend=True)
    with pytest.raises(InvalidBatch, match="entry count"):
        decode_header(data)


def test_a_batch_above_the_limit_is_refused_although_its_lengths_add_up():
    data = bytearray(seal([b"x"]) + bytes(limits.MAX_BATCH_BYTES))
    data[12:16] = struct.pack("<I", len(data) - 72)
    data[40:48] = struct.pack("<q", len(data))
    with pytest.raises(InvalidBatch, match="lengths do not add up"):
        decode_header(data)


def test_entry_lengths_that_do_not_add_up_are_refused_even_under_a_fitting_checksum():
    data = patched(seal(), 64, struct.pack("<I", 6), mend=True)
    header = decode_header(data)
    for use in (payload_slices, entries, lambda *batch: cut_entry(*batch, 5), lambda *batch: verify_batch(batch[0])):
        with pytest.raises(InvalidBatch, match="do not add up"):
            use(data, header)
    with pytest.raises(InvalidBatch):
        cut_entry(data, header, 3).verify()


@pytest.mark.parametrize("count", [1, 31, 32, 33, 1000])
@pytest.mark.parametrize("sizes", [(5,), (5, 300, 0), (0,)], ids=["equal", "mixed", "none"])
def test_a_length_changed_anywhere_is_refused_even_under_a_fitting_checksum(count, sizes):
    data = seal([bytes(sizes[index % len(sizes)]) for index in range(count)])
    assert verify_batch(data).entry_count == count
    assert verify_batch(memoryview(bytearray(data))).entry_count == count
    for index in {0, count // 2, count - 1}:
        (length,) = struct.unpack_from("<I", data, 64 + 8 * index)
        for other in (length + 1, length ^ 1 << 8, length ^ 1 << 16, length ^ 1 << 31):
            with pytest.raises(InvalidBatch, match="do not add up"):
                verify_batch(patched(data, 64 + 8 * index, struct.pack("<I", other), mend=True))


@pytest.mark.parametrize("lengths", [[2**32 - 1, 11], [6] * 100], ids=["around the end", "all the same"])
def test_lengths_that_only_add_up_modulo_two_to_the_32_are_refused(lengths):
    data = seal([bytes(5)] * len(lengths))
    for index, length in enumerate(lengths):
        data = patched(data, 64 + 8 * index, struct.pack("<I", length), mend=index == len(lengths) - 1)
    with pytest.raises(InvalidBatch, match="do not add up"):
        verify_batch(data)


@pytest.mark.parametrize("entry_id", [-1, 0, 2, 6, MAX_ID])
def test_an_entry_outside_the_batch_cannot_be_cut_out(entry_id):
    data = seal()
    with pytest.raises(InvalidBatch, match="not in the batch"):
        cut_entry(data, decode_header(data), entry_id)


# --- the digest -----------------------------------------------------------------------------------


def test_a_digest_is_verified_only_on_request_and_with_the_key():
    data = seal(digest_key=KEY)
    assert verify_batch(data, KEY) == verify_batch(data)
    with pytest.raises(InvalidBatch, match="digest mismatch"):
        verify_batch(data, bytes(32))


def test_a_batch_without_digest_does_not_pass_where_one_is_demanded():
    with pytest.raises(InvalidBatch, match="has no digest"):
        verify_batch(seal(), KEY)


@given(st.integers(0, 8 * (len(seal()) + 32) - 1))
def test_a_change_that_mends_the_checksum_still_fails_the_digest(bit):
    data = seal(digest_key=KEY)
    flipped = patched(data, bit // 8, bytes([data[bit // 8] ^ 1 << bit % 8]), mend=True)
    if flipped == data:  # The flip was in the checksum, which the mending put right again.
        return
    # A version that is not known cannot be checked, and is not believed either.
    with pytest.raises((InvalidBatch, NewerFormat)):
        verify_batch(flipped, KEY)


def test_big_endian_machines_write_the_same_table(monkeypatch):
    # The table goes through the machine's own array type; what another machine would do is a swap on either side.
    swaps = []

    class Swapping(codec.array):
        def byteswap(self):
            swaps.append(len(self))

    monkeypatch.setattr(codec, "array", Swapping)
    monkeypatch.setattr(codec.sys, "byteorder", "big")
    data = seal()
    assert payload_slices(data, decode_header(data)) == [(88, 93), (93, 93), (93, 98)]
    assert swaps == [6, 6]
