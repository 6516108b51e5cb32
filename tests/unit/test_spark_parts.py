"""Pure parts of reads from Spark: sets of ids, snapshots, partitions, stream offsets, columns."""

import itertools
import json
import pickle
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tallybook.core.errors import DataMissing, InvalidArgument, InvalidConfig, NoSuchLedger
from tallybook.core.ids import MAX_ID
from tallybook.core.quorum import Quorum
from tallybook.core.ranges import LedgerEntryRange
from tallybook.metadata.ledger.archived import IndexPart, Receipt
from tallybook.metadata.ledger.model import DigestType, Fragment, LedgerMetadata, LedgerState
from tallybook.spark.columns import columns_of
from tallybook.spark.ledgers.offset import BatchLimit, ClosedLedger, StreamOffset
from tallybook.spark.options import NO_LIMIT, LocationOptions, PayloadOptions, ReadOptions
from tallybook.spark.payloads.avro_types import ddl_of
from tallybook.spark.query.gaps import EntryGap
from tallybook.spark.query.id_ranges import NO_IDS, IdRanges
from tallybook.spark.query.partitions import PlannedRange, partitions_of, planned_range_of
from tallybook.spark.query.snapshot import ALL_TIMES, Snapshot, TimeRange, parse_snapshot

IDS = st.integers(0, MAX_ID)
FEW_IDS = st.integers(0, 40)

# --- sets of ids ------------------------------------------------------------------------------------------------------


@given(st.sets(FEW_IDS), st.sets(FEW_IDS))
def test_sets_of_ids_are_sets(some: set[int], others: set[int]) -> None:
    one, other = IdRanges.of(some), IdRanges.of(others)
    assert list(one) == sorted(some)
    assert one.count == len(some)
    assert set(one | other) == some | others
    assert [each in one for each in range(-1, 42)] == [each in some for each in range(-1, 42)]
    assert "7" not in one
    assert IdRanges.parse(str(one)) == one
    assert all(end + 1 < begin for (_, end), (begin, _) in itertools.pairwise(one.ranges)), "they do not touch"


@given(st.lists(st.tuples(IDS, IDS).map(sorted), max_size=6))
def test_text_of_any_ranges_means_the_same_in_any_order_with_any_spaces(ranges: list[list[int]]) -> None:
    text = " , ".join(f" {first} - {last} " if first < last else f"{first}" for first, last in ranges)
    found = IdRanges.parse(text)
    for first, last in ranges:
        assert first in found
        assert last in found
        assert (first + last) // 2 in found
        assert ((first - 1) in found) is any(low <= first - 1 <= high for low, high in ranges)
        assert ((last + 1) in found) is any(low <= last + 1 <= high for low, high in ranges)
    assert IdRanges.parse(str(found)) == found


@pytest.mark.parametrize(
    "text", ["x", "1-", "-1", "5-4", "1,,2", "1,", ",", "1 2", "1-2-3", "1.0", "+1", "9223372036854775808", "1_0", "٣",
             "99999999999999999999999", "0-9223372036854775808"],
)  # fmt: skip
def test_what_is_no_set_of_ids_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgument, match="id"):
        IdRanges.parse(text)


def test_no_text_is_no_id() -> None:
    assert IdRanges.parse("") == IdRanges.parse("  ") == NO_IDS
    assert str(NO_IDS) == ""


# --- snapshots --------------------------------------------------------------------------------------------------------

TIMES = st.none() | st.integers(-(2**62), 2**62)
RANGE = st.tuples(FEW_IDS, IDS, IDS).map(lambda found: LedgerEntryRange(found[0], *sorted(found[1:])))


@given(st.text(), st.lists(RANGE, unique_by=lambda each: each.ledger_id), TIMES, TIMES)
@settings(max_examples=40)
def test_a_snapshot_survives_its_text(
    cluster: str, ranges: list[LedgerEntryRange], first_us: int | None, end_us: int | None
) -> None:
    snapshot = Snapshot(cluster, tuple(sorted(ranges)), TimeRange(first_us, end_us))
    assert parse_snapshot(str(snapshot)) == snapshot
    shuffled = json.loads(str(snapshot))
    shuffled["ledgers"].reverse()
    assert parse_snapshot(json.dumps(shuffled, indent=2)) == snapshot
    kept = {each.ledger_id for each in ranges if each.ledger_id % 2}
    assert snapshot.only(kept).ranges == tuple(each for each in snapshot.ranges if each.ledger_id % 2)
    assert snapshot.only(kept).written == snapshot.written


