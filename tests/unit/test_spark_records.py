"""Pure parts of streams in Spark: options, snapshots, offsets, and records of entries."""

import json
import pickle
from dataclasses import replace

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallybook.archive.format.schema import SCHEMA
from tallybook.core.errors import (
    DataMissing,
    InvalidArgument,
    InvalidConfig,
    InvariantViolation,
    NoSuchStream,
    StreamGap,
)
from tallybook.core.ids import MAX_ID
from tallybook.spark.columns import columns_for
from tallybook.spark.options import LocationOptions, PayloadOptions, ReadOptions, read_options, write_options
from tallybook.spark.query.bounds import RecordBounds, bounds_of, parse_bound
from tallybook.spark.query.gaps import EntryGap
from tallybook.spark.query.partitions import partitions_of
from tallybook.spark.query.record_snapshot import RecordRange, RecordSnapshot
from tallybook.spark.query.snapshot import parse_snapshot
from tallybook.spark.streams.native import unscanned
from tallybook.spark.streams.offsets import NO_NUMBER, RecordOffset, StreamProgress, fair_shares, records_within
from tallybook.spark.streams.planning import RecordPlan
from tallybook.spark.streams.ranges import PlannedRecordRange, RecordGap, wanted_entries
from tallybook.spark.streams.rows import RecordRows
from tallybook.stream.position import Position
from tallybook.stream.records.envelope import START, EnvelopeKind, RecordColumns, encode_mark, encode_records
from tallybook.stream.start import Start

STREAM_ID = "5f0c9a21" + "0" * 24
OTHER_ID = "11112222" + "0" * 24
TAG = STREAM_ID[:8]
HERE = {"metadata": "sqlite:///x"}
PLACES = st.tuples(st.integers(1, 5), st.integers(0, 6), st.integers(0, 3))

# --- options ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "start"),
    [
        (" Earliest ", Start.earliest()),
        ("LATEST", Start.latest()),
        ("3-1842-7@5f0c9a21", Start.at("3-1842-7@5f0c9a21")),
        ("sequence:0", Start.sequence(0)),
        ("Sequence:12", Start.sequence(12)),
        ("txid:-4", Start.txid(-4)),
        ("2026-11-01T00:00:00Z", Start.timestamp(1_793_491_200_000)),
        ("2026-11-01", Start.timestamp(1_793_491_200_000)),
        ("2026-11-01 01:00:00+01:00", Start.timestamp(1_793_491_200_000)),
    ],
)
def test_a_place_is_understood_in_each_form(text, start):
    assert parse_bound(text) == start


@pytest.mark.parametrize(
    "text",
    ["", "now", "3-1842", "3-1842-7", "3-1842-7@", "3-1842-7@5f0c", "3-1842-7@5f0c9a21x", "-1-0-0@5f0c9a21",
     "sequence:-1", "sequence:", "sequence:x", f"txid:{MAX_ID + 1}", "txid:99999999999999999999", "2026-13-01", "@",
     "1-1-1@5F0C9A21", "earliest latest"],
)  # fmt: skip
def test_what_is_no_place_is_refused(text):
    with pytest.raises(InvalidArgument):
        parse_bound(text)
    with pytest.raises(InvalidConfig, match="option startingPosition"):
        read_options(HERE | {"stream": "s", "startingPosition": text})


