"""Damage to a batch, exhaustively: every bit, every length, every swap of ids."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallybook.core.batch import EntrySlice, cut_entry, decode_header, encode_batch, entry_crc, verify_batch
from tallybook.core.errors import InvalidBatch
from tallybook.core.ids import MAX_ID

from ..support.damage import flips

KEY = bytes(range(32))
PLAIN = encode_batch(7, 3, [b"hello", b"", b"tally"], lac=2, ledger_length=99, written_at_us=1)
SIGNED = encode_batch(7, 3, [b"hello", b"", b"tally"], lac=2, ledger_length=99, written_at_us=1, digest_key=KEY)


@pytest.mark.parametrize("data", [PLAIN, SIGNED], ids=["plain", "signed"])
def test_every_flipped_bit_is_detected(data):
    for damaged in flips(data):
        with pytest.raises(InvalidBatch):
            verify_batch(damaged)


@pytest.mark.parametrize("data", [PLAIN, SIGNED], ids=["plain", "signed"])
def test_every_truncation_and_every_extension_is_detected(data):
    for length in range(len(data)):
        with pytest.raises(InvalidBatch):
            verify_batch(data[:length])
    for extra in (b"\0", b"\0" * 8, data):
        with pytest.raises(InvalidBatch):
            verify_batch(data + extra)


@pytest.mark.parametrize("filler", [b"\x00", b"\xff"])
def test_zeros_or_ones_in_place_of_any_part_are_detected(filler):
    for start in range(len(PLAIN)):
        for end in range(start + 1, len(PLAIN) + 1):
            damaged = PLAIN[:start] + filler * (end - start) + PLAIN[end:]
            if damaged != PLAIN:
                with pytest.raises(InvalidBatch):
                    verify_batch(damaged)


def test_nothing_but_zeros_is_not_a_batch():
    for length in (0, 1, 63, 64, 72, 4096):
        with pytest.raises(InvalidBatch):
            verify_batch(bytes(length))


def test_every_flipped_bit_of_an_entry_cut_out_alone_is_detected():
    piece = cut_entry(PLAIN, decode_header(PLAIN), 3)
    for damaged in flips(piece.payload):
        with pytest.raises(InvalidBatch):
            EntrySlice(7, 3, damaged, piece.payload_crc, 1, 2).verify()
    for bit in range(32):
        with pytest.raises(InvalidBatch):
            EntrySlice(7, 3, piece.payload, piece.payload_crc ^ 1 << bit, 1, 2).verify()


@given(st.binary(max_size=50), st.integers(0, MAX_ID), st.integers(0, MAX_ID), st.integers(0, MAX_ID))
def test_an_entry_never_passes_under_another_id_of_its_ledger(payload, ledger_id, entry_id, other_id):
    piece = EntrySlice(ledger_id, other_id, payload, entry_crc(ledger_id, entry_id, payload), 0, -1)
    if (entry_id - other_id) % 2**32 == 0:
        piece.verify()
    else:
        with pytest.raises(InvalidBatch):
            piece.verify()


@given(st.binary(max_size=50), st.integers(0, MAX_ID - 4096), st.integers(0, MAX_ID))
def test_an_entry_does_not_pass_under_a_neighbouring_ledger(payload, ledger_id, entry_id):
    crc = entry_crc(ledger_id, entry_id, payload)
    for other in (ledger_id + 1, ledger_id + 2, ledger_id + 64, ledger_id + 4096):
        with pytest.raises(InvalidBatch):
            EntrySlice(other, entry_id, payload, crc, 0, -1).verify()