GOOD = '{"tallybook_snapshot": 1, "cluster": "c", "ledgers": [{"ledger": 7, "first": 0, "last": 9}]}'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "JSON"), ("{", "JSON"), ("\x00", "JSON"), ("[" * 100_000, "JSON"), ("1" * 5_000, "JSON"),
        ("[]", "format 1"), ("7", "format 1"), ("null", "format 1"), ("{}", "format 1"),
        (GOOD.replace('": 1', '": 0'), "format 1"), (GOOD.replace('": 1', '": "1"'), "format 1"),
        (GOOD.replace('"c"', "5"), "'cluster'"), (GOOD.replace('"c"', "null"), "'cluster'"),
        ('{"tallybook_snapshot": 1}', "'ledgers'"), ('{"tallybook_snapshot": 1, "ledgers": {}}', "'ledgers'"),
        (GOOD.replace("7", "-1"), "ledger"), (GOOD.replace("7", "true"), "ledger"),
        (GOOD.replace("7", "7.0"), "ledger"),
        (GOOD.replace("7", '"7"'), "ledger"), (GOOD.replace("9", "9223372036854775808"), "last"),
        (GOOD.replace('"first": 0', '"first": 10'), "first"), (GOOD.replace('"first": 0', '"frist": 0'), "first"),
        (GOOD.replace("[{", "[7, {"), "not as 7"), (GOOD.replace("}]", "}, null]"), "None"),
        (GOOD.replace("}]", '}, {"ledger": 7, "first": 20, "last": 30}]'), "ledger 7 twice"),
        (GOOD[:-1] + ', "written": []}', "'ledgers'"), (GOOD[:-1] + ', "written": {"first_us": "1"}}', "'first_us'"),
        (GOOD[:-1] + ', "written": {"end_us": true}}', "'end_us'"),
        (GOOD[:-1] + ', "written": {"end_us": 9223372036854775808}}', "'end_us'"),
    ],
)  # fmt: skip
def test_what_is_no_snapshot_is_refused_with_what_is_wrong(text: str, message: str) -> None:
    assert parse_snapshot(GOOD) == Snapshot("c", (LedgerEntryRange(7, 0, 9),))
    with pytest.raises(InvalidArgument, match=message):
        parse_snapshot(text)


# --- partitions -------------------------------------------------------------------------------------------------------


def receipt(key: str) -> Receipt:
    return Receipt(key, key, 1000, bytes(32), IndexPart(500, 100, 100, 0), 10, 100, 0, 0)


def closed_ledger(ledger_id: int, entries: int, length: int, **fields: Any) -> LedgerMetadata:
    return LedgerMetadata(
        ledger_id, Quorum(1, 1, 1), (Fragment(0, ("b1",)),), "creator", 0, state=LedgerState.CLOSED,
        last_entry_id=entries - 1, length=length, **fields,
    )  # fmt: skip


def test_a_stretch_knows_where_its_entries_are_and_about_how_large_they_are() -> None:
    ledger = closed_ledger(7, 10, 100, archived=receipt("x"))
    assert planned_range_of(LedgerEntryRange(7, 2, 4), ledger) == PlannedRange(7, 2, 4, 30, receipt("x"), True)
    assert not planned_range_of(LedgerEntryRange(7, 2, 4), ledger, bookies_only=True).scannable
    signed = closed_ledger(7, 10, 100, digest=DigestType.HMAC_SHA256, archived=receipt("x"))
    assert not planned_range_of(LedgerEntryRange(7, 2, 4), signed).scannable
    open_ = LedgerMetadata(7, Quorum(1, 1, 1), (Fragment(0, ("b1",)),), "creator", 0)
    assert planned_range_of(LedgerEntryRange(7, 0, 9), open_) == PlannedRange(7, 0, 9, 10 * 1024, None, True)


@st.composite
def planned_ranges(draw: st.DrawFn) -> list[PlannedRange]:
    found = []
    for ledger_id in draw(st.sets(st.integers(0, 30), max_size=8)):
        first, entries = draw(st.integers(0, 50)), draw(st.integers(1, 200))
        size = draw(st.sampled_from([0, 1, entries, 100 * entries, 997]))
        key = draw(st.sampled_from(["", "sets/a", "sets/b"]))
        found.append(PlannedRange(ledger_id, first, first + entries - 1, size, receipt(key) if key else None))
    return found