@pytest.mark.parametrize(
    ("pattern", "fits", "fits_not"),
    [
        ("orders/*", ["orders/eu", "orders/é"], ["orders", "orders/eu/x", "x/orders/eu"]),
        ("orders/**", ["orders", "orders/eu", "orders/eu/x"], ["order"]),
        ("**/eu", ["eu", "a/eu", "a/b/eu"], ["a/eu/b"]),
        ("a?[xy]", ["abx", "aby"], ["abz", "ax", "a/x"]),
        ("*", ["a"], ["a/b"]),
        ("orders", ["orders"], ["orders/eu", "Orders"]),
    ],
)
def test_a_pattern_fits_names_part_by_part(pattern, fits, fits_not):
    bounds = bounds_of("default", None, pattern, None, None)
    assert [name for name in (*fits, *fits_not) if bounds.fits(name)] == fits
    assert all(name.startswith(bounds.prefix) for name in fits)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"stream": "a", "streamPattern": "b*"}, "either option stream or option streamPattern"),
        ({"stream": "a", "ledger": "7"}, "ledger cannot be combined with streams"),
        (
            {"stream": "a", "ledgers": "all", "startingTime": "2026-01-01"},
            "ledgers, startingTime cannot be combined with streams",
        ),
        ({"stream": "a", "endingPosition": "earliest"}, "leaves nothing"),
        ({"streamPattern": "a*", "startingPosition": "1-0-0@5f0c9a21"}, "a position belongs to one stream"),
        ({"streamPattern": ""}, "streamPattern is empty"),
        ({"stream": ""}, "name of a stream"),
        ({"stream": "a//b"}, "cannot have the part"),
        ({"stream": "../etc"}, "cannot have the part"),
        ({"stream": "a\nb"}, "printable"),
        ({"stream": "a", "namespace": "x/y"}, "no slash"),
        ({"namespace": "x"}, "needs option stream or streamPattern"),
        ({"endingPosition": "latest"}, "needs option stream or streamPattern"),
        ({"stream": "a", "table": "ledgers"}, "option table is for ledgers"),
        ({"startingPosition": "txid:4"}, "is not one of earliest, latest"),
    ],
)
def test_options_of_streams_that_do_not_go_together_are_refused(options, said):
    with pytest.raises(InvalidConfig, match=said):
        read_options(HERE | options)


def test_a_bucket_has_no_streams():
    with pytest.raises(InvalidConfig, match="a bucket has no metadata of streams"):
        read_options({"archive": "file:///b", "stream": "s"})


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"stream": "a b "}, "cannot have the part"),
        ({"stream": "a", "ensemble": "3", "ackQuorum": "2"}, "give ackQuorum, ensemble for ledgers only"),
        ({"createStream": "true"}, "needs option stream"),
        ({"namespace": "prod"}, "needs option stream"),
        ({"stream": "a", "createStream": "maybe"}, "neither true nor false"),
        ({"stream": "a", "password": "secret"}, "streams have no password"),
    ],
)
def test_a_sink_that_makes_no_sense_is_refused(options, said):
    with pytest.raises(InvalidConfig, match=said):
        write_options(HERE | options)
    found = write_options(HERE | {"stream": "a/b", "namespace": "prod", "createStream": "TRUE", "sink": "s"})
    assert (found.stream, found.namespace, found.create_stream, found.sink) == ("a/b", "prod", True, "s")


def test_the_columns_of_records_say_which_may_be_null():
    plain = ReadOptions(LocationOptions("x", None), records=RecordBounds("default", "s", ""))
    assert columns_for(plain).ddl == (
        "stream STRING NOT NULL, position STRING NOT NULL, sequence BIGINT NOT NULL, timestamp TIMESTAMP_LTZ, "
        "key BINARY, txid BIGINT, payload BINARY NOT NULL"
    )
    rich = ReadOptions(
        LocationOptions("x", None), records=plain.records, fail_on_data_loss=False, include_metadata=True,
        payload=PayloadOptions("arrow", "n INT"),
    )  # fmt: skip
    assert [name for name, _ in columns_for(rich).names] == [
        "stream", "position", "sequence", "timestamp", "key", "txid", "row", "value", "bad_payload", "bad_reason",
        "segment", "ledger_id", "entry_id", "slot", "timestamp_ms", "dedup_id", "written_at", "tier", "object", "gap",
    ]  # fmt: skip
    assert [name for name, nullable in columns_for(rich).names if not nullable] == ["stream", "position"]


# --- snapshots and offsets --------------------------------------------------------------------------------------------

