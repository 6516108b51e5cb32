"""The entry log format: records are decoded as encoded; changed or misplaced ones are detected."""

import struct
import uuid

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from tallybook.bookie.storage.entry_log import format as fmt
from tallybook.bookie.storage.entry_log.format import LedgerShare, LogFile, TableRow
from tallybook.bookie.storage.location import Location
from tallybook.core.errors import DamagedFile, InvalidArgument, NewerFormat
from tallybook.core.ids import MAX_ID
from tallybook.core.limits import BLOCK_BYTES, MAX_BATCH_BYTES, MAX_BATCH_ENTRIES, MIB

from ..support.damage import flips

UUID = uuid.UUID("00112233-4455-6677-8899-aabbccddeeff")
LOG = LogFile("/b/entrylog-0000000000000005.log", UUID.bytes, 5)
ROWS = [TableRow(7, 3, 2, 3, 98), TableRow(7, 6, 5, 1, 200), TableRow(9, 0, -1, 16384, 131136)]


def decode_stretch(data: bytes, offset: int = BLOCK_BYTES, log: LogFile = LOG):
    return fmt.decode_table(log, fmt.decode_stretch_header(log, offset, data), data)


@st.composite
def table_rows(draw):
    count = draw(st.integers(1, MAX_BATCH_ENTRIES))
    first = draw(st.integers(0, MAX_ID - count + 1))
    lac, size = draw(st.integers(-1, first - 1)), draw(st.integers(65, 4000))
    return TableRow(draw(st.integers(0, MAX_ID)), first, lac, count, size)


# -- names and headers ----------------------------------------------------------------------


@given(st.integers(0, MAX_ID))
def test_a_file_name_gives_back_its_log_id_and_sorts_by_it(log_id):
    assert fmt.parse_log_name(fmt.log_name(log_id)) == log_id
    assert log_id == 0 or fmt.log_name(log_id - 1) < fmt.log_name(log_id)


def test_other_names_are_not_taken_for_entry_logs():
    numbers = ("", "5", "000000000000000A", "-000000000000005", "+000000000000005", "0000_00000000005",
               "8000000000000000", "00000000000000005")  # fmt: skip
    good = fmt.log_name(5)
    for name in ("cookie", "", f"{good}.tmp", f"x{good}", *(f"entrylog-{number}.log" for number in numbers)):
        assert fmt.parse_log_name(name) is None, name


def test_a_directory_uuid_must_be_one():
    assert fmt.uuid_bytes(str(UUID)) == UUID.bytes
    with pytest.raises(InvalidArgument, match="uuid"):
        fmt.uuid_bytes("bookie-1")


def test_a_log_header_is_one_block_and_says_which_log_it_begins():
    block = fmt.encode_log_header(LOG)
    assert len(block) == BLOCK_BYTES
    assert fmt.decode_log_header(LOG.path, block) == LOG


def test_no_damage_to_a_log_header_goes_unnoticed():
    block = fmt.encode_log_header(LOG)
    interesting = [*range(40), 100, 2000, *range(4088, 4096)]
    for byte in interesting:
        for bit in range(8):
            changed = bytearray(block)
            changed[byte] ^= 1 << bit
            with pytest.raises(DamagedFile, match=LOG.path):
                fmt.decode_log_header(LOG.path, changed)
    for cut in (b"", block[:1], block[:32], block[:-1], bytes(BLOCK_BYTES)):
        with pytest.raises(DamagedFile):
            fmt.decode_log_header(LOG.path, cut)


@pytest.mark.parametrize(("version", "error"), [(0, DamagedFile), (2, NewerFormat)])
def test_a_header_of_another_version_is_refused_under_a_fitting_checksum(version, error):
    block = bytearray(fmt.encode_log_header(LOG))
    block[4] = version
    block[-4:] = struct.pack("<I", crc32c(bytes(block[:-4])))
    with pytest.raises(error, match=f"(version|format) {version}"):
        fmt.decode_log_header(LOG.path, block)


# -- ranges ---------------------------------------------------------------------------------