@given(planned_ranges(), st.integers(1, 5_000), st.integers(1, 40), st.data())
def test_every_entry_is_in_exactly_one_partition_and_partitions_are_bounded(
    wanted: list[PlannedRange], max_bytes: int, least: int, data: st.DataObject
) -> None:
    cuts = {
        each.ledger_id: sorted(data.draw(st.sets(st.integers(0, 300), max_size=20))) if each.ledger_id % 2 else []
        for each in wanted
    }
    times = TimeRange(1, 2)
    found = partitions_of(
        wanted, lambda each: cuts[each.ledger_id], max_bytes=max_bytes, min_partitions=least, written=times
    )
    pieces = [piece for partition in found for piece in partition.planned_ranges]
    for each in wanted:
        own = sorted((piece for piece in pieces if piece.ledger_id == each.ledger_id), key=lambda piece: piece.first)
        assert [own[0].first, own[-1].last] == [each.first, each.last]
        assert all(one.last + 1 == other.first for one, other in itertools.pairwise(own))
        assert all(piece.receipt == each.receipt and piece.scannable == each.scannable for piece in own)
        inner = [piece.first for piece in own[1:]]
        if least == 1 and [cut for cut in cuts[each.ledger_id] if each.first < cut <= each.last]:
            assert set(inner) <= set(cuts[each.ledger_id]), "cut where row groups begin"
    assert len(pieces) == len({(piece.ledger_id, piece.first) for piece in pieces})
    assert all(partition.planned_ranges and partition.written == times and not partition.gaps for partition in found)
    assert len(found) >= min(least, sum(each.last - each.first + 1 for each in wanted))
    for partition in found:
        size = sum(piece.payload_bytes for piece in partition.planned_ranges)
        assert size <= max_bytes or len(partition.planned_ranges) == 1
    keys = [piece.receipt.key if piece.receipt else "" for piece in pieces]
    assert len(list(itertools.groupby(keys))) == len(set(keys)), "what lies in one object stays together"
    assert pickle.loads(pickle.dumps(found)) == found


@pytest.mark.parametrize(
    ("sizes", "least", "expected"),
    [
        # Entries without payload; one that outweighs all others; ledgers of which each is small; too few entries.
        ([(40, 0)], 4, [10, 10, 10, 10]),
        ([(1, 1000), (3, 3)], 4, [1, 1, 1, 1]),
        ([(1, 0)] * 8, 4, [2, 2, 2, 2]),
        ([(1, 5), (2, 10)], 60, [1, 1, 1]),
        ([(60, 600)], 1, [60]),
    ],
)
@pytest.mark.parametrize("cuts", [(), (20,)])
def test_there_are_as_many_partitions_as_are_wanted_if_there_are_so_many_entries(
    sizes: list[tuple[int, int]], least: int, expected: list[int], cuts: tuple[int, ...]
) -> None:
    wanted = [PlannedRange(each, 0, entries - 1, size) for each, (entries, size) in enumerate(sizes)]
    found = partitions_of(wanted, lambda _: cuts, min_partitions=least)
    assert [sum(piece.last - piece.first + 1 for piece in each.planned_ranges) for each in found] == expected


@pytest.mark.parametrize(
    ("cuts", "limit", "firsts"),
    [
        ((10, 20, 30, 40, 50, 60, 70, 80, 90), 250, [0, 20, 40, 60, 80]),
        ((10, 20, 30, 40, 50, 60, 70, 80, 90), 1000, [0]),
        ((10, 20, 30, 40, 50, 60, 70, 80, 90), 1, [0, 10, 20, 30, 40, 50, 60, 70, 80, 90]),
        ((50,), 100, [0, 50]),
        ((0, 100, 200), 500, [0, 50]),
        ((), 400, [0, 40, 80]),
    ],
)
def test_a_large_ledger_is_cut_where_its_row_groups_begin(cuts: tuple[int], limit: int, firsts: list[int]) -> None:
    found = partitions_of([PlannedRange(1, 0, 99, 1000)], lambda _: cuts, max_bytes=limit)
    assert [partition.planned_ranges[0].first for partition in found] == firsts


