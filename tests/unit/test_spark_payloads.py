"""Decoded payloads: values that fit the schema, others kept beside it with a reason, and the resulting columns."""

import io
import json
from datetime import UTC, date, datetime, time
from decimal import Decimal
from math import isnan
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest
from pyspark.sql import types as spark

from tallybook.archive.format.schema import SCHEMA
from tallybook.core.errors import InvalidArgument, InvalidConfig
from tallybook.spark.columns import columns_of
from tallybook.spark.ledgers.reading import EntryRows
from tallybook.spark.ledgers.row_shaping import BATCH_BYTES, RowShaper
from tallybook.spark.options import LocationOptions, PayloadOptions, ReadOptions
from tallybook.spark.payloads.payloads import MAX_REASON_CHARACTERS, Parser, check_value, parser_of, value_ddl
from tallybook.spark.query.gaps import EntryGap

from .test_spark_avro_unions import encoded


def struct(**fields: spark.DataType) -> spark.StructType:
    return spark.StructType([spark.StructField(name, kind) for name, kind in fields.items()])


LONG, TEXT = spark.LongType(), spark.StringType()


def parser(kind: Any, value: spark.DataType, schema: str = "x", bad: Any = "keep") -> Parser:
    found = parser_of(PayloadOptions(kind, schema, bad), struct(value=value))
    assert found is not None
    return found


def table(*payloads: bytes, first: int = 0) -> pa.Table:
    count = len(payloads)
    return pa.Table.from_arrays(
        [
            pa.array([7] * count, pa.int64()), pa.array(range(first, first + count), pa.int64()),
            pa.array(range(count), pa.timestamp("us", "UTC")), pa.array([1] * count, pa.uint32()),
            pa.array(payloads, pa.binary()),
        ],
        schema=SCHEMA,
    )  # fmt: skip


class Outcome:
    """Decoded payloads: values, and the errors of the others by row."""

    def __init__(self, found: Parser, *payloads: bytes) -> None:
        self.table, columns = found.parse(table(*payloads, first=100))
        assert columns["value"].type == found.type
        columns["value"].validate(full=True)
        self.values = columns["value"].to_pylist()
        self.reasons = columns["bad_reason"].to_pylist()
        self.kept = columns["bad_payload"].to_pylist()
        self.slots = columns["slot"].to_pylist() if "slot" in columns else None
        for value, reason, kept in zip(self.values, self.reasons, self.kept, strict=True):
            assert (reason is None) == (kept is None)
            assert reason is None or (value is None and 0 < len(reason) <= MAX_REASON_CHARACTERS)


# --- JSON -------------------------------------------------------------------------------------------------------------

FLAT = struct(a=LONG, b=TEXT)


def test_json_objects_become_values_by_name() -> None:
    found = Outcome(parser("json", FLAT), b'{"a": 1, "b": "x"}', b' {"b":"\xc3\xa9"} ', b"{}", b'{"c": [], "a": null}')
    assert found.values == [{"a": 1, "b": "x"}, {"a": None, "b": "é"}, {"a": None, "b": None}, {"a": None, "b": None}]
    assert found.reasons == [None] * 4