@given(st.lists(table_rows(), min_size=1, max_size=20), st.integers(1, 10**6), st.data())
def test_the_table_of_a_stretch_gives_every_batch_and_its_place(rows, block, data):
    offset = block * BLOCK_BYTES
    vouched = data.draw(st.integers(0, offset))
    encoded = fmt.encode_stretch(LOG, offset, rows, vouched)
    header = fmt.decode_stretch_header(LOG, offset, encoded)
    assert (header.offset, header.batch_count, header.vouched) == (offset, len(rows), vouched)
    assert header.batches_offset == offset + len(encoded)
    assert header.end % BLOCK_BYTES == 0
    assert 0 <= header.end - (header.batches_offset + sum(row.size for row in rows)) < BLOCK_BYTES
    found = fmt.decode_table(LOG, header, encoded + b"batches follow")
    assert [row for row, _ in found] == rows
    expected = header.batches_offset
    for row, location in found:
        assert location == Location(5, expected, row.size, row.entry_count)
        expected += row.size


def test_every_flipped_bit_and_every_cut_of_a_stretch_head_is_detected():
    encoded = fmt.encode_stretch(LOG, BLOCK_BYTES, ROWS, 64)
    for changed in flips(encoded):
        with pytest.raises(DamagedFile, match=r"offset 4096"):
            decode_stretch(changed)
    for length in range(len(encoded)):
        with pytest.raises(DamagedFile):
            decode_stretch(encoded[:length])


@pytest.mark.parametrize(
    ("log", "offset"),
    [
        (LOG, 2 * BLOCK_BYTES),
        (LOG._replace(log_id=6), BLOCK_BYTES),
        (LOG._replace(directory_uuid=bytes(16)), BLOCK_BYTES),
    ],
)
def test_an_intact_stretch_is_refused_at_another_offset_in_another_log_and_in_another_bookie(log, offset):
    with pytest.raises(DamagedFile, match="belongs to"):
        decode_stretch(fmt.encode_stretch(LOG, BLOCK_BYTES, ROWS, 0), offset, log)


@pytest.mark.parametrize(
    "row",
    [
        TableRow(-1, 0, -1, 1, 100),
        TableRow(1, -1, -1, 1, 100),
        TableRow(1, MAX_ID, 0, 2, 100),
        TableRow(1, 5, 5, 1, 100),
        TableRow(1, 5, -2, 1, 100),
        TableRow(1, 5, 4, 0, 100),
        TableRow(1, 5, 4, MAX_BATCH_ENTRIES + 1, 100),
        TableRow(1, 5, 4, 1, 64),
        TableRow(1, 5, 4, 1, MAX_BATCH_BYTES + 1),
    ],
)
def test_a_row_that_cannot_be_is_refused_under_a_fitting_checksum(row):
    with pytest.raises(DamagedFile, match="impossible"):
        decode_stretch(fmt.encode_stretch(LOG, BLOCK_BYTES, [row], 0))


def test_counts_that_would_fill_memory_are_refused_before_the_table_is_read():
    for count, size in ((0, 100), (1001, 100), (2**32 - 1, 100), (1, 0), (1, MIB + 1), (1, 2**32 - 1)):
        encoded = bytearray(fmt.encode_stretch(LOG, BLOCK_BYTES, ROWS[:1], 0))
        encoded[40:48] = struct.pack("<II", count, size)
        with pytest.raises(DamagedFile, match="impossible"):
            fmt.decode_stretch_header(LOG, BLOCK_BYTES, encoded[:64])


def test_a_range_cannot_confirm_what_follows_it():
    with pytest.raises(DamagedFile, match="vouches"):
        decode_stretch(fmt.encode_stretch(LOG, BLOCK_BYTES, ROWS, BLOCK_BYTES + 1))


def test_sizes_that_do_not_add_up_are_refused_under_a_fitting_checksum():
    encoded = bytearray(fmt.encode_stretch(LOG, BLOCK_BYTES, ROWS, 0))
    encoded[44:48] = struct.pack("<I", 98)
    encoded[60:64] = struct.pack("<I", crc32c(bytes(encoded[64:]), crc32c(bytes(encoded[:60]))))
    with pytest.raises(DamagedFile, match="add up"):
        decode_stretch(bytes(encoded))


# -- the footer -----------------------------------------------------------------------------


@given(
    st.dictionaries(
        st.integers(0, MAX_ID), st.builds(LedgerShare, st.integers(1, 10**9), st.integers(1, 10**6)), max_size=300
    ),
    st.integers(1, 10**6),
)
def test_a_footer_gives_back_its_map_and_is_found_from_the_end(ledgers, block):
    offset = block * BLOCK_BYTES
    encoded = fmt.encode_footer(LOG, offset, ledgers)
    assert len(encoded) == fmt.footer_bytes(len(ledgers))
    assert len(encoded) % BLOCK_BYTES == 0
    assert fmt.decode_end_mark(encoded[-16:]) == offset
    footer = fmt.decode_footer(LOG, offset, encoded)
    assert footer == fmt.Footer(offset, ledgers)
    assert list(footer.ledgers) == sorted(ledgers)