def test_small_ledgers_of_one_object_are_one_partition() -> None:
    small = [PlannedRange(each, 0, 9, 100, receipt("sets/b" if each % 2 else "sets/a")) for each in range(1000)]
    found = partitions_of(small, lambda _: ())
    assert [each.ledger_id for each in found[0].planned_ranges] == [*range(0, 1000, 2), *range(1, 1000, 2)]
    assert len(found) == 1


def test_gaps_are_errors_of_their_kind() -> None:
    deleted = EntryGap.of_deleted(7, 3, 5)
    assert isinstance(deleted.error(), NoSuchLedger)
    assert "ledger 7: entries 3 .. 5 trimmed: ledger 7 was deleted" in deleted.error().message
    lost = EntryGap(7, 3, 5, "lost", "nobody has it").error()
    assert isinstance(lost, DataMissing)
    assert "failOnDataLoss" in lost.message


# --- offsets of streams -----------------------------------------------------------------------------------------------

CLUSTER = "5f0c"
LEDGERS = st.dictionaries(st.integers(0, 20), st.tuples(st.integers(-1, 6), st.integers(0, 20)), min_size=1, max_size=6)


def grown(ledgers: dict[int, tuple[int, int]]) -> dict[int, ClosedLedger]:
    return {each: ClosedLedger(each, last, (last + 1) * size) for each, (last, size) in ledgers.items()}


@given(LEDGERS, st.data())
@settings(max_examples=25)
def test_every_entry_of_every_closed_ledger_comes_once_in_any_order_with_any_limits(
    ledgers: dict[int, tuple[int, int]], data: st.DataObject
) -> None:
    known = grown(ledgers)
    waiting = data.draw(st.permutations(sorted(known)), label="order of closing")
    closed: list[ClosedLedger] = []
    offset, seen = StreamOffset(CLUSTER), []
    for _ in range(1000):
        for _ in range(data.draw(st.integers(0, 3)) if waiting else 0):
            closed += [known[waiting.pop()]] if waiting else []
        limit = data.draw(st.none() | st.builds(BatchLimit, st.integers(1, 12), st.integers(1, 100)))
        there = [each for each in closed if offset.wants(each.ledger_id)]
        following = offset.advanced(there, limit)
        assert following == offset.advanced(list(reversed(there)), limit)
        if following is offset:
            assert not there, "whatever is there is gone on with"
            if not waiting:
                break
            continue
        assert following.json() != offset.json()
        entries = sum(each.last - each.first + 1 for each in following.batch)
        size = sum((each.last - each.first + 1) * ledgers[each.ledger_id][1] for each in following.batch)
        assert limit is None or entries <= limit.entries
        assert limit is None or size <= limit.payload_bytes or entries == 1 or _all_but_one(following, ledgers, limit)
        kept = json.dumps(following.json())
        offset = StreamOffset.parse(json.loads(kept))
        assert offset == following, "run again, the batch is the same"
        assert json.dumps(offset.json()) == kept
        seen += [(each.ledger_id, entry) for each in offset.batch for entry in range(each.first, each.last + 1)]
    expected = [(each.ledger_id, entry) for each in closed for entry in range(each.last + 1)]
    assert sorted(seen) == sorted(expected)
    assert not any(offset.wants(each.ledger_id) for each in closed)


def test_the_lag_counts_what_has_closed_and_was_not_read() -> None:
    closed = [ClosedLedger(5, 9, 100), ClosedLedger(6, -1, 0), ClosedLedger(7, 4, 50)]
    offset = StreamOffset(CLUSTER)
    assert offset.lag(closed) == {"ledgers": 2, "entries": 15, "bytes": 150}
    offset = offset.advanced(closed, BatchLimit(4, NO_LIMIT))
    assert offset.lag(closed) == {"ledgers": 2, "entries": 11, "bytes": 110}
    assert offset.advanced(closed, None).lag(closed) == {"ledgers": 0, "entries": 0, "bytes": 0}


def _all_but_one(offset: StreamOffset, ledgers: dict[int, tuple[int, int]], limit: BatchLimit) -> bool:
    """Whether only the last entry exceeds the limit; there must be at least one."""
    sizes = [ledgers[each.ledger_id][1] for each in offset.batch for _ in range(each.first, each.last + 1)]
    return sum(sizes[:-1]) < limit.payload_bytes