RANGES = st.tuples(PLACES, PLACES).map(lambda found: RecordRange("ä/b", STREAM_ID, *sorted(found)))


@given(st.lists(RANGES, max_size=3))
def test_the_text_of_a_snapshot_of_streams_says_all_of_it(ranges):
    snapshot = RecordSnapshot(
        "c", tuple(replace(each, stream_id=f"{number:08}" * 4) for number, each in enumerate(ranges))
    )
    assert parse_snapshot(str(snapshot)) == snapshot


def test_a_snapshot_has_a_segment_once_and_a_stream_as_often_as_one_that_is_read_in_parts():
    def of(*places):
        return str(RecordSnapshot("c", tuple(RecordRange("s", STREAM_ID, *each) for each in places)))

    parts = of(((1, 2, 1), (2, 0, 0)), ((4, 0, 0), (4, 3, 1)), ((2, 0, 0), (3, 7, 0)), ((4, 1, 0), (4, 1, 0)))
    assert str(parse_snapshot(parts)) == parts
    for twice in (
        of(((1, 0, 0), (1, 5, 3)), ((1, 5, 3), (1, 9, 0))), of(((2, 1, 0), (3, 0, 0)), ((1, 0, 0), (2, 0, 1))),
        of(((1, 0, 0), (5, 0, 0)), ((3, 0, 0), (4, 0, 0))),
    ):  # fmt: skip
        with pytest.raises(InvalidArgument, match=r"the snapshot has segment \d of stream s twice"):
            parse_snapshot(twice)


@pytest.mark.parametrize(
    "stream",
    [
        7,
        {},
        {"stream": "s", "id": "5f0c", "from": f"1-0-0@{TAG}", "to": f"1-0-1@{TAG}"},
        {"stream": "s", "id": STREAM_ID, "from": "1-0-0@11112222", "to": f"1-0-1@{TAG}"},
        {"stream": "s", "id": STREAM_ID, "from": f"1-0-2@{TAG}", "to": f"1-0-1@{TAG}"},
        {"stream": "s", "id": STREAM_ID, "from": "1-0-2", "to": f"1-0-1@{TAG}"},
        {"stream": "s", "id": STREAM_ID, "from": f"1-0-0@{TAG}", "to": f"1-0-1@{TAG}", "sequence": -1},
        {"stream": "s", "id": STREAM_ID, "from": f"1-0-0@{TAG}", "to": f"1-0-1@{TAG}", "sequence": True},
    ],
)
def test_what_is_no_snapshot_of_streams_is_refused(stream):
    with pytest.raises(InvalidArgument):
        parse_snapshot(json.dumps({"tallybook_snapshot": 1, "cluster": "c", "streams": [stream]}))


def test_an_offset_names_the_records_since_an_earlier_one():
    start = RecordOffset("c", {STREAM_ID: StreamProgress("a", (1, 0, 0), 0)})
    end = start.advanced(
        {STREAM_ID: StreamProgress("a", (2, 3, 1), 40), OTHER_ID: StreamProgress("b", (1, 9, 0), 9, (1, 2, 0))}, []
    )
    assert end.since(start) == (
        RecordRange("a", STREAM_ID, (1, 0, 0), (2, 3, 1)), RecordRange("b", OTHER_ID, (1, 2, 0), (1, 9, 0))
    )  # fmt: skip
    assert RecordOffset.parse(json.loads(json.dumps(end.json()))) == end
    assert end.advanced({}, [OTHER_ID]) is end, "where nothing has come the offset is the same"
    later = end.advanced({STREAM_ID: StreamProgress("a", (2, 4, 0), 50)}, [OTHER_ID])
    assert later.since(end) == (RecordRange("a", STREAM_ID, (2, 3, 1), (2, 4, 0)),)
    assert set(later.streams) == {STREAM_ID}
    assert "from" not in json.dumps(end.advanced({STREAM_ID: StreamProgress("a", (2, 4, 0), 50)}, []).json())