def test_null_is_no_value_and_no_mistake() -> None:
    found = Outcome(parser("json", FLAT), b"null", b'{"a": 1}')
    assert found.values == [None, {"a": 1, "b": None}]
    assert found.reasons == [None, None]


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        (b"", "not JSON"), (b"{", "not JSON"), (b'{"a": 1} x', "not JSON"), (b"\x00", "not JSON"),
        (b'{"b": "\xff"}', "not UTF-8 from byte 7"), (b"\xff\xfe{\x00}\x00", "not UTF-8 from byte 0"),
        (b"[1]", "expected a JSON object, not a list"), (b"7", "not a int"), (b'"x"', "not a str"),
        (b"NaN", "a float"),
        (b"true", "a bool"), (b'{"a": "x"}', "x"), (b'{"a": 1.5}', ""), (b'{"a": [1]}', ""), (b'{"a": {"b": 1}}', ""),
        (b'{"a": 9223372036854775808}', ""), (b'{"a": -9223372036854775809}', ""), (b'{"a": NaN}', ""),
        (b'{"a": 1e400}', ""), (b'{"a": ' + b"1" * 5000 + b"}", "not JSON"), (b'{"a": 1' + b"0" * 400 + b"}", ""),
        (b"[" * 100_000, "not JSON"), (b'{"a":' * 100_000, "not JSON"), (b'{"b": 7}', ""), (b'{"b": ["x"]}', ""),
        (b'{"b": "\\ud800"}', ""), (b'{"\\ud800": 1, "a": "\\udfff"}', ""), (b"\xef\xbb\xbf{}", "not JSON"),
    ],
)  # fmt: skip
def test_what_is_not_the_object_that_is_wanted_is_kept_with_a_reason_and_its_neighbours_are_well(
    payload: bytes, reason: str
) -> None:
    found = Outcome(parser("json", FLAT), b'{"a": 1}', payload, b'{"a": 2}')
    assert [value and value["a"] for value in found.values] == [1, None, 2]
    assert found.kept == [None, payload, None]
    assert reason in found.reasons[1]


def test_numbers_of_json_keep_what_they_are() -> None:
    value = struct(d=spark.DoubleType(), f=spark.FloatType(), i=spark.IntegerType(), t=spark.BooleanType())
    good = [
        b'{"d": 1, "f": 0.5, "i": -3, "t": true}',
        b'{"d": 9007199254740993}',
        b'{"d": "-Infinity", "f": -Infinity}',
    ]
    not_numbers = [b'{"d": "NaN"}', b'{"d": NaN}']
    bad = [
        b'{"d": true}', b'{"f": false}', b'{"i": true}', b'{"d": "1"}', b'{"d": "nan"}', b'{"d": 1e400}',
        b'{"d": 1' + b"0" * 400 + b"}", b'{"f": 3.5e38}', b'{"i": 2147483648}', b'{"i": 1.0}', b'{"t": 1}',
        b'{"t": "true"}',
    ]  # fmt: skip
    found = Outcome(parser("json", value), *good, *not_numbers, *bad)
    assert found.values[0] == {"d": 1.0, "f": 0.5, "i": -3, "t": True}
    assert found.values[1]["d"] == 9007199254740992.0, "the nearest number that a DOUBLE has"
    assert (found.values[2]["d"], found.values[2]["f"]) == (float("-inf"), float("-inf"))
    assert all(isnan(value["d"]) for value in found.values[3:5])
    assert [payload for payload, reason in zip(bad, found.reasons[5:], strict=True) if not reason] == []


def test_binary_in_json_is_base64() -> None:
    found = Outcome(parser("json", struct(b=spark.BinaryType())), b'{"b": "AP8="}', b'{"b": ""}', b'{"b": "text"}',
                    b'{"b": "A"}', b'{"b": "A P8="}', b'{"b": 7}')  # fmt: skip
    assert found.values[:3] == [{"b": b"\x00\xff"}, {"b": b""}, {"b": b"\xb5\xecm"}]
    assert [bool(reason) for reason in found.reasons] == [False] * 3 + [True] * 3


def test_keys_of_maps_in_json_are_text_of_their_type() -> None:
    kinds = {
        "i": (spark.IntegerType(), "-7", -7, "x"), "s": (TEXT, "x", "x", None),
        "t": (spark.BooleanType(), "true", True, "1"), "d": (spark.DoubleType(), "1.5", 1.5, "true"),
        "m": (spark.DecimalType(6, 2), "1.50", Decimal("1.50"), "1.505"),
        "a": (spark.DateType(), "20758", date(2026, 11, 1), "x"),
        "b": (spark.DateType(), "2026-11-01", date(2026, 11, 1), ""),
        "w": (spark.TimestampType(), "1793491200000001", datetime(2026, 11, 1, 0, 0, 0, 1, tzinfo=UTC), "now"),
    }  # fmt: skip
    for kind, text, key, wrong in kinds.values():
        payloads = [json.dumps({"x": {each: 1}}).encode() for each in (text, wrong) if each is not None]
        found = Outcome(parser("json", struct(x=spark.MapType(kind, LONG))), *payloads)
        assert found.values[0] == {"x": [(key, 1)]}
        assert all(found.reasons[1:])