def test_every_flipped_bit_of_a_footer_is_detected_or_lies_in_its_padding():
    ledgers = {7: LedgerShare(298, 2), 9: LedgerShare(131136, 1)}
    encoded = fmt.encode_footer(LOG, BLOCK_BYTES, ledgers)
    used = 64 + 2 * 24
    for at, changed in enumerate(flips(encoded)):
        if used <= at // 8 < len(encoded) - 16:
            assert fmt.decode_footer(LOG, BLOCK_BYTES, changed).ledgers == ledgers
            continue
        with pytest.raises(DamagedFile, match=r"offset 4096"):
            fmt.decode_footer(LOG, BLOCK_BYTES, changed)
    cuts = [encoded[:length] for length in (*range(130), len(encoded) - 512, len(encoded) - 1)]
    for changed in (*cuts, encoded + bytes(BLOCK_BYTES)):
        with pytest.raises(DamagedFile):
            fmt.decode_footer(LOG, BLOCK_BYTES, changed)


def test_an_end_mark_of_another_kind_or_with_a_negative_offset_is_refused():
    for data in (b"", bytes(16), b"x" * 16, bytes(15)):
        assert fmt.decode_end_mark(data) is None
    for body in (struct.pack("<q4s", 4096, b"TENX"), struct.pack("<q4s", -1, b"TEND")):
        assert fmt.decode_end_mark(body + struct.pack("<I", crc32c(body))) is None


def test_a_ledger_map_that_does_not_add_up_is_refused_under_a_fitting_checksum():
    encoded = bytearray(fmt.encode_footer(LOG, BLOCK_BYTES, {7: LedgerShare(298, 2)}))
    encoded[48:56] = struct.pack("<q", 299)
    encoded[60:64] = struct.pack("<I", crc32c(bytes(encoded[64:88]), crc32c(bytes(encoded[:60]))))
    with pytest.raises(DamagedFile, match="add up"):
        fmt.decode_footer(LOG, BLOCK_BYTES, bytes(encoded))


def test_the_documented_example_is_what_the_code_writes():
    log = LOG._replace(log_id=1)
    uuid_and_id = "00 11 22 33 44 55 66 77 88 99 aa bb cc dd ee ff 01 00 00 00 00 00 00 00"
    header = fmt.encode_log_header(log)
    assert header[:32] == bytes.fromhex(f"54 4c 4f 47 01 00 00 00 {uuid_and_id}")
    assert header[-4:] == bytes.fromhex("13 57 f6 2f")
    stretch = fmt.encode_stretch(log, 4096, [TableRow(7, 3, 2, 3, 98), TableRow(9, 0, -1, 1, 77)], 4096)
    assert stretch == bytes.fromhex(
        f"54 53 54 52 01 00 00 00 {uuid_and_id}"
        "00 10 00 00 00 00 00 00 02 00 00 00 af 00 00 00 00 10 00 00 00 00 00 00 00 00 00 00 bc e1 ef eb"
        "07 00 00 00 00 00 00 00 03 00 00 00 00 00 00 00 02 00 00 00 00 00 00 00 03 00 00 00 62 00 00 00"
        "09 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 ff ff ff ff ff ff ff ff 01 00 00 00 4d 00 00 00"
    )
    footer = fmt.encode_footer(log, 8192, {7: LedgerShare(98, 1), 9: LedgerShare(77, 1)})
    assert footer[:112] == bytes.fromhex(
        f"54 46 54 52 01 00 00 00 {uuid_and_id}"
        "00 20 00 00 00 00 00 00 02 00 00 00 00 00 00 00 af 00 00 00 00 00 00 00 00 00 00 00 a4 01 43 e3"
        "07 00 00 00 00 00 00 00 62 00 00 00 00 00 00 00 01 00 00 00 00 00 00 00"
        "09 00 00 00 00 00 00 00 4d 00 00 00 00 00 00 00 01 00 00 00 00 00 00 00"
    )
    assert footer[-16:] == bytes.fromhex("00 20 00 00 00 00 00 00 54 45 4e 44 36 78 76 d8")