def test_the_lag_counts_records_of_streams_whose_numbers_are_known():
    end, lost = StreamProgress("a", (3, 0, 0), 50), StreamProgress("b", (3, 0, 0), NO_NUMBER)
    offset = RecordOffset("c", {STREAM_ID: StreamProgress("a", (2, 3, 1), 40)})
    assert offset.lag([(STREAM_ID, end, 0), (OTHER_ID, lost, 5)]) == {
        "streams": {
            STREAM_ID: {"name": "a", "at": f"3-0-0@{TAG}", "sequence": 50, "behind": 10},
            OTHER_ID: {"name": "b", "at": f"3-0-0@{OTHER_ID[:8]}", "sequence": NO_NUMBER},
        },
        "behind": {"records": 10},
    }
    begun = RecordOffset("c", {}).lag([(STREAM_ID, end, 20)])
    assert begun["behind"] == {"records": 30}, "a stream that has come since is read from its beginning"


@pytest.mark.parametrize(
    "found",
    [
        {}, {"v": 1, "cluster": "c", "seen": "", "within": [], "ledgers": []}, {"v": 0, "cluster": "c", "streams": {}},
        {"v": 1, "streams": {}},
        {"v": 1, "cluster": "c", "streams": {STREAM_ID: {"name": "a", "at": "x", "sequence": 1}}},
        {"v": 1, "cluster": "c", "streams": {STREAM_ID: {"name": "a", "at": "1-0-0@11112222", "sequence": 1}}},
        {"v": 1, "cluster": "c", "streams": {STREAM_ID: 7}},
    ],
)  # fmt: skip
def test_a_checkpoint_of_something_else_is_refused(found):
    with pytest.raises(InvalidArgument, match="the checkpoint has an offset"):
        RecordOffset.parse(found)


@given(st.lists(st.integers(0, 50), max_size=8), st.integers(1, 200))
def test_streams_share_a_limit_fairly_and_leave_nothing_of_it(available, limit):
    found = fair_shares(available, limit)
    assert sum(found) == min(limit, sum(available))
    assert all(0 <= taken <= there for taken, there in zip(found, available, strict=True))
    starved = [taken for taken, there in zip(found, available, strict=True) if taken < there]
    assert not starved or max(starved, default=0) >= max(found) - 1, "nobody gets more who leaves others with less"


@given(st.lists(st.tuples(st.integers(1, 50), st.integers(0, 500)), max_size=6), st.integers(1, 600))
def test_as_many_records_are_taken_as_fit_and_one_at_least(pieces, most):
    found = records_within(pieces, most)
    total = sum(count for count, _ in pieces)
    assert (found > 0) == bool(pieces)
    assert found <= total
    if sum(size for _, size in pieces) <= most:
        assert found == total


# --- entries that are wanted ------------------------------------------------------------------------------------------


@given(st.lists(st.integers(0, 6), min_size=5, max_size=5), PLACES, PLACES)
def test_the_entries_of_a_range_are_those_with_its_records(lasts, one, other):
    """Segments 1 .. 5 with three records in each entry."""
    first, end = sorted((one, other))
    expected = {
        (number, entry)
        for number, last in enumerate(lasts, 1)
        for entry in range(last + 1)
        for slot in range(4)
        if first <= (number, entry, slot) < end
    }
    found = set()
    for number, last in enumerate(lasts, 1):
        entries = wanted_entries(number, last, first, end)
        if entries is not None:
            found |= {(number, entry) for entry in range(entries[0], entries[1] + 1)}
    assert expected <= found
    assert len(found - expected) <= 1, "the first one may be begun behind its last record"