def test_times_dates_and_decimals_of_json_are_exact() -> None:
    value = struct(
        t=spark.TimestampType(), n=spark.TimestampNTZType(), d=spark.DateType(), m=spark.DecimalType(10, 2)
    )  # fmt: skip
    found = Outcome(
        parser("json", value),
        b'{"t": "2026-11-01T00:00:00Z", "n": "2026-11-01T00:00:00", "d": "2026-11-01", "m": "-1.50"}',
        b'{"t": "2026-11-01T01:00:00.000001+01:00", "m": 99999999.99}',
        b'{"t": "2026-11-01T00:00:00.100000000Z", "m": 2}', b'{"t": "2026-11-01 00:00:00", "m": 1.5}',
        b'{"t": "2026-10-31T20:00:00.000-04:00"}', b'{"t": "2026-10-31T19:03:58-04:56:02"}',
        b'{"t": "yesterday"}', b'{"t": 5}', b'{"d": "2026-13-01"}', b'{"m": "1.505"}', b'{"m": "x"}', b'{"m": true}',
        b'{"m": "100000000"}', b'{"m": 1e999999999}', b'{"m": 1.505}', b'{"m": "NaN"}',
        b'{"t": "2026-11-01T00:00:00.123456789Z"}', b'{"t": "2026-11-01T25:00:00Z"}', b'{"t": "2026-11-01"}',
        b'{"n": "2026-11-01T00:00:00Z"}', b'{"d": "2026-11-01T00:00:00"}', b'{"d": 20758}',
    )  # fmt: skip
    first = datetime(2026, 11, 1, tzinfo=UTC)
    assert found.values[:2] == [
        {"t": first, "n": first.replace(tzinfo=None), "d": date(2026, 11, 1), "m": Decimal("-1.50")},
        {"t": first.replace(microsecond=1), "n": None, "d": None, "m": Decimal("99999999.99")},
    ]
    nothing = {"n": None, "d": None}
    assert found.values[2:6] == [
        {"t": first.replace(microsecond=100_000), **nothing, "m": Decimal("2.00")},
        {"t": first, **nothing, "m": Decimal("1.50")}, {"t": first, **nothing, "m": None},
        {"t": first.replace(hour=0), **nothing, "m": None},
    ]  # fmt: skip
    assert found.reasons[:6] == [None] * 6
    assert all(found.reasons[6:])


def test_what_does_not_fit_inside_of_a_value_of_json_makes_a_bad_record() -> None:
    value = struct(s=struct(l=spark.ArrayType(struct(t=spark.TimestampType()))), k=spark.MapType(TEXT, LONG))
    bad = [b'{"k": {"a": "x"}}', b'{"k": [["a", 1]]}', b'{"s": {"l": [{"t": 1}]}}', b'{"k": 5}']
    found = Outcome(parser("json", value), b'{"k": {}, "s": {"l": [{"t": null}, null]}}', *bad)
    assert found.values[0] == {"s": {"l": [{"t": None}, None]}, "k": []}
    assert all(found.reasons[1:])


