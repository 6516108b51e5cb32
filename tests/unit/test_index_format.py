"""The index row format: rows are decoded as encoded; anything else is refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallybook.bookie.storage.entry_log.format import LOG_HEADER_BYTES
from tallybook.bookie.storage.index import format as fmt
from tallybook.bookie.storage.location import NOWHERE_LOG_ID, IndexRow, Location
from tallybook.core.errors import DamagedFile
from tallybook.core.ids import MAX_ID
from tallybook.core.limits import BATCH_HEADER_BYTES, MAX_BATCH_BYTES, MAX_BATCH_ENTRIES

from ..support.damage import flips

IDS = st.integers(0, MAX_ID)
OFFSETS = st.integers(LOG_HEADER_BYTES, MAX_ID - MAX_BATCH_BYTES)
SIZES = st.integers(BATCH_HEADER_BYTES + 1, MAX_BATCH_BYTES)
COUNTS = st.integers(1, MAX_BATCH_ENTRIES)
LOCATIONS = st.one_of(
    st.builds(Location, st.integers(1, MAX_ID), OFFSETS, SIZES, COUNTS),
    st.builds(Location, st.just(NOWHERE_LOG_ID), st.just(0), st.integers(1, MAX_BATCH_BYTES), COUNTS),
)
ROWS = st.builds(IndexRow, IDS, st.integers(0, MAX_ID - MAX_BATCH_ENTRIES + 1), LOCATIONS)


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


WHOLE = IndexRow(7, 30, Location(5, 4192, 98, 3))
HIGHEST = IndexRow(MAX_ID, MAX_ID, Location(MAX_ID, MAX_ID - MAX_BATCH_BYTES, MAX_BATCH_BYTES, 1))
NOWHERE = IndexRow(0, 0, Location(NOWHERE_LOG_ID, 0, 1, MAX_BATCH_ENTRIES))


@pytest.mark.parametrize(
    ("row", "field", "value"),
    [
        (WHOLE, "ledger_id", -1),
        (WHOLE, "first_entry_id", -1),
        (WHOLE, "first_entry_id", MAX_ID - 1),
        (WHOLE, "log_id", -1),
        (WHOLE, "offset", -4096),
        (WHOLE, "offset", 0),
        (WHOLE, "offset", LOG_HEADER_BYTES - 1),
        (WHOLE, "offset", MAX_ID),
        (WHOLE, "offset", MAX_ID - 97),
        (WHOLE, "size", 0),
        (WHOLE, "size", BATCH_HEADER_BYTES),
        (WHOLE, "size", MAX_BATCH_BYTES + 1),
        (WHOLE, "size", 2**32 - 1),
        (WHOLE, "entry_count", 0),
        (WHOLE, "entry_count", MAX_BATCH_ENTRIES + 1),
        (WHOLE, "entry_count", 2**32 - 1),
        (HIGHEST, "entry_count", 2),
        (NOWHERE, "offset", -1),
        (NOWHERE, "size", 0),
        (NOWHERE, "size", MAX_BATCH_BYTES + 1),
        (NOWHERE, "entry_count", 0),
        (NOWHERE, "entry_count", MAX_BATCH_ENTRIES + 1),
    ],
)
def test_a_row_that_cannot_be_is_damage_although_its_checksum_fits(row, field, value):
    for good in (WHOLE, HIGHEST, NOWHERE):
        assert fmt.decode_row(*fmt.encode_row(good)) == good
    if field in IndexRow._fields:
        row = row._replace(**{field: value})
    else:
        row = row._replace(location=row.location._replace(**{field: value}))
    with pytest.raises(DamagedFile, match=f"ledger {row.ledger_id} from entry {row.first_entry_id} on is invalid"):
        fmt.decode_row(*fmt.encode_row(row))


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


def test_the_documented_examples_are_what_the_code_writes():
    key, value = fmt.encode_row(IndexRow(7, 3, Location(1, 4224, 98, 3)))
    assert key == bytes.fromhex("00 00 00 00 00 00 00 07 00 00 00 00 00 00 00 03")
    assert value[:16] == bytes.fromhex("01 00 00 00 62 00 00 00 01 00 00 00 00 00 00 00")
    assert value[16:] == bytes.fromhex("80 10 00 00 00 00 00 00 03 00 00 00 eb 56 5e 83")
    key, value = fmt.encode_state(7, b"fenced")
    assert key == bytes.fromhex("00 00 00 00 00 00 00 07")
    assert value == bytes.fromhex("01 00 00 00 74 67 53 07 66 65 6e 63 65 64")
