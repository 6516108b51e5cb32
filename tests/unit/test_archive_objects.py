"""Archive objects: ledgers are encoded as plain Parquet and decoded to the same batches; damage is detected."""

import contextlib
import io
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallybook.archive import verifier as object_check
from tallybook.archive.encoder import EncodedObject, EncoderOptions, ObjectEncoder
from tallybook.archive.format.batch_rows import attributes_of, rebuild_batch
from tallybook.archive.format.index_codec import (
    IndexRoot,
    directory_message,
    encode_part,
    read_batches,
    read_directory,
    read_pages,
)
from tallybook.archive.format.row_groups import check_footer_keys, decode_row_group, read_footer
from tallybook.archive.format.schema import SCHEMA, object_key
from tallybook.archive.verifier import ObjectVerifier, VerifiedLedger
from tallybook.core.batch import BatchHeader, encode_batch, entries, verify_batch
from tallybook.core.errors import DamagedFile, InvalidArgument, InvalidBatch, TallybookError
from tallybook.core.ids import MAX_ID
from tallybook.core.limits import MAX_ENTRY_BYTES
from tallybook.metadata.ledger.archived import IndexPart
from tallybook.proto import archive_pb2 as pb

Batches = list[tuple[BatchHeader, bytes]]
Ledgers = dict[int, Batches]

TINY = EncoderOptions(row_group_bytes=2_000, page_bytes=300)


