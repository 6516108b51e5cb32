"""Rows written by Spark's to_json are read back equal, for every type of JSON payloads: one large sample.

``tests/unit/test_spark_json_forms.py`` tries many values in the same forms, without Spark.
"""

import math
from datetime import UTC, date, datetime
from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql import types as spark_types

from tallybook.spark.options import PayloadOptions
from tallybook.spark.payloads.payloads import parser_of

pytestmark = pytest.mark.nightly

# to_json writes milliseconds, and its years have four digits.
MOMENTS = st.datetimes(datetime.fromisoformat("0001-01-02"), datetime.fromisoformat("9999-12-30")).map(
    lambda moment: moment.replace(microsecond=moment.microsecond // 1000 * 1000)
)
LEAVES = {
    spark_types.BooleanType(): st.booleans(),
    spark_types.ByteType(): st.integers(-(2**7), 2**7 - 1),
    spark_types.ShortType(): st.integers(-(2**15), 2**15 - 1),
    spark_types.IntegerType(): st.integers(-(2**31), 2**31 - 1),
    spark_types.LongType(): st.integers(-(2**63), 2**63 - 1),
    spark_types.FloatType(): st.floats(width=32),
    spark_types.DoubleType(): st.floats(),
    spark_types.DecimalType(38, 10): st.decimals(allow_nan=False, allow_infinity=False, places=10, min_value=-(10**27),
                                                 max_value=10**27),
    spark_types.StringType(): st.text(st.characters(exclude_categories=["Cs"]), max_size=20),
    spark_types.BinaryType(): st.binary(max_size=20).map(bytearray),
    spark_types.DateType(): st.dates(date(1, 1, 2), date(9999, 12, 30)),
    spark_types.TimestampType(): MOMENTS.map(lambda moment: moment.replace(tzinfo=UTC)),
    spark_types.TimestampNTZType(): MOMENTS,
}  # fmt: skip
KEYS = (spark_types.StringType(), spark_types.LongType(), spark_types.BooleanType(), spark_types.DecimalType(38, 10),
        spark_types.DateType())  # fmt: skip


def nullable(values):
    return st.none() | values


FIELDS = {f"leaf{number}": (kind, nullable(values)) for number, (kind, values) in enumerate(LEAVES.items())}
FIELDS |= {
    f"array{number}": (spark_types.ArrayType(kind), nullable(st.lists(nullable(values), max_size=3)))
    for number, (kind, values) in enumerate(LEAVES.items())
}
FIELDS |= {
    f"map{number}": (
        spark_types.MapType(kind, spark_types.LongType()),
        nullable(st.dictionaries(LEAVES[kind], nullable(LEAVES[spark_types.LongType()]), max_size=3)),
    )
    for number, kind in enumerate(KEYS)
}
SCHEMA = spark_types.StructType([spark_types.StructField(name, kind) for name, (kind, _) in FIELDS.items()])


def told(value):
    """A value as text for comparison: NaN is not equal to itself."""
    if isinstance(value, dict):
        return sorted((told(key), told(each)) for key, each in value.items())
    if isinstance(value, list):
        return [told(each) for each in value]
    if isinstance(value, float):
        return "nan" if math.isnan(value) else repr(value)
    if isinstance(value, Decimal):
        return f"{value.normalize():f}"
    return repr(bytes(value)) if isinstance(value, bytearray) else repr(value)


@given(st.lists(st.tuples(*(values for _, values in FIELDS.values())), min_size=100, max_size=200))
@settings(max_examples=1, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
def test_what_to_json_writes_comes_back_equal(spark, rows):
    # Python's datetimes of a session are made of what Arrow gives, so that no time zone of this machine comes into it.
    frame = spark.createDataFrame(rows, SCHEMA)
    payloads = [row.payload.encode() for row in frame.select(F.to_json(F.struct("*")).alias("payload")).collect()]
    whole = spark_types.StructType([spark_types.StructField("value", SCHEMA)])
    parser = parser_of(PayloadOptions("json", "as the type"), whole)
    table = pa.table({
        "ledger_id": [1] * len(payloads), "entry_id": range(len(payloads)), "payload": pa.array(payloads, pa.binary()),
    })  # fmt: skip
    _, columns = parser.parse(table)
    assert columns["bad_reason"].null_count == len(payloads), columns["bad_reason"].drop_null()[0]
    for row, value in zip(rows, columns["value"].to_pylist(), strict=True):
        for name, given_value in zip(FIELDS, row, strict=True):
            found = dict(value[name]) if name.startswith("map") and value[name] is not None else value[name]
            assert told(found) == told(given_value), name
