"""JSON as written by Spark's ``to_json`` is read back equal, for every type of JSON payloads.

``tests/integration/spark/test_json_round_trip.py`` checks with Spark that these are the forms of ``to_json``.
"""

import base64
import json
import math
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import types as spark

from tallybook.spark.options import PayloadOptions
from tallybook.spark.payloads.payloads import parser_of

MOMENTS = st.datetimes(datetime.fromisoformat("0001-01-02"), datetime.fromisoformat("9999-12-30"))
LEAVES: dict[spark.DataType, st.SearchStrategy[Any]] = {
    spark.BooleanType(): st.booleans(),
    spark.ByteType(): st.integers(-(2**7), 2**7 - 1),
    spark.ShortType(): st.integers(-(2**15), 2**15 - 1),
    spark.IntegerType(): st.integers(-(2**31), 2**31 - 1),
    spark.LongType(): st.integers(-(2**63), 2**63 - 1),
    spark.FloatType(): st.floats(width=32),
    spark.DoubleType(): st.floats(),
    spark.DecimalType(38, 10): st.decimals(-(10**27), 10**27, allow_nan=False, allow_infinity=False, places=10),
    spark.StringType(): st.text(st.characters(exclude_categories=["Cs"]), max_size=20),
    spark.BinaryType(): st.binary(max_size=20),
    spark.DateType(): st.dates(date(1, 1, 2), date(9999, 12, 30)),
    spark.TimestampType(): MOMENTS.map(lambda moment: moment.replace(tzinfo=UTC)),
    spark.TimestampNTZType(): MOMENTS,
}  # fmt: skip
KEYS = [kind for kind in LEAVES if not isinstance(kind, spark.BinaryType)]


def struct_of(kinds: list[spark.DataType]) -> spark.StructType:
    return spark.StructType([spark.StructField(f"f{number}", kind) for number, kind in enumerate(kinds)])


KINDS: st.SearchStrategy[spark.DataType] = st.recursive(
    st.sampled_from(list(LEAVES)),
    lambda inner: (
        inner.map(spark.ArrayType)
        | st.builds(spark.MapType, st.sampled_from(KEYS), inner)
        | st.lists(inner, min_size=1, max_size=3).map(struct_of)
    ),
    max_leaves=5,
)
SCHEMAS = st.lists(KINDS, min_size=1, max_size=4).map(struct_of)


def values_of(kind: spark.DataType) -> st.SearchStrategy[Any]:
    """Values of a type; a struct as the list of its fields, a map as one of pairs."""
    if isinstance(kind, spark.StructType):
        return st.tuples(*(st.none() | values_of(field.dataType) for field in kind.fields)).map(list)
    if isinstance(kind, spark.ArrayType):
        return st.lists(st.none() | values_of(kind.elementType), max_size=3)
    if isinstance(kind, spark.MapType):
        items = st.tuples(LEAVES[kind.keyType], st.none() | values_of(kind.valueType))
        return st.lists(items, max_size=3, unique_by=lambda item: key_text(item[0]))
    return LEAVES[kind]


def text(value: Any, kind: spark.DataType) -> str:
    """A value as ``to_json`` writes it: fields that are null are left out, others are not."""
    if value is None:
        return "null"
    if isinstance(kind, spark.StructType):
        fields = zip(kind.fields, value, strict=True)
        there = [f'"{field.name}":{text(each, field.dataType)}' for field, each in fields if each is not None]
        return f"{{{','.join(there)}}}"
    if isinstance(kind, spark.ArrayType):
        return f"[{','.join(text(each, kind.elementType) for each in value)}]"
    if isinstance(kind, spark.MapType):
        return f"{{{','.join(f'{json.dumps(key_text(key))}:{text(each, kind.valueType)}' for key, each in value)}}}"
    return leaf_text(value)


def leaf_text(value: Any) -> str:
    if isinstance(value, float) and not math.isfinite(value):
        return '"NaN"' if math.isnan(value) else f'"{"-" if value < 0 else ""}Infinity"'
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, bytes):
        return json.dumps(base64.b64encode(value).decode())
    if isinstance(value, date):
        return json.dumps(value.isoformat().replace("+00:00", "Z"))
    return json.dumps(value, ensure_ascii=False)


def key_text(value: Any) -> str:
    """A key of a map: text; days and microseconds for dates and times."""
    if isinstance(value, datetime):
        aware = value if value.tzinfo else value.replace(tzinfo=UTC)
        difference = aware - datetime(1970, 1, 1, tzinfo=UTC)
        return str((difference.days * 86_400 + difference.seconds) * 1_000_000 + difference.microseconds)
    if isinstance(value, date):
        return str((value - date(1970, 1, 1)).days)
    return value if isinstance(value, str) else leaf_text(value).strip('"')


def normal(found: Any, kind: spark.DataType) -> Any:
    """The result of a parser, in the forms of ``values_of``; numbers as text, since NaN is not equal to itself."""
    if found is None:
        return None
    if isinstance(kind, spark.StructType):
        fields = found if isinstance(found, list) else [found[field.name] for field in kind.fields]
        return [normal(each, field.dataType) for field, each in zip(kind.fields, fields, strict=True)]
    if isinstance(kind, spark.ArrayType):
        return [normal(each, kind.elementType) for each in found]
    if isinstance(kind, spark.MapType):
        return [(normal(key, kind.keyType), normal(each, kind.valueType)) for key, each in found]
    return repr(found) if isinstance(found, float) else found


@given(st.data(), SCHEMAS)
def test_a_value_in_the_forms_of_to_json_comes_back_equal(data: st.DataObject, schema: spark.StructType) -> None:
    rows = data.draw(st.lists(values_of(schema), min_size=1, max_size=5))
    payloads = [text(row, schema).encode() for row in rows]
    whole = spark.StructType([spark.StructField("value", schema)])
    parser = parser_of(PayloadOptions("json", "as the type"), whole)
    assert parser is not None
    table = pa.table({
        "ledger_id": [1] * len(rows), "entry_id": range(len(rows)), "payload": pa.array(payloads, pa.binary()),
    })  # fmt: skip
    _, columns = parser.parse(table)
    assert columns["bad_reason"].to_pylist() == [None] * len(rows)
    columns["value"].validate(full=True)
    found = [normal(value, schema) for value in columns["value"].to_pylist()]
    assert found == [normal(row, schema) for row in rows]