def test_a_ledger_that_was_cut_off_goes_on_before_others_that_have_closed_since() -> None:
    first = StreamOffset(CLUSTER).advanced([ClosedLedger(5, 9, 100)], BatchLimit(4, NO_LIMIT))
    assert (first.batch, first.within, str(first.seen)) == ((LedgerEntryRange(5, 0, 3),), LedgerEntryRange(5, 4, 9), "")
    second = first.advanced([ClosedLedger(1, 0, 1), ClosedLedger(5, 9, 100)], BatchLimit(7, NO_LIMIT))
    assert (second.batch, second.within, str(second.seen)) == (
        (LedgerEntryRange(5, 4, 9), LedgerEntryRange(1, 0, 0)),
        None,
        "1,5",
    )
    assert second.advanced([], None) is second


def test_the_rest_of_a_ledger_that_is_deleted_while_it_is_cut_off_is_wanted_all_the_same() -> None:
    """A reader of the batch finds that it is gone, and says so."""
    cut_off = StreamOffset(CLUSTER).advanced([ClosedLedger(5, 9, 100)], BatchLimit(4, NO_LIMIT))
    following = cut_off.advanced([ClosedLedger(6, 9, 100)], BatchLimit(8, NO_LIMIT))
    assert (following.batch, following.within) == (
        (LedgerEntryRange(5, 4, 9), LedgerEntryRange(6, 0, 1)),
        LedgerEntryRange(6, 2, 9),
    )
    assert cut_off.advanced([], None).batch == (LedgerEntryRange(5, 4, 9),)


@pytest.mark.parametrize(
    "wrong",
    [
        {"v": 0}, {"v": "1"}, {"cluster": None, "seen": 5}, {"seen": "x"}, {"seen": 5}, {"seen": None}, {"within": [1]},
        {"within": ["x", 1, 2]}, {"within": 7}, {"within": {"a": 1}}, {"ledgers": [[1, 2]]}, {"ledgers": 7},
        {"ledgers": [7]}, {"ledgers": [[1, 2, "x"]]},
    ],
)  # fmt: skip
def test_foreign_offsets_are_refused(wrong: dict[str, Any]) -> None:
    good = {"v": 1, "cluster": CLUSTER, "seen": "", "within": [], "ledgers": []}
    assert StreamOffset.parse(good).json() == good
    with pytest.raises(InvalidArgument):
        StreamOffset.parse({**good, **wrong})


@pytest.mark.parametrize("name", ["v", "cluster", "seen", "within", "ledgers"])
def test_an_offset_that_lacks_something_is_refused(name: str) -> None:
    found = StreamOffset(CLUSTER).json()
    del found[name]
    for each in (found, {}, {"offset": 17}):
        with pytest.raises(InvalidArgument):
            StreamOffset.parse(each)


# --- schemas of Avro --------------------------------------------------------------------------------------------------


def record(*types: object) -> dict[str, object]:
    return {
        "type": "record",
        "name": "r",
        "fields": [{"name": f"f{at}", "type": kind} for at, kind in enumerate(types)],
    }


INNER = {**record("int"), "name": "inner"}


