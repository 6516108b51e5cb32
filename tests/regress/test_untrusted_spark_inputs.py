"""Invalid options, offsets, schemas and patterns of a query are refused at once with a clear message."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tallybook.core.errors import InvalidArgument, InvalidConfig
from tallybook.spark.ledgers.offset import StreamOffset
from tallybook.spark.options import PayloadOptions, read_options
from tallybook.spark.payloads.avro_types import ddl_of
from tallybook.spark.payloads.payloads import parser_of
from tallybook.spark.query.bounds import RecordBounds
from tallybook.spark.streams.offsets import RecordOffset

ENDLESS: Any = json.loads("1e999")
STREAM = "5f0c9a21" * 4


def test_an_offset_with_a_number_without_an_end_is_refused():
    with pytest.raises(InvalidArgument):
        StreamOffset.parse({"v": 1, "cluster": "a", "seen": "", "within": [ENDLESS], "ledgers": []})
    with pytest.raises(InvalidArgument):
        StreamOffset.parse({"v": 1, "cluster": "a", "seen": "", "within": [], "ledgers": [[ENDLESS]]})
    reached = {"name": "a", "at": "1-0-0@5f0c9a21", "sequence": ENDLESS}
    with pytest.raises(InvalidArgument):
        RecordOffset.parse({"v": 1, "cluster": "a", "streams": {STREAM: reached}})


@pytest.mark.parametrize(
    "more",
    [{"payloadformat": "avro", "payloadschema": "[" * 5_000}, {"password": "\udcff"}],
    ids=["schema", "password"],
)
def test_an_option_that_cannot_be_understood_is_refused(more: dict[str, str]):
    with pytest.raises(InvalidConfig, match=r"option (payloadSchema|password)"):
        read_options({"metadata": "memory:", **more})


def test_a_number_among_separators_that_only_text_knows_is_a_number():
    """``str.strip`` accepts more kinds of space than ``int``."""
    assert read_options({"metadata": "memory:", "startingentry": " 16\x1e"}).first_entry == 16


@pytest.mark.parametrize("logical", [[], {}])
def test_a_logical_type_that_is_no_name_is_refused_or_left_out(logical: Any):
    field = {"name": "a", "type": {"type": "int", "logicalType": logical}}
    assert ddl_of({"type": "record", "name": "r", "fields": [field]}) == "STRUCT<`a`: INT>"


@pytest.mark.parametrize("size", [0, -1, None, "4", True])
def test_values_of_no_bytes_are_refused_before_a_payload_has_endlessly_many(size: Any):
    items = {"type": "fixed", "name": "nothing", "size": size}
    field = {"name": "a", "type": {"type": "array", "items": items}}
    with pytest.raises(InvalidConfig, match="at least one byte"):
        ddl_of({"type": "record", "name": "r", "fields": [field]})


def test_a_schema_too_deep_in_itself_is_refused():
    schema: Any = "int"
    for _ in range(2_000):
        schema = {"type": "record", "name": "r", "fields": [{"name": "a", "type": schema}]}
    with pytest.raises(InvalidConfig, match="too deep"):
        ddl_of(schema)


def test_an_avro_schema_that_is_no_json_python_can_hold_is_refused():
    from pyspark.sql.types import StructField, StructType  # noqa: PLC0415 (slow to load)

    table = StructType([StructField("value", StructType([]))])
    with pytest.raises(InvalidConfig):
        parser_of(PayloadOptions("avro", "[" * 5_000), table)


def test_a_pattern_of_many_any_parts_is_reported_at_once():
    bounds = RecordBounds("default", None, "/".join(["**"] * 60) + "/x")
    assert not bounds.fits("a/a/a/a/a/a/a/a")
    assert bounds.fits("a/a/a/a/a/a/a/x")


@pytest.mark.parametrize(
    ("pattern", "name", "fits"),
    [
        ("a/**", "a", True), ("a/**", "a/b/c", True), ("**/c", "c", True), ("**/c", "a/b/c", True),
        ("**/c", "a/c/b", False),
        ("a/*/c", "a/b/c", True), ("a/*/c", "a/b/b/c", False), ("a/**/c/**", "a/b/c/d", True), ("*", "a/b", False),
        ("**", "a/b", True), ("a/**/**/b", "a/b", True), ("a", "b", False), ("[ab]/?", "b/c", True),
    ],
)  # fmt: skip
def test_a_pattern_fits_as_before(pattern: str, name: str, fits: bool):
    assert RecordBounds("default", None, pattern).fits(name) is fits
