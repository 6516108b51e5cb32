"""Avro schemas as other programs write them: repeated named types, unions of several types, two schemas."""

import io
import json
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import types as spark

from tallybook.core.errors import InvalidConfig
from tallybook.spark.options import PayloadOptions
from tallybook.spark.payloads.payloads import parser_of, value_ddl


def avro(*types: object) -> str:
    """A record with fields a, b and so on of these types."""
    fields = [{"name": chr(ord("a") + number), "type": kind} for number, kind in enumerate(types)]
    return json.dumps({"type": "record", "name": "r", "fields": fields})


def encoded(schema: str, value: dict[str, Any]) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(json.loads(schema)), value)
    return out.getvalue()


DEBEZIUM = json.dumps({
    "type": "record", "name": "Envelope", "namespace": "shop.orders", "fields": [
        {"name": "before", "default": None, "type": ["null", {"type": "record", "name": "Value", "fields": [
            {"name": "id", "type": "long"},
            {"name": "placed", "type": {"type": "long", "logicalType": "local-timestamp-micros"}},
            {"name": "note", "type": ["null", "string"], "default": None},
        ]}]},
        {"name": "after", "type": ["null", "Value"], "default": None},
        {"name": "source", "type": {"type": "record", "name": "Source", "namespace": "io.debezium", "fields": [
            {"name": "version", "type": "string"}, {"name": "ts_ms", "type": "long"},
        ]}},
        {"name": "op", "type": "string"},
        {"name": "transaction", "type": ["null", {"type": "record", "name": "block", "namespace": "event", "fields": [
            {"name": "id", "type": "string"},
        ]}], "default": None},
    ],
})  # fmt: skip


def spark_type(ddl: str) -> spark.DataType:
    """The Spark type for the DDL of a value, for the types that occur here."""
    if ddl.startswith("STRUCT<"):
        fields, depth, start, inner = [], 0, 0, ddl[len("STRUCT<") : -1]
        for at, character in enumerate(inner + ","):
            depth += (character in "<(") - (character in ">)")
            if character == "," and not depth:
                name, _, kind = inner[start:at].strip().partition(": ")
                fields.append(spark.StructField(name.strip("`"), spark_type(kind)))
                start = at + 1
        return spark.StructType(fields)
    if ddl.startswith("ARRAY<"):
        return spark.ArrayType(spark_type(ddl[len("ARRAY<") : -1]))
    if ddl.startswith("MAP<STRING, "):
        return spark.MapType(spark.StringType(), spark_type(ddl[len("MAP<STRING, ") : -1]))
    return {
        "FLOAT": spark.FloatType(), "DECIMAL(9, 2)": spark.DecimalType(9, 2),
        "BIGINT": spark.LongType(), "STRING": spark.StringType(), "INT": spark.IntegerType(), "VOID": spark.NullType(),
        "BINARY": spark.BinaryType(),
        "TIMESTAMP_LTZ": spark.TimestampType(), "TIMESTAMP_NTZ": spark.TimestampNTZType(), "DOUBLE": spark.DoubleType(),
        "BOOLEAN": spark.BooleanType(), "DATE": spark.DateType(),
    }[ddl]  # fmt: skip


def parsed(schema: str, *payloads: bytes, reader: str = "") -> tuple[list[Any], list[str | None]]:
    """The values of payloads, and what is wrong with those that have none."""
    options = PayloadOptions("avro", schema, "keep", reader)
    kind = spark.StructType([spark.StructField("value", spark_type(value_ddl(options)))])
    parser = parser_of(options, kind)
    assert parser is not None
    entries = {"ledger_id": [7] * len(payloads), "entry_id": range(len(payloads))}
    _, found = parser.parse(pa.table({**entries, "payload": pa.array(payloads, pa.binary())}))
    found["value"].validate(full=True)
    return found["value"].to_pylist(), found["bad_reason"].to_pylist()


def test_the_envelope_of_debezium_becomes_a_value() -> None:
    row = {"id": 7, "placed": datetime.fromisoformat("2026-11-01T01:02:03.000004"), "note": None}
    change = {"before": row, "after": {**row, "note": "gift"}, "source": {"version": "3", "ts_ms": 5}, "op": "u",
              "transaction": {"id": "t"}}  # fmt: skip
    created = {**change, "before": None, "op": "c", "transaction": None}
    values, reasons = parsed(DEBEZIUM, encoded(DEBEZIUM, change), encoded(DEBEZIUM, created))
    assert reasons == [None, None]
    assert values == [change, created]