@given(st.sets(st.integers(1, 5)), st.sets(st.integers(1, 5)), PLACES, PLACES)
def test_scanned_and_unscanned_parts_make_up_a_range(listed, ledgers, one, other):
    first, end = sorted((one, other))
    wanted = RecordRange("s", STREAM_ID, first, end)
    within = sorted(number for number in listed if first[0] <= number <= end[0])
    plan = RecordPlan(tuple(planned_range(number, ledger_id=number) for number in within), ())
    scanned = ledgers & set(within)
    rest = list(unscanned(wanted, 0, plan, scanned))
    for number in within:
        for entry in range(9):
            at = (number, entry, 0)
            if first <= at < end:
                inside = [each for each in rest if each.first <= at < each.end]
                assert len(inside) == (number not in scanned)
    assert not rest or set(within) - scanned


# --- records out of entries -------------------------------------------------------------------------------------------


def planned_range(segment=3, ledger_id=70, first=0, last=9, **given):
    wanted = {"begin": (0, 0), "end": (last + 1, 0), "sequence": None, **given}
    return PlannedRecordRange(
        ledger_id, first, last, 1000, stream="s", stream_id=STREAM_ID, segment=segment, **wanted
    )  # fmt: skip


def envelopes(*counts):
    """Envelopes of so many records each; 0 is a mark."""
    found, marks = [], START
    for count in counts:
        if not count:
            found.append(encode_mark(EnvelopeKind.KEEP_ALIVE, marks, 0))
            continue
        columns = RecordColumns(1_000)
        for number in range(count):
            columns.add(b"%d" % (marks.next_sequence + number), None, None, None, None)
        found.append(encode_records(columns, marks))
        marks = columns.marks_after(marks)
    return found


def entries(payloads, first=0, ledger_id=70):
    count = len(payloads)
    columns = {
        "ledger_id": [ledger_id] * count, "entry_id": range(first, first + count), "written_at": [0] * count,
        "crc32c": [0] * count, "payload": payloads,
    }  # fmt: skip
    return pa.table(
        [pa.array(list(columns[field.name]), field.type) for field in SCHEMA], schema=SCHEMA
    )  # fmt: skip


def read(rows, *parts):
    """Positions and payloads of records, and gaps as they come."""
    found = []
    for part in parts:
        for each in rows.records(part):
            if isinstance(each, RecordGap):
                found.append((each.kind, str(each.at), each.first, each.last))
            else:
                found += zip(each["position"].to_pylist(), each["payload"].to_pylist(), strict=True)
    found += [(each.kind, str(each.at), each.first, each.last) for each in rows.rest()]
    return found


@given(st.lists(st.integers(0, 4), min_size=1, max_size=8), st.data())
def test_of_a_stretch_the_records_between_its_places_come_out_however_the_entries_come(counts, data):
    places = st.tuples(st.integers(0, len(counts)), st.integers(0, 4))
    begin, end = sorted((data.draw(places), data.draw(places)))
    payloads = envelopes(*counts)
    whole = [(f"3-{entry}-{slot}@{TAG}", (entry, slot)) for entry, count in enumerate(counts) for slot in range(count)]
    expected = [(position, b"%d" % number) for number, (position, at) in enumerate(whole) if begin <= at < end]
    cut = data.draw(st.integers(0, len(counts)))
    parts = [entries(payloads[:cut]), entries(payloads[cut:], cut)]
    rows = RecordRows([planned_range(last=len(counts) - 1, begin=begin, end=end, sequence=0)])
    assert read(rows, *(part for part in parts if part.num_rows)) == expected


def test_numbers_that_are_missing_are_a_gap_though_every_entry_is_there():
    payloads = envelopes(2, 3, 2)
    rows = RecordRows([planned_range(last=1, sequence=0)])
    assert read(rows, entries([payloads[0], payloads[2]])) == [
        ("lost", f"3-1-0@{TAG}", 2, 4), (f"3-0-0@{TAG}", b"0"), (f"3-0-1@{TAG}", b"1"),
        (f"3-1-0@{TAG}", b"5"), (f"3-1-1@{TAG}", b"6"),
    ]  # fmt: skip
    first = RecordRows([planned_range(last=0, sequence=0)])
    assert read(first, entries(payloads[1:2]))[0] == ("lost", f"3-0-0@{TAG}", 0, 1)
    unknown = RecordRows([planned_range(last=0, sequence=None)])
    assert read(unknown, entries(payloads[1:2]))[0] == (f"3-0-0@{TAG}", b"2")