def test_a_field_that_may_not_be_null_makes_a_bad_record_where_it_is() -> None:
    inner = spark.StructType([spark.StructField("x", spark.DateType(), nullable=False)])
    value = spark.StructType([spark.StructField("a", LONG, nullable=False), spark.StructField("s", inner)])
    found = Outcome(
        parser("json", value), b'{"a": 1}', b"{}", b'{"a": null}', b'{"a": 1, "s": {}}',
        b'{"a": 2, "s": {"x": "2026-11-01"}}', b"null",
    )  # fmt: skip
    assert found.values == [{"a": 1, "s": None}, None, None, None, {"a": 2, "s": {"x": date(2026, 11, 1)}}, None]
    assert [bool(reason) for reason in found.reasons] == [False, True, True, True, False, False]
    assert "field a is missing" in found.reasons[1]


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("t TIMESTAMP", "t TIMESTAMP_LTZ"),
        ("t timestamp, u TIMESTAMP NOT NULL COMMENT 'x'", "t TIMESTAMP_LTZ, u TIMESTAMP_LTZ NOT NULL COMMENT 'x'"),
        (
            "a ARRAY<TIMESTAMP>, m MAP<TIMESTAMP, timestamp >",
            "a ARRAY<TIMESTAMP_LTZ>, m MAP<TIMESTAMP_LTZ, TIMESTAMP_LTZ >",
        ),
        ("s STRUCT<timestamp: TIMESTAMP>", "s STRUCT<timestamp: TIMESTAMP_LTZ>"),
        ("timestamp TIMESTAMP, `TIMESTAMP` INT", "timestamp TIMESTAMP_LTZ, `TIMESTAMP` INT"),
        ("t TIMESTAMP_NTZ, u TIMESTAMP_LTZ", "t TIMESTAMP_NTZ, u TIMESTAMP_LTZ"),
        ("a INT COMMENT 'no TIMESTAMP, it''s a TIMESTAMP'", "a INT COMMENT 'no TIMESTAMP, it''s a TIMESTAMP'"),
    ],
)
def test_a_timestamp_means_the_same_moment_with_any_session_settings(given: str, meant: str) -> None:
    assert value_ddl(PayloadOptions("json", given)) == f"STRUCT<{meant}>"
    assert value_ddl(PayloadOptions("arrow", given)) == f"STRUCT<{meant}>"


# --- Avro -------------------------------------------------------------------------------------------------------------


def avro(*types: object) -> str:
    fields = [{"name": name, "type": kind} for name, kind in zip("abcdefgh", types, strict=False)]
    return json.dumps({"type": "record", "name": "r", "fields": fields})


PAIR = avro("long", ["null", "string"])


def test_every_type_of_avro_that_has_a_name_in_spark_gets_there() -> None:
    schema = avro(
        {"type": "map", "values": "long"}, {"type": "string", "logicalType": "uuid"},
        {"type": "long", "logicalType": "timestamp-millis"}, {"type": "bytes", "logicalType": "decimal",
                                                             "precision": 6, "scale": 2},
        {"type": "enum", "name": "e", "symbols": ["X", "Y"]}, {"type": "int", "logicalType": "time-millis"},
        {"type": "array", "items": {"type": "map", "values": ["null", {"type": "int", "logicalType": "date"}]}},
        {"type": "fixed", "name": "f", "size": 2},
    )  # fmt: skip
    value = struct(
        a=spark.MapType(TEXT, LONG), b=TEXT, c=spark.TimestampType(), d=spark.DecimalType(6, 2), e=TEXT,
        f=spark.IntegerType(), g=spark.ArrayType(spark.MapType(TEXT, spark.DateType())), h=spark.BinaryType(),
    )  # fmt: skip
    assert value_ddl(PayloadOptions("avro", schema)) == (
        "STRUCT<`a`: MAP<STRING, BIGINT>, `b`: STRING, `c`: TIMESTAMP_LTZ, `d`: DECIMAL(6, 2), `e`: STRING, `f`: INT, "
        "`g`: ARRAY<MAP<STRING, DATE>>, `h`: BINARY>"
    )
    moment, identity = datetime(2026, 11, 1, 1, 2, 3, 4000, tzinfo=UTC), "5f0c0f5e-3f6a-4f5c-8f57-0f7f3f1f2f3f"
    datum = {
        "a": {"x": 1}, "b": UUID(identity), "c": moment, "d": Decimal("12.50"), "e": "Y",
        "f": time(0, 0, 1), "g": [{"k": date(2026, 11, 1), "n": None}, {}], "h": b"\x00\xff",
    }  # fmt: skip
    found = Outcome(parser("avro", value, schema), encoded(schema, datum))
    assert found.reasons == [None]
    assert found.values == [
        {
            "a": [("x", 1)], "b": identity, "c": moment, "d": Decimal("12.50"), "e": "Y", "f": 1000,
            "g": [[("k", date(2026, 11, 1)), ("n", None)], []], "h": b"\x00\xff",
        }
    ]  # fmt: skip