@pytest.mark.parametrize(
    ("kind", "ddl"),
    [
        ("boolean", "BOOLEAN"), ("int", "INT"), ("long", "BIGINT"), ("float", "FLOAT"), ("double", "DOUBLE"),
        ("bytes", "BINARY"), ("string", "STRING"), ({"type": "string"}, "STRING"),
        ({"type": "enum", "name": "e", "symbols": ["A"]}, "STRING"),
        ({"type": "fixed", "name": "f", "size": 4}, "BINARY"), (["null", "int"], "INT"), (["int", "null"], "INT"),
        (["int"], "INT"), ({"type": "array", "items": "long"}, "ARRAY<BIGINT>"),
        ({"type": "map", "values": ["null", "string"]}, "MAP<STRING, STRING>"), (INNER, "STRUCT<`f0`: INT>"),
        ({"type": "array", "items": INNER}, "ARRAY<STRUCT<`f0`: INT>>"),
        ({"type": "int", "logicalType": "date"}, "DATE"), ({"type": "string", "logicalType": "uuid"}, "STRING"),
        ({"type": "long", "logicalType": "timestamp-millis"}, "TIMESTAMP_LTZ"),
        ({"type": "long", "logicalType": "timestamp-micros"}, "TIMESTAMP_LTZ"),
        ({"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}, "DECIMAL(9, 2)"),
        ({"type": "int", "logicalType": "time-millis"}, "INT"), ({"type": "int", "logicalType": "mine"}, "INT"),
        ({"type": "long", "logicalType": "local-timestamp-micros"}, "TIMESTAMP_NTZ"), ("null", "VOID"),
        (["null"], "VOID"),
        (["null", "int", "long"], "BIGINT"), (["double", "float"], "DOUBLE"),
        (["int", "null", "string"], "STRUCT<`member0`: INT, `member1`: STRING>"),
    ],
)  # fmt: skip
def test_types_of_avro_have_names_in_spark(kind: object, ddl: str) -> None:
    assert ddl_of(record(kind, "int")) == f"STRUCT<`f0`: {ddl}, `f1`: INT>"


@pytest.mark.parametrize(
    "schema",
    [
        None, 7, "string", "record", [], ["null", "int"], {}, {"type": "array", "items": "int"}, record(),
        {"type": "record", "name": "r"}, {"type": "record", "name": "r", "fields": "x"},
        {"type": "record", "name": "r", "fields": ["x"]}, record("strng"),
        record("r"), record(["null", "r"]), record(7), record({"type": 7}),
        record({"type": "array"}), record({"type": "map"}), record({}),
        *(record({"type": "bytes", "logicalType": "decimal", **bad}) for bad in (
            {}, {"precision": "x"}, {"precision": 0}, {"precision": 39}, {"precision": None},
            {"precision": 2, "scale": 3},
            {"precision": 2, "scale": -1}, {"precision": 2, "scale": "x"}, {"precision": True},
        )),
    ],
)  # fmt: skip
def test_schemas_of_avro_that_spark_cannot_hold_are_refused(schema: object) -> None:
    with pytest.raises(InvalidConfig, match="payloadSchema"):
        ddl_of(schema)


# --- columns ----------------------------------------------------------------------------------------------------------


DDL = {
    pa.int64(): "BIGINT", pa.int32(): "INT", pa.string(): "STRING", pa.binary(): "BINARY",
    pa.timestamp("us", "UTC"): "TIMESTAMP_LTZ", pa.struct([("a", pa.int32())]): "STRUCT<a INT>",
    pa.struct([("kind", pa.string()), ("first", pa.int64()), ("last", pa.int64()), ("reason", pa.string())]):
        "STRUCT<kind: STRING, first: BIGINT, last: BIGINT, reason: STRING>",
}  # fmt: skip


@pytest.mark.parametrize("kind", ["raw", "json", "arrow"])
@pytest.mark.parametrize("bad", ["keep", "fail"])
@pytest.mark.parametrize("metadata", [False, True])
@pytest.mark.parametrize("fails", [False, True])
def test_columns_for_spark_and_for_arrow_agree(kind: Any, bad: Any, metadata: bool, fails: bool) -> None:
    options = ReadOptions(
        LocationOptions("x", None), include_metadata=metadata, fail_on_data_loss=fails,
        payload=PayloadOptions(kind, "" if kind == "raw" else "a INT", bad),
    )  # fmt: skip
    columns = columns_of(options, "" if kind == "raw" else "STRUCT<a INT>")
    arrow = columns.arrow(None if kind == "raw" else pa.struct([("a", pa.int32())]))
    assert columns.ddl == ", ".join(
        f"{field.name} {DDL[field.type]}{'' if field.nullable else ' NOT NULL'}" for field in arrow
    )
    names = arrow.names
    assert names[:2] == ["ledger_id", "entry_id"]
    assert ("payload" in names) is (kind == "raw")
    assert ("slot" in names) is (kind == "arrow")
    assert ("bad_reason" in names) is (kind != "raw" and bad == "keep")
    assert ("tier" in names) is ("object" in names) is metadata
    assert ("gap" in names) is not fails
    assert not arrow.field("ledger_id").nullable
    assert arrow.field("written_at").nullable is not fails


def test_all_times_are_no_bound() -> None:
    assert not ALL_TIMES
    assert TimeRange(0)
    assert TimeRange(None, 0)