def test_an_entry_that_is_damaged_or_lost_is_a_gap_up_to_the_next_that_is_good():
    payloads = envelopes(2, 3, 0, 2)
    rows = RecordRows([planned_range(last=3, sequence=0)])
    found = read(rows, entries([payloads[0], b"TSbroken", payloads[2], payloads[3]]))
    assert found[0] == ("lost", f"3-1-0@{TAG}", 2, 4)
    assert [payload for _, payload in found[1:]] == [b"0", b"1", b"5", b"6"]

    rows = RecordRows([planned_range(last=3, sequence=0)])
    found = [payload for _, payload in read(rows, entries(payloads[:1]))]
    assert list(rows.lost(EntryGap(70, 1, 2, "lost", "gone"), None)) == []
    assert read(rows, entries(payloads[3:], 3))[0] == ("lost", f"3-1-0@{TAG}", 2, 4)
    assert list(rows.lost(EntryGap(70, 2, 3, "lost", "gone"), None)) == []
    assert read(rows) == [("lost", f"3-2-0@{TAG}", 7, None)], "behind it nothing came"

    marks = RecordRows([planned_range(last=3, sequence=0)])
    list(marks.records(entries(payloads[:2])))
    list(marks.lost(EntryGap(70, 2, 2, "lost", "gone"), None))
    assert not [each for each in read(marks, entries(payloads[3:], 3)) if each[0] == "lost"], "it was only a mark"


def test_a_ledger_that_was_deleted_is_a_stream_that_was_or_records_that_are_lost():
    gap = EntryGap.of_deleted(70, 0, 9)
    [deleted] = RecordRows([planned_range()]).lost(gap, None)
    assert isinstance(deleted.error(), NoSuchStream)
    for kind, error in (("truncated", StreamGap), ("lost", DataMissing)):
        found = RecordGap("s", Position(1, 2, 3, TAG), kind, None, 9, "why").error()
        assert isinstance(found, error)
        assert "some record to record 9" in found.message
        assert "failOnDataLoss=false" in found.message


def test_an_entry_that_was_not_asked_for_is_a_defect():
    with pytest.raises(InvariantViolation, match="was not asked for"):
        list(RecordRows([planned_range(last=2)]).records(entries(envelopes(1, 1), 3)))


def test_a_time_that_spark_cannot_hold_is_null_and_in_milliseconds():
    columns = RecordColumns(0)
    for time in (0, -(2**62), 2**62, (2**63 - 1) // 1000):
        columns.add(b"", time, None, None, None)
    rows = RecordRows([planned_range(last=0)])
    [table] = rows.records(entries([encode_records(columns, START)]))
    assert table["timestamp"].cast(pa.int64()).to_pylist() == [0, None, None, (2**63 - 1) // 1000 * 1000]
    assert table["timestamp_ms"].to_pylist() == [0, -(2**62), 2**62, (2**63 - 1) // 1000]


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 40)), min_size=1, max_size=6), st.integers(1, 6))
def test_partitions_of_streams_are_in_the_order_of_records_and_lose_none(segments, least):
    planned_ranges = [
        planned_range(number, 100 - number, 0, last, rank=rank) for number, (rank, last) in enumerate(segments, 1)
    ]
    found = partitions_of(planned_ranges, lambda _: (), max_bytes=700, min_partitions=least)
    order = [
        (each.rank, each.segment, entry)
        for partition in found
        for each in partition.planned_ranges
        if isinstance(each, PlannedRecordRange)
        for entry in range(each.first, each.last + 1)
    ]
    assert order == sorted(order)
    assert len(order) == sum(last + 1 for _, last in segments) == len(set(order))
    assert pickle.loads(pickle.dumps(found)) == found