def test_what_is_not_of_the_avro_schema_is_kept_with_a_reason() -> None:
    good = encoded(PAIR, {"a": 1, "b": "xyz"})
    bad = [
        b"",
        good[:-1],
        good + b"\0",
        b"\xff" * 30,
        good.replace(b"xyz", b"\xff\xfe\xfd"),
        b"\x02\x08x",
        b"\x02\x02\x01",
    ]
    found = Outcome(parser("avro", FLAT, PAIR), good, *bad, good)
    assert found.values == [{"a": 1, "b": "xyz"}, *[None] * len(bad), {"a": 1, "b": "xyz"}]
    assert found.kept[1:-1] == bad
    assert "continue after the datum, at byte 6" in found.reasons[3]


@pytest.mark.parametrize("schema", ['{"type": "record"}', avro("r2"), '{"type": "record", "name": "r", "fields": 7}'])
def test_a_schema_that_avro_does_not_know_is_reported(schema: str) -> None:
    with pytest.raises(InvalidConfig, match="payloadSchema"):
        parser("avro", FLAT, schema)


# --- Arrow ------------------------------------------------------------------------------------------------------------


def stream(found: pa.Table, rows_in_batch: int | None = None, compression: str | None = None) -> bytes:
    out = io.BytesIO()
    with pa.ipc.new_stream(out, found.schema, options=pa.ipc.IpcWriteOptions(compression=compression)) as writer:
        writer.write_table(found, rows_in_batch)
    return out.getvalue()


def test_each_row_of_an_arrow_stream_is_a_row_told_apart_by_its_slot() -> None:
    three = pa.table({"b": ["x", None, "y"], "a": [1, 2, None]})
    found = Outcome(parser("arrow", FLAT), stream(three, 2), stream(three.slice(0, 1), compression="zstd"))
    assert found.values == [{"a": 1, "b": "x"}, {"a": 2, "b": None}, {"a": None, "b": "y"}, {"a": 1, "b": "x"}]
    assert found.slots == [0, 1, 2, 0]
    assert found.table["entry_id"].to_pylist() == [100, 100, 100, 101]


def test_columns_of_arrow_go_by_name_and_those_missing_are_null() -> None:
    other = pa.table({"a": pa.array([1, 2], pa.int16()), "more": [1, 2]})
    found = Outcome(parser("arrow", FLAT), stream(other))
    assert found.values == [{"a": 1, "b": None}, {"a": 2, "b": None}]


@pytest.mark.parametrize(
    ("kind", "column"),
    [
        (spark.LongType(), [1, None]),
        (spark.StructType([spark.StructField("x", spark.LongType(), nullable=False)]), [{"x": 1}, {"x": None}]),
        (spark.ArrayType(spark.StructType([spark.StructField("x", LONG, nullable=False)])), [[], [{"x": None}]]),
    ],
    ids=["at the top", "in a struct", "in an array"],
)  # fmt: skip
def test_nulls_of_arrow_where_none_may_be_make_a_bad_payload(kind: spark.DataType, column: list[Any]) -> None:
    value = spark.StructType([spark.StructField("a", kind, nullable=not isinstance(kind, spark.LongType))])
    found = Outcome(parser("arrow", value), stream(pa.table({"a": column[:1]})), stream(pa.table({"a": column})))
    assert (found.values[0], found.values[1]) == ({"a": column[0]}, None)
    assert "has nulls" in found.reasons[1]


def test_a_null_row_of_arrow_has_no_fields_that_are_missing() -> None:
    inner = spark.StructType([spark.StructField("x", spark.LongType(), nullable=False)])
    found = Outcome(parser("arrow", struct(a=inner)), stream(pa.table({"a": [None, {"x": 1}]})))
    assert found.values == [{"a": None}, {"a": {"x": 1}}]


