"""Avro types that Spark must map as declared: unions, nulls and local timestamps."""

import io
import json
from datetime import datetime

import fastavro
import pytest

pytestmark = pytest.mark.nightly

SCHEMA = json.dumps({"type": "record", "name": "R", "fields": [
    {"name": "union", "type": ["null", "int", "string", {"type": "record", "name": "A", "fields": [
        {"name": "x", "type": "long"}]}]},
    {"name": "nothing", "type": "null"},
    {"name": "again", "type": ["null", "A"]},
    {"name": "local", "type": {"type": "long", "logicalType": "local-timestamp-millis"}},
]})  # fmt: skip


def encoded(value):
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(json.loads(SCHEMA)), value)
    return out.getvalue()


def test_unions_nulls_and_local_times_arrive_as_spark_types(written, load):
    rest = {"nothing": None, "again": {"x": 1}, "local": datetime.fromisoformat("2026-11-01T01:02:03")}
    ledger = written.ledger([encoded({"union": each, **rest}) for each in (7, "text", ("A", {"x": 2}), None)])
    table = load(written.metadata, ledger=ledger, payloadFormat="avro", payloadSchema=SCHEMA)
    rows = table.selectExpr("to_json(value) AS value", "bad_reason", "typeof(value.local) AS local").collect()
    assert {(row.bad_reason, row.local) for row in rows} == {(None, "timestamp_ntz")}
    unions = [{"member0": 7}, {"member1": "text"}, {"member2": {"x": 2}}, None]
    for row, union in zip(rows, unions, strict=True):
        value = json.loads(row.value)
        assert value.pop("local").startswith("2026-11-01T01:02:03")
        assert value == {"again": {"x": 1}, **({} if union is None else {"union": union})}
