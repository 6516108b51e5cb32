"""Spark types that payloads of each format can have; other types are refused when a query is planned."""

from __future__ import annotations

from typing import Final

from pyspark.sql import types as spark

from tallybook.core.errors import InvalidConfig

from ..options import PayloadKind

_KEYS: Final = (
    spark.BooleanType, spark.ByteType, spark.ShortType, spark.IntegerType, spark.LongType, spark.FloatType,
    spark.DoubleType, spark.DecimalType, spark.StringType, spark.DateType, spark.TimestampType, spark.TimestampNTZType,
)  # fmt: skip
_LEAVES: Final = {
    "json": (*_KEYS, spark.BinaryType),
    "avro": (*_KEYS, spark.BinaryType, spark.NullType),
    "arrow": (*_KEYS, spark.BinaryType, spark.NullType, spark.DayTimeIntervalType),
}


def check_type(path: str, kind: spark.DataType, payload: PayloadKind) -> None:
    """Check that payloads can have values of a type.

    Args:
        path: name of the field for the message.
        kind: type of the field.
        payload: format of the payloads.

    Raises:
        InvalidConfig: the type is not supported.
    """
    if isinstance(kind, spark.StructType):
        names = [field.name for field in kind.fields]
        for name in names:
            if names.count(name) > 1:
                raise InvalidConfig(f"option payloadSchema: {path} has two fields {name}")
        for field in kind.fields:
            check_type(f"{path}.{field.name}", field.dataType, payload)
    elif isinstance(kind, spark.ArrayType):
        check_type(f"{path}[]", kind.elementType, payload)
    elif isinstance(kind, spark.MapType):
        if not isinstance(kind.keyType, _KEYS):
            raise InvalidConfig(f"option payloadSchema: keys of {path} are {kind.keyType.simpleString()}: use STRING")
        check_type(f"{path}{{}}", kind.valueType, payload)
    elif not isinstance(kind, _LEAVES[payload]):
        raise InvalidConfig(
            f"option payloadSchema: {path} is {kind.simpleString()}, which a payload in {payload} cannot have"
        )