@pytest.mark.parametrize(
    ("kind", "field", "told"),
    [
        ("json", spark.DayTimeIntervalType(), r"value\.a\[\] is interval day to second, which a payload in json"),
        ("json", spark.VariantType(), r"value\.a\[\] is variant"),
        ("json", spark.MapType(spark.BinaryType(), LONG), r"keys of value\.a\[\] are binary"),
        ("arrow", spark.YearMonthIntervalType(), r"value\.a\[\] is interval year to month"),
        ("arrow", spark.VariantType(), r"value\.a\[\] is variant"),
    ],
)
def test_a_type_that_no_payload_can_have_is_refused_by_name(kind: Any, field: spark.DataType, told: str) -> None:
    schema = struct(value=struct(a=spark.ArrayType(field)))
    with pytest.raises(InvalidConfig, match=told):
        check_value(PayloadOptions(kind, "a INT"), schema)


def test_an_empty_arrow_stream_gives_no_row_and_its_neighbours_theirs() -> None:
    one = pa.table({"a": [1]})
    found = Outcome(parser("arrow", FLAT), stream(one.slice(0, 0)), stream(one), stream(one.schema.empty_table(), None))
    assert found.values == [{"a": 1, "b": None}]
    assert found.table["entry_id"].to_pylist() == [101]
    assert Outcome(parser("arrow", FLAT), stream(one.slice(0, 0))).values == []


def test_what_is_no_arrow_stream_or_does_not_fit_is_kept_in_one_row_without_a_slot() -> None:
    good = stream(pa.table({"a": [1]}))
    twice = pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["a", "a"])
    bad = [b"", b"x", good[:-60], stream(pa.table({"a": ["x"]})), stream(twice), stream(pa.table({"a": [1.5]})),
           stream(pa.table({"b": pa.array([b"\xff"])}))]  # fmt: skip
    found = Outcome(parser("arrow", FLAT), good, *bad, good)
    assert found.slots == [0, *[None] * len(bad), 0]
    assert found.kept[1:-1] == bad
    assert found.table["entry_id"].to_pylist() == list(range(100, 102 + len(bad)))


def test_buffers_of_an_arrow_stream_that_point_beyond_it_are_not_followed() -> None:
    """Arrow trusts the offsets within a stream unless validation is requested."""
    words = pa.array(["ab", "cd", "ef"])
    offsets = pa.array([0, 2, 1 << 30, 6], pa.int32()).buffers()[1]
    wild = pa.StringArray.from_buffers(3, offsets, words.buffers()[2])
    no_text = pa.StringArray.from_buffers(1, pa.array([0, 2], pa.int32()).buffers()[1], pa.py_buffer(b"\xff\xfe"))
    payloads = [stream(pa.table({"b": each})) for each in (wild, no_text)]
    found = Outcome(parser("arrow", FLAT), *payloads, stream(pa.table({"b": words})))
    assert found.kept[:2] == payloads
    assert [value and value["b"] for value in found.values] == [None, None, "ab", "cd", "ef"]


# --- what fails -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "schema", "good"),
    [
        ("json", "x", b"{}"),
        ("avro", PAIR, encoded(PAIR, {"a": 1, "b": None})),
        ("arrow", "x", stream(pa.table({"a": [1]}))),
    ],
)
def test_a_bad_record_that_may_not_be_fails_with_its_ledger_and_entry(kind: Any, schema: str, good: bytes) -> None:
    found = parser(kind, FLAT, schema, "fail")
    found.parse(table(good, good))
    with pytest.raises(InvalidArgument, match=f"^entry 102 of ledger 7 is not {kind}: "):
        found.parse(table(good, good, b"\xff", good, b"\xff", first=100))
    with pytest.raises(InvalidArgument, match="entry 5 of ledger 7"):
        found.parse(table(b"\xff" * 3000, first=5))


def test_raw_payloads_need_no_parser() -> None:
    assert parser_of(PayloadOptions(), struct(payload=spark.BinaryType())) is None
    assert value_ddl(PayloadOptions()) == ""


MANY = {f"c{number}": number for number in range(10_000)}