def test_unions_of_several_types_have_a_field_for_each() -> None:
    union = ["null", "int", "string", {"type": "enum", "name": "E", "symbols": ["x"]},
             {"type": "record", "name": "A", "fields": [{"name": "a", "type": ["null", "string", "bytes"]}]},
             {"type": "record", "name": "B", "fields": [{"name": "a", "type": "int"}]}, "boolean"]  # fmt: skip
    schema = avro(union, "null", ["double", "null", "float"])
    given: list[Any] = [7, "x", ("E", "x"), ("A", {"a": "y"}), ("A", {"a": b"z"}), ("B", {"a": 1}), True, None]
    values, reasons = parsed(schema, *(encoded(schema, {"a": each, "b": None, "c": 1.5}) for each in given))
    assert reasons == [None] * len(given)
    nothing = dict.fromkeys(f"member{at}" for at in range(6))
    assert [value["a"] for value in values] == [
        {**nothing, "member0": 7}, {**nothing, "member1": "x"}, {**nothing, "member2": "x"},
        {**nothing, "member3": {"a": {"member0": "y", "member1": None}}},
        {**nothing, "member3": {"a": {"member0": None, "member1": b"z"}}}, {**nothing, "member4": {"a": 1}},
        {**nothing, "member5": True}, None,
    ]  # fmt: skip
    assert {(value["b"], value["c"]) for value in values} == {(None, 1.5)}


BRANCHES: dict[str, tuple[Any, Any]] = {
    "null": ("null", None), "boolean": ("boolean", True), "int": ("int", 7), "long": ("long", 5_000_000_000),
    "float": ("float", 0.5), "double": ("double", 1e300), "bytes": ("bytes", b"\xff"), "string": ("string", "x"),
    "date": ({"type": "int", "logicalType": "date"}, date(2026, 11, 1)),
    "timestamp": ({"type": "long", "logicalType": "timestamp-micros"}, datetime(2026, 11, 1, 1, 2, 3, 4, UTC)),
    "local": ({"type": "long", "logicalType": "local-timestamp-micros"}, datetime(2026, 11, 1, 1, 2, 3, 4)),  # noqa: DTZ001
    "decimal": ({"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}, Decimal("1.25")),
    "array": ({"type": "array", "items": "int"}, [1, 2]), "map": ({"type": "map", "values": "int"}, [("a", 1)]),
    "record": ({"type": "record", "name": "R", "fields": [{"name": "i", "type": "int"}]}, {"i": 1}),
    "enum": ({"type": "enum", "name": "E", "symbols": ["x"]}, "x"),
    "fixed": ({"type": "fixed", "name": "F", "size": 2}, b"ab"),
    "wrapped": ({"type": "int", "doc": "an int"}, 7),
}  # fmt: skip
"""A type that a union may have, and a value of it."""


SHARED = {"int": "long", "wrapped": "long", "float": "double"}
"""The type that shares a field with the wider one."""


def avro_name(kind: Any) -> str:
    return kind if isinstance(kind, str) else kind.get("name", kind["type"])


@given(st.lists(st.sampled_from(sorted(BRANCHES)), min_size=1, max_size=4, unique=True), st.data())
def test_a_value_gets_to_the_field_of_the_member_that_it_was_written_as(names: list[str], data: st.DataObject) -> None:
    union = [BRANCHES[name][0] for name in names]
    schema = avro(union)
    if len(set(map(avro_name, union))) < len(union):
        with pytest.raises(InvalidConfig, match="twice"):
            value_ddl(PayloadOptions("avro", schema))
        return
    written = data.draw(st.sampled_from(names))
    kind, value = BRANCHES[written]
    branch, body = io.BytesIO(), encoded(avro(kind), {"a": dict(value) if written == "map" else value})
    fastavro.schemaless_writer(branch, "long", names.index(written))
    [row], [reason] = parsed(schema, branch.getvalue() + body)
    assert reason is None
    groups = [SHARED.get(name, name) for name in names if name != "null"]
    if len(set(groups)) > 1 and row["a"] is not None:
        row["a"] = {name: each for name, each in row["a"].items() if each is not None}
        value = {f"member{groups.index(SHARED.get(written, written))}": value}
    assert row["a"] == value


def test_payloads_of_avro_are_read_by_another_schema_than_they_were_written_with() -> None:
    written = avro("int", "string")
    wanted = json.dumps({"type": "record", "name": "r", "fields": [
        {"name": "a", "type": "long"}, {"name": "new", "type": ["null", "string"], "default": None},
    ]})  # fmt: skip
    found = parsed(written, encoded(written, {"a": 5, "b": "dropped"}), reader=wanted)
    assert found == ([{"a": 5, "new": None}], [None])
    impossible = json.dumps({"type": "record", "name": "r", "fields": [{"name": "a", "type": "boolean"}]})
    values, [reason] = parsed(written, encoded(written, {"a": 5, "b": ""}), reader=impossible)
    assert values == [None]
    assert reason is not None