def batches_of(ledger_id: int, sizes: list[list[int]], *, digest_key: bytes | None = None, step_us: int = 7) -> Batches:
    """Batches whose entries have these sizes, with bytes that follow from their ids."""
    found: Batches = []
    first = length = 0
    for batch in sizes:
        payloads = [(b"%d/%d " % (ledger_id, first + at) * (size // 4 + 1))[:size] for at, size in enumerate(batch)]
        length += sum(batch)
        sealed = encode_batch(
            ledger_id,
            first,
            payloads,
            lac=max(-1, first - 3),
            ledger_length=length,
            written_at_us=1_700_000_000_000_000 + first * step_us,
            digest_key=digest_key,
        )
        found.append((verify_batch(sealed), sealed))
        first += len(batch)
    return found


def encode(ledgers: Ledgers, options: EncoderOptions = TINY) -> tuple[bytes, EncodedObject]:
    encoder = ObjectEncoder("an-object", 17, options)
    out: list[bytes] = []
    for ledger_id, batches in ledgers.items():
        encoder.begin(ledger_id, b"metadata of %d" % ledger_id)
        for header, batch in batches:
            encoder.add(batch, header)
            out += encoder.take()
        encoder.end()
    encoded = encoder.finish()
    return b"".join(out + encoder.take()), encoded


def cut(blob: bytes, part: IndexPart) -> bytes:
    return blob[part.offset : part.end]


def check_of(blob: bytes, part: IndexPart) -> ObjectVerifier:
    """The check of an object, from its bytes alone."""
    size = len(blob)
    directory = read_directory(cut(blob, part), part, "blob", size)
    return ObjectVerifier(
        directory,
        part,
        read_footer(blob[part.end :], len(directory.row_groups), "blob"),
        [read_pages(cut(blob, group.pages), group, "blob", size) for group in directory.row_groups],
        [[read_batches(cut(blob, run.batches), run, "blob") for run in one.runs] for one in directory.ledgers],
        size,
        "blob",
    )


def test_an_object_under_another_ones_name_does_not_pass() -> None:
    blob, encoded = encode({1: batches_of(1, [[30] * 5])})
    footer = read_footer(blob[encoded.directory_part.end :], 1, "blob")
    other = replace(encoded.directory, object_id="another")
    with pytest.raises(DamagedFile, match="name object another"):
        ObjectVerifier(other, encoded.directory_part, footer, [], [[]], len(blob), "blob")


def checked(blob: bytes, part: IndexPart) -> tuple[bytes, dict[int, VerifiedLedger]]:
    """Read everything back."""
    check = check_of(blob, part)
    for segment in check.segments():
        data = blob[segment.begin : segment.end]
        check.hash(data)
        if segment.row_group is not None:
            check.row_group(segment.row_group, segment.begin, data)
    return check.end()


sizes = st.lists(st.lists(st.integers(0, 900), min_size=1, max_size=12), max_size=8)
"""A ledger over several row groups, whose pages have one entry or a few."""


@given(st.dictionaries(st.integers(0, MAX_ID), sizes, min_size=1, max_size=4), st.booleans())
def test_archived_ledgers_are_read_back_bit_by_bit(ledgers: dict[int, list[list[int]]], signed: bool) -> None:
    key = b"k" * 32 if signed else None
    written = {ledger_id: batches_of(ledger_id, ledgers[ledger_id], digest_key=key) for ledger_id in sorted(ledgers)}
    blob, encoded = encode(written)
    sha256, found = checked(blob, encoded.directory_part)
    assert sha256 == encoded.sha256
    assert len(blob) == encoded.object_bytes
    for ledger_id, batches in written.items():
        assert found[ledger_id].entries == sum(header.entry_count for header, _ in batches)
        assert found[ledger_id].payload_bytes == sum(header.payload_bytes for header, _ in batches)


def test_an_object_is_plain_parquet_with_one_row_for_each_entry() -> None:
    written = {3: batches_of(3, [[10, 0, 500], [7]]), 9: batches_of(9, [[40] * 100])}
    blob, _ = encode(written)
    table = pq.read_table(io.BytesIO(blob))
    assert table.schema.equals(SCHEMA)
    expected = [entry for batches in written.values() for header, batch in batches for entry in entries(batch, header)]
    assert table["ledger_id"].to_pylist() == [entry.ledger_id for entry in expected]
    assert table["entry_id"].to_pylist() == [entry.entry_id for entry in expected]
    assert table["payload"].to_pylist() == [entry.payload for entry in expected]
    assert table["written_at"].cast("int64").to_pylist() == [entry.written_at_us for entry in expected]


def test_no_payload_is_in_the_footer() -> None:
    """The largest and the smallest payload would be in the statistics of the column."""
    blob, _ = encode({3: batches_of(3, [[200] * 5])})
    assert blob.count(b"3/4 3/4 3/4") <= 1
    assert pq.read_metadata(io.BytesIO(blob)).row_group(0).column(4).statistics is None


def test_a_row_group_ends_between_two_batches_declares_its_order_and_is_shared_by_ledgers() -> None:
    written = {1: batches_of(1, [[900], [900]]), 2: batches_of(2, [[900] * 3]), 3: batches_of(3, [[5]])}
    blob, encoded = encode(written)
    assert [group.rows for group in encoded.directory.row_groups] == [5, 1]
    runs = [(run.row_group, run.first_row, run.rows) for one in encoded.directory.ledgers for run in one.runs]
    assert runs == [(0, 0, 2), (0, 2, 3), (1, 0, 1)]
    metadata = pq.read_metadata(io.BytesIO(blob))
    ascending = ((("ledger_id", "ascending"), ("entry_id", "ascending")), "at_end")
    declared = [metadata.row_group(number).sorting_columns for number in range(metadata.num_row_groups)]
    assert [pq.SortingColumn.to_ordering(SCHEMA, columns) for columns in declared] == [ascending, ascending]
    checked(blob, encoded.directory_part)


def test_pages_stay_near_their_size_for_any_size_of_entries() -> None:
    for size, most in [(100, 2_000), (4_096, 30_000), (20_000, 85_000)]:
        blob, encoded = encode({1: batches_of(1, [[size] * 8] * 20)}, EncoderOptions(page_bytes=64 * 1024))
        group = encoded.directory.row_groups[0]
        table = read_pages(cut(blob, group.pages), group, "blob", len(blob))
        raw = [table.page(number).raw_bytes for number in range(len(table))]
        assert max(raw) <= 64 * 1024 + most, size


def test_ledgers_without_entries_and_entries_of_all_sizes_are_archived() -> None:
    written = {
        4: [],
        5: batches_of(5, [[MAX_ENTRY_BYTES], [0], [0, 0, 0], [1]], digest_key=b"k" * 32),
        6: [],
    }
    blob, encoded = encode(written)
    _, found = checked(blob, encoded.directory_part)
    assert found[4] == found[6] == VerifiedLedger(0, 0, 0)
    assert found[5].entries == 6
    nothing, empty = encode({7: []})
    assert checked(nothing, empty.directory_part)[1] == {7: VerifiedLedger(0, 0, 0)}
    assert pq.read_table(io.BytesIO(nothing)).num_rows == 0


@pytest.mark.parametrize("step_us", [MAX_ID // 3, -(MAX_ID // 3)])
def test_times_at_the_ends_of_their_range_come_back(step_us: int) -> None:
    """Writers choose them; their differences need more than 64 bits."""
    found: Batches = []
    for first, written_at_us in enumerate([0, MAX_ID, -MAX_ID, step_us, MAX_ID]):
        batch = encode_batch(1, first, [b"x"], lac=-1, ledger_length=MAX_ID - first, written_at_us=written_at_us)
        found.append((verify_batch(batch), batch))
    blob, encoded = encode({1: found})
    run = encoded.directory.ledgers[0].runs[0]
    table = read_batches(cut(blob, run.batches), run, "blob")
    assert [table.facts(number) for number in range(5)] == [attributes_of(batch, header) for header, batch in found]


def test_the_encoder_refuses_what_does_not_follow() -> None:
    encoder = ObjectEncoder("an-object", 17)
    (first, one), (second, two), *_ = batches_of(3, [[1], [2], [3]])
    encoder.begin(3, b"")
    with pytest.raises(InvalidArgument, match="must continue with entry 0"):
        encoder.add(two, second)
    encoder.add(one, first)
    other, bytes_of_other = batches_of(4, [[1], [1]])[1]
    with pytest.raises(InvalidArgument, match="of ledger 4"):
        encoder.add(bytes_of_other, other)
    encoder.end()
    with pytest.raises(InvalidArgument, match="cannot follow"):
        encoder.begin(3, b"")


def damaged(blob: bytes, at: int) -> bytes:
    return blob[:at] + bytes([blob[at] ^ 0x41]) + blob[at + 1 :]


def test_no_damaged_byte_of_a_page_or_of_the_index_passes() -> None:
    blob, encoded = encode({1: batches_of(1, [[30] * 20, [50]]), 2: batches_of(2, [[9]])})
    part = encoded.directory_part
    groups = [
        (group, read_pages(cut(blob, group.pages), group, "blob", len(blob))) for group in encoded.directory.row_groups
    ]
    places = [at for _, table in groups for at in range(int(table.offsets[0]), int(table.offsets[-1]))]
    places += range(groups[0][0].pages.offset, part.end)
    assert len(places) > 300
    for at in places:
        with pytest.raises((DamagedFile, InvalidBatch)):
            checked(damaged(blob, at), part)


COLUMNS = ["ledger_id", "entry_id", "written_at", "crc32c", "payload"]


@pytest.mark.parametrize("column", COLUMNS)
def test_rows_that_are_not_those_of_their_batches_do_not_pass_although_every_checksum_fits(
    column: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if the writer of the object had mixed up a column: pages, tables and the hash are valid."""
    blob, encoded = encode({1: batches_of(1, [[30] * 5, [50]]), 2: batches_of(2, [[9]])})
    checked(blob, encoded.directory_part)

    def mixed_up(*arguments: Any) -> pa.Table:
        table = decode_row_group(*arguments)
        values = table[column].to_pylist()
        values[2] = next(value for value in values if value != values[2])
        at = table.column_names.index(column)
        return table.set_column(at, table.schema.field(at), pa.array(values, table.schema.field(at).type))

    monkeypatch.setattr(object_check, "decode_row_group", mixed_up)
    with pytest.raises(DamagedFile, match=r"rows do not match|differs from what was archived"):
        checked(blob, encoded.directory_part)


def test_a_page_table_that_counts_other_rows_than_its_pages_have_does_not_pass() -> None:
    """A reader would find another entry on the page: the checksum covers the page, not the ids of its entries."""
    blob, encoded = encode({1: batches_of(1, [[100] * 9])})
    check = check_of(blob, encoded.directory_part)
    [table] = check._page_tables
    moved = table.first_rows.copy()
    moved[1] += 1
    check._page_tables = [replace(table, first_rows=moved)]
    [segment] = [segment for segment in check.segments() if segment.row_group is not None]
    with pytest.raises(DamagedFile, match="does not match its table"):
        check.row_group(0, segment.begin, blob[segment.begin : segment.end])


class Lying:
    """The Parquet metadata of a file, with one changed value."""

    def __init__(self, real: Any, **answers: Any) -> None:
        self._real = real
        self._answers = answers

    def __getattr__(self, name: str) -> Any:
        return self._answers[name] if name in self._answers else getattr(self._real, name)


@pytest.mark.parametrize("column", [0, 1, 2])
def test_a_footer_by_which_a_reader_would_pass_over_rows_does_not_pass(
    column: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    blob, encoded = encode({1: batches_of(1, [[30] * 5]), 2: batches_of(2, [[9]])})
    check = check_of(blob, encoded.directory_part)
    real = check._footer

    def lying(number: int) -> Lying:
        group = real.row_group(number)
        lie = Lying(group.column(column), statistics=Lying(group.column(column).statistics, max_raw=-1))
        return Lying(group, column=lambda at: lie if at == column else group.column(at))

    check._footer = Lying(real, row_group=lying)
    monkeypatch.setattr(object_check, "decode_row_group", lambda parts, _, *rest: decode_row_group(parts, real, *rest))
    [segment] = [segment for segment in check.segments() if segment.row_group is not None]
    with pytest.raises(DamagedFile, match=f"of column {column}"):
        check.row_group(0, segment.begin, blob[segment.begin : segment.end])


@pytest.mark.parametrize(
    ("declared", "passes"),
    [((), True), (pq.SortingColumn.from_ordering(SCHEMA, [("entry_id", "ascending")]), False)],
    ids=["none", "another"],
)
def test_a_sort_order_in_the_footer_is_the_one_of_the_rows_or_none(declared: Any, passes: bool) -> None:
    blob, encoded = encode({1: batches_of(1, [[30] * 5]), 2: batches_of(2, [[9]])})
    check = check_of(blob, encoded.directory_part)
    rows = object_check._Rows(decode_row_group([(0, blob)], check._footer, 0, 6, len(blob), "object"), 0, "object")
    expected = contextlib.nullcontext() if passes else pytest.raises(DamagedFile, match="declares a sort order")
    with expected:
        rows.check_footer(Lying(check._footer.row_group(0), sorting_columns=declared))


@pytest.mark.parametrize("key", [b"tallybook.format", b"tallybook.object", b"tallybook.directory"])
def test_a_footer_that_points_elsewhere_does_not_pass(key: bytes) -> None:
    blob, encoded = encode({1: batches_of(1, [[30] * 5])})
    footer = read_footer(blob[encoded.directory_part.end :], 1, "blob")
    check_footer_keys(footer, "an-object", encoded.directory_part, "blob")
    other = Lying(footer, metadata={**footer.metadata, key: b"{}"})
    with pytest.raises(DamagedFile, match="footer does not name"):
        check_footer_keys(other, "an-object", encoded.directory_part, "blob")


def test_an_object_that_ends_early_does_not_pass() -> None:
    blob, encoded = encode({1: batches_of(1, [[30] * 20])})
    check = check_of(blob, encoded.directory_part)
    for segment in check.segments():
        with pytest.raises(DamagedFile, match="before its last entry"):
            check.end()
        check.hash(blob[segment.begin : segment.end])
    with pytest.raises(DamagedFile, match="before its last entry"):
        check.end()


def sealed(directory: IndexRoot) -> tuple[bytes, IndexPart]:
    part = encode_part(directory_message(directory))
    return part.stored, part.at(1_000)


def regrouped(directory: IndexRoot, **of_group: object) -> IndexRoot:
    return replace(directory, row_groups=(replace(directory.row_groups[0], **of_group), *directory.row_groups[1:]))


def changed(directory: IndexRoot, **of_ledger: object) -> IndexRoot:
    return replace(directory, ledgers=(replace(directory.ledgers[0], **of_ledger), *directory.ledgers[1:]))


FORGERIES: dict[str, Callable[[IndexRoot], IndexRoot]] = {
    "one entry too many": lambda found: changed(found, entries=22),
    "a run is missing": lambda found: changed(found, runs=found.ledgers[0].runs[1:]),
    "a run twice": lambda found: changed(found, runs=(*found.ledgers[0].runs, found.ledgers[0].runs[-1])),
    "ledgers in another order": lambda found: replace(found, ledgers=found.ledgers[::-1]),
    "a ledger is missing": lambda found: replace(found, ledgers=found.ledgers[:1]),
    "a row group of other size": lambda found: regrouped(found, rows=5),
    "an index beyond the end": lambda found: regrouped(found, pages=IndexPart(10**9, 5, 5, 0)),
    "an index of no bytes": lambda found: regrouped(found, pages=replace(found.row_groups[0].pages, stored_bytes=0)),
    "an index of two gigabytes": lambda found: regrouped(found, pages=IndexPart(4, 5, 2**31, 0)),
}


@pytest.mark.parametrize("forgery", FORGERIES)
def test_a_directory_that_contradicts_itself_is_refused_although_its_checksum_fits(
    forgery: str,
) -> None:
    _, encoded = encode({1: batches_of(1, [[30] * 20, [50]]), 2: batches_of(2, [[9]])})
    stored, part = sealed(encoded.directory)
    assert read_directory(stored, part, "blob", encoded.object_bytes) == encoded.directory
    stored, part = sealed(FORGERIES[forgery](encoded.directory))
    with pytest.raises(DamagedFile):
        read_directory(stored, part, "blob", encoded.object_bytes)


PAGES: dict[str, dict[str, object]] = {
    "a page beyond the end": {"offset": 10**9},
    "a page beyond every end": {"offset": 2**64 - 1},
    "pages that reach beyond the end": {"body_bytes": [2**32 - 1]},
    "a page of no bytes": {"header_bytes": [0], "body_bytes": [0]},
    "a page that unpacks to four gigabytes": {"raw_bytes": [2**32 - 1]},
    "a page too many": {"crc32c": [1, 2]},
    "other rows than its row group": {"rows": [7]},
}


@pytest.mark.parametrize("forgery", PAGES)
def test_a_page_table_that_points_elsewhere_is_refused_although_its_checksum_fits(forgery: str) -> None:
    blob, encoded = encode({1: batches_of(1, [[3] * 6])})
    group = encoded.directory.row_groups[0]
    message = pb.PageTable()
    message.ParseFromString(pa.Codec("zstd").decompress(cut(blob, group.pages), group.pages.raw_bytes, asbytes=True))
    for name, value in PAGES[forgery].items():
        message.ClearField(name)
        message.MergeFrom(pb.PageTable(**{name: value}))
    forged = encode_part(message)
    with pytest.raises(DamagedFile):
        read_pages(forged.stored, replace(group, pages=forged.at(group.pages.offset)), "blob", len(blob))


def test_a_batch_is_not_put_together_from_other_bytes() -> None:
    header, batch = batches_of(1, [[5, 6]], digest_key=b"k" * 32)[0]
    facts = attributes_of(batch, header)
    payloads = [entry.payload for entry in entries(batch, header)]
    assert rebuild_batch(1, facts, payloads) == batch
    for wrong in (lambda: rebuild_batch(2, facts, payloads), lambda: rebuild_batch(1, facts, [b"12345", b"123456"])):
        with pytest.raises(TallybookError):
            wrong()


def test_the_name_of_an_object_shows_its_ledgers_in_order_and_is_never_used_twice() -> None:
    assert object_key("u1", [7]) == "ledgers/0000000000000000007-u1.parquet"
    assert object_key("u2", [7, 9, 1000]) == "sets/0000000000000000007-0000000000000001000-u2.parquet"
    assert object_key("u1", [7]) != object_key("u2", [7])
    with pytest.raises(InvalidArgument):
        object_key("u1", [])
