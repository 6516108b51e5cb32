"""Rows of the index as bytes: what was stored comes back, anything else is refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallybook.bookie.storage import index_format as fmt
from tallybook.bookie.storage.location import IndexRow, Location
from tallybook.core.errors import DamagedFile
from tallybook.core.ids import MAX_ID

IDS = st.integers(0, MAX_ID)
UNSIGNED = st.integers(0, 2**32 - 1)
ROWS = st.builds(IndexRow, IDS, IDS, st.builds(Location, IDS, IDS, UNSIGNED, UNSIGNED))


def flips(data: bytes):
    for bit in range(8 * len(data)):
        changed = bytearray(data)
        changed[bit // 8] ^= 1 << bit % 8
        yield bytes(changed)


@given(ROWS)
def test_a_row_comes_back_as_it_was(row):
    key, value = fmt.encode_row(row)
    assert (len(key), len(value)) == (fmt.ROW_KEY_BYTES, fmt.ROW_VALUE_BYTES)
    assert fmt.decode_row(key, value) == row
    assert fmt.split_row_key(key) == (row.ledger_id, row.first_entry_id)


@given(ROWS, ROWS)
def test_keys_sort_as_their_ids_do(one, other):
    ids = [(row.ledger_id, row.first_entry_id) for row in (one, other)]
    keys = [fmt.row_key(*each) for each in ids]
    assert (keys[0] < keys[1]) == (ids[0] < ids[1])
    assert (fmt.state_key(one.ledger_id) < fmt.state_key(other.ledger_id)) == (one.ledger_id < other.ledger_id)


def test_every_flipped_bit_and_every_cut_of_a_row_is_detected():
    key, value = fmt.encode_row(IndexRow(7, 30, Location(5, 4192, 98, 3)))
    for changed in flips(value):
        with pytest.raises(DamagedFile, match="ledger 7 from entry 30"):
            fmt.decode_row(key, changed)
    for changed in flips(key):
        with pytest.raises(DamagedFile):
            fmt.decode_row(changed, value)
    for length in range(len(value)):
        with pytest.raises(DamagedFile):
            fmt.decode_row(key, value[:length])
    with pytest.raises(DamagedFile):
        fmt.decode_row(key, value + b"\0")
    with pytest.raises(DamagedFile):
        fmt.decode_row(key[:-1], value)


@given(IDS, st.binary(max_size=100))
def test_a_state_comes_back_as_it_was(ledger_id, state):
    key, value = fmt.encode_state(ledger_id, state)
    assert fmt.decode_state(key, value) == state
    assert fmt.split_state_key(key) == ledger_id


def test_every_flipped_bit_every_cut_and_another_key_of_a_state_are_detected():
    key, value = fmt.encode_state(7, b"fenced")
    for changed in flips(value):
        with pytest.raises(DamagedFile, match="state of ledger 7"):
            fmt.decode_state(key, changed)
    for changed in flips(key):
        with pytest.raises(DamagedFile):
            fmt.decode_state(changed, value)
    for length in range(len(value)):
        with pytest.raises(DamagedFile):
            fmt.decode_state(key, value[:length])
    with pytest.raises(DamagedFile):
        fmt.decode_state(key + b"x", value)


@given(st.binary(max_size=40), st.binary(max_size=60))
def test_random_bytes_raise_the_declared_error_and_no_other(key, value):
    for decode in (fmt.decode_row, fmt.decode_state):
        with pytest.raises(DamagedFile):
            decode(key, value)


def test_the_documented_examples_are_what_the_code_writes():
    key, value = fmt.encode_row(IndexRow(7, 3, Location(1, 4224, 98, 3)))
    assert key == bytes.fromhex("00 00 00 00 00 00 00 07 00 00 00 00 00 00 00 03")
    assert value[:16] == bytes.fromhex("01 00 00 00 62 00 00 00 01 00 00 00 00 00 00 00")
    assert value[16:] == bytes.fromhex("80 10 00 00 00 00 00 00 03 00 00 00 eb 56 5e 83")
    key, value = fmt.encode_state(7, b"fenced")
    assert key == bytes.fromhex("00 00 00 00 00 00 00 07")
    assert value == bytes.fromhex("01 00 00 00 74 67 53 07 66 65 6e 63 65 64")
