"""What an Avro schema is called in Spark's DDL."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from tallybook.core.errors import InvalidConfig

_PRIMITIVE: Final = {
    "boolean": "BOOLEAN",
    "int": "INT",
    "long": "BIGINT",
    "float": "FLOAT",
    "double": "DOUBLE",
    "bytes": "BINARY",
    "string": "STRING",
    "enum": "STRING",
    "fixed": "BINARY",
}

_MOST_DIGITS: Final = 38
"""Of a decimal of Spark."""

_TIMES: Final = {
    "date": "DATE",
    "timestamp-millis": "TIMESTAMP_LTZ",
    "timestamp-micros": "TIMESTAMP_LTZ",
}

LOGICAL: Final = frozenset({"decimal", *_TIMES})
"""Logical types that are more than what they stand for. A uuid is text, in Spark."""


def ddl_of(schema: Any) -> str:
    """The type of a record.

    Raises:
        InvalidConfig: it is no record, refers to itself, or has a type that Spark has not.
    """
    if not isinstance(schema, Mapping) or schema.get("type") != "record":
        raise InvalidConfig("option payloadSchema: an Avro schema of a record is wanted")
    try:
        return _ddl(schema)
    except RecursionError:
        raise _strange("its types lie too deep in one another") from None


def _ddl(schema: Any) -> str:
    if isinstance(schema, list):
        others = [each for each in schema if each != "null"]
        if len(others) != 1:
            raise _strange(f"a union is of null and one type, not {schema!r}")
        return _ddl(others[0])
    if isinstance(schema, str):
        if schema not in _PRIMITIVE:
            raise _strange(f"type {schema!r} is not known, or has a name that is defined elsewhere")
        return _PRIMITIVE[schema]
    if not isinstance(schema, Mapping):
        raise _strange(f"{schema!r} is not a type")
    return _of_mapping(schema)


def _of_mapping(schema: Mapping[str, Any]) -> str:
    kind, logical = schema.get("type"), schema.get("logicalType")
    if kind == "record":
        fields = schema.get("fields")
        if not isinstance(fields, list) or not fields or not all(isinstance(each, Mapping) for each in fields):
            raise _strange("a record has fields")
        return f"STRUCT<{', '.join(map(_field, fields))}>"
    if kind == "array":
        return f"ARRAY<{_ddl(schema.get('items'))}>"
    if kind == "map":
        return f"MAP<STRING, {_ddl(schema.get('values'))}>"
    if kind == "fixed" and (type(schema.get("size")) is not int or schema["size"] < 1):
        # Of values of no bytes, a payload of ten bytes has more than anybody can count.
        raise _strange(f"a fixed type has at least one byte, not {schema.get('size')!r}")
    if logical == "decimal":
        return _decimal(schema.get("precision"), schema.get("scale", 0))
    if isinstance(logical, str) and logical in _TIMES:
        return _TIMES[logical]
    return _ddl(kind)


def _decimal(precision: Any, scale: Any) -> str:
    fits = type(precision) is int and type(scale) is int and scale >= 0
    if not fits or not max(scale, 1) <= precision <= _MOST_DIGITS:
        raise _strange(f"a decimal has up to {_MOST_DIGITS} digits, not {precision!r} with {scale!r} behind the point")
    return f"DECIMAL({precision}, {scale})"


def _field(field: Mapping[str, Any]) -> str:
    return f"`{field.get('name')}`: {_ddl(field.get('type'))}"


def _strange(what: str) -> InvalidConfig:
    return InvalidConfig(f"option payloadSchema: {what}")