@pytest.mark.parametrize("kind", ["json", "avro", "arrow"])
def test_a_schema_of_ten_thousand_columns_is_met_and_those_that_were_not_asked_for_are_left_out(kind: str) -> None:
    value = struct(**dict.fromkeys(MANY, LONG))
    fields = [{"name": name, "type": "long"} for name in MANY]
    schema = json.dumps({"type": "record", "name": "r", "fields": fields})
    sink = io.BytesIO()
    row = pa.RecordBatch.from_pylist([MANY])
    with pa.ipc.new_stream(sink, row.schema) as writer:
        writer.write_batch(row)
    payload = {"json": json.dumps(MANY).encode(), "avro": encoded(schema, MANY), "arrow": sink.getvalue()}[kind]
    assert Outcome(parser(kind, value, schema), payload).values == [MANY]
    if kind != "avro":
        found = Outcome(parser(kind, struct(c7=LONG, c10000=LONG)), payload)
        assert found.values == [{"c7": 7, "c10000": None}]


# --- the shape --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["raw", "json", "avro", "arrow"])
@pytest.mark.parametrize("bad", ["keep", "fail"])
@pytest.mark.parametrize("gaps", [False, True])
@pytest.mark.parametrize("metadata", [False, True])
def test_batches_have_exactly_the_columns_that_were_declared(kind: Any, bad: Any, gaps: bool, metadata: bool) -> None:
    schema = PAIR if kind == "avro" else "a BIGINT, b STRING"
    options = ReadOptions(
        LocationOptions("x", None), fail_on_data_loss=not gaps, include_metadata=metadata,
        payload=PayloadOptions() if kind == "raw" else PayloadOptions(kind, schema, bad),
    )  # fmt: skip
    found = None if kind == "raw" else parser(kind, FLAT, schema, bad)
    columns = columns_of(options, value_ddl(options.payload))
    declared = columns.arrow(found.type if found else None)
    good = {"raw": b"x", "json": b'{"a": 1}', "avro": encoded(PAIR, {"a": 1, "b": None}),
            "arrow": stream(pa.table({"a": [1, 2]}))}[kind]  # fmt: skip
    shaper = RowShaper(columns, options, found)
    payloads = (good, good) if bad == "fail" else (good, b"", good)
    for key in ("sets/x.parquet", None):
        batches = list(shaper.rows(EntryRows(table(*payloads), key)))
        assert all(batch.schema.equals(declared, check_metadata=True) for batch in batches)
        for batch in batches:
            batch.validate(full=True)
            assert not any(batch[field.name].null_count for field in declared if not field.nullable)
            if metadata:
                assert set(batch["object"].to_pylist()) == {key}
                assert set(batch["tier"].to_pylist()) == {"archive" if key else "bookies"}
        assert sum(batch.num_rows for batch in batches) == len(payloads) + (2 if kind == "arrow" else 0)
    if gaps:
        batch = shaper.gap(EntryGap(7, 3, 5, "lost", "why"))
        assert batch.schema.equals(declared, check_metadata=True)
        row = batch.to_pylist()[0]
        assert (row["ledger_id"], row["entry_id"]) == (7, 3)
        assert row["gap"] == {"kind": "lost", "first": 3, "last": 5, "reason": "why"}
        assert all(value is None for name, value in row.items() if name not in {"ledger_id", "entry_id", "gap"})


def test_large_tables_are_handed_over_piece_by_piece_and_empty_ones_not_at_all() -> None:
    options = ReadOptions(LocationOptions("x", None))
    shaper = RowShaper(columns_of(options, ""), options, None)
    rows = table(*[bytes(BATCH_BYTES // 4)] * 10)
    batches = list(shaper.rows(EntryRows(rows, None)))
    assert [batch["entry_id"].to_pylist() for batch in batches] == [[at, at + 1, at + 2] for at in (0, 3, 6)] + [[9]]
    assert list(shaper.rows(EntryRows(rows.slice(0, 0), None))) == []
    huge = table(bytes(2 * BATCH_BYTES), b"x")
    assert [batch.num_rows for batch in shaper.rows(EntryRows(huge, None))] == [1, 1]
    nothing = ReadOptions(LocationOptions("x", None), payload=PayloadOptions("arrow", "a BIGINT, b STRING"))
    parsed = RowShaper(columns_of(nothing, "STRUCT<a BIGINT, b STRING>"), nothing, parser("arrow", FLAT))
    assert list(parsed.rows(EntryRows(table(stream(pa.table({"a": pa.array([], pa.int64())}))), None))) == []
