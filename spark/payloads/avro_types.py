"""Types and values of Avro as Spark has them.

A union of null and one other type is that type, nullable; one of int and long is BIGINT, one of float and double
DOUBLE. Any other union is a struct with one field for each member, ``member0`` and so on, as of Spark's ``from_avro``;
but int and long share the field of the first of them, as BIGINT, and float and double do as DOUBLE: fastavro does not
tell which of them a value was written as.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import date, datetime
from decimal import Decimal
from typing import Any, Final, TypeAlias

from tallybook.core.errors import InvalidConfig

Convert: TypeAlias = Callable[[Any], Any]
"""Makes the value that the DDL of a schema describes of what fastavro gives for it."""

_PRIMITIVE: Final = {
    "null": "VOID",
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

_MAX_DIGITS: Final = 38
"""Of a decimal of Spark."""

_TIMES: Final = {
    "date": "DATE",
    "timestamp-millis": "TIMESTAMP_LTZ",
    "timestamp-micros": "TIMESTAMP_LTZ",
    "local-timestamp-millis": "TIMESTAMP_NTZ",
    "local-timestamp-micros": "TIMESTAMP_NTZ",
}
_LOGICAL: Final = frozenset({"decimal", *_TIMES})
"""Logical types that are more than what they stand for. A uuid is text, in Spark."""

_WIDER: Final = {"int": "long", "float": "double"}
"""The type that holds the values of both, where a union has both."""
_NAMED: Final = frozenset({"record", "error", "enum", "fixed"})
_CLASSES: Final[Mapping[str, type]] = {
    "boolean": bool, "int": int, "long": int, "float": float, "double": float, "string": str, "bytes": bytes,
    "array": list, "map": dict, "date": date, "decimal": Decimal,
}  # fmt: skip
"""Of values that fastavro gives, by type and logical type; moments are told apart by their time zone."""


def expanded(schema: Any) -> Any:
    """A schema with its named types in place of their names, and without logical types that Spark has no name for.

    Raises:
        InvalidConfig: it is not a schema, or fastavro is not installed.
    """
    try:
        import fastavro  # noqa: PLC0415 (needed for Avro only)
    except ImportError as error:
        raise InvalidConfig("payloads in Avro need fastavro: pip install 'tallybook[spark]'") from error
    try:
        return fastavro.schema.expand_schema(known_to_spark(schema))
    except RecursionError as error:
        raise _strange("its types lie too deep in one another") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise _strange(f"it is not an Avro schema: {error!r}") from error
    except (fastavro.schema.SchemaParseException, fastavro.schema.UnknownType) as error:
        raise _strange(f"it is not an Avro schema: {error}") from error


def schema_of(text: str) -> Any:
    """A schema out of an option.

    Raises:
        InvalidConfig: it is not JSON.
    """
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _strange(f"it is not JSON: {error}") from error


def ddl_of(schema: Any) -> str:
    """The type of a record.

    Raises:
        InvalidConfig: it is no record, refers to itself, or has a type that Spark has not.
    """
    if not isinstance(schema, Mapping) or schema.get("type") != "record":
        raise InvalidConfig("option payloadSchema: an Avro schema of a record is wanted")
    try:
        return _ddl(expanded(schema))
    except RecursionError:
        raise _strange("its types lie too deep in one another") from None


def converter_of(schema: Any) -> Convert | None:
    """What makes values of an expanded schema those of its DDL; ``None`` where they are that already.

    Values of named types in unions are pairs of the type's name and the value (``return_named_type`` of fastavro).
    """
    if isinstance(schema, list):
        return _converter_of_union(schema)
    if not isinstance(schema, Mapping):
        return None
    kind = schema.get("type")
    if kind == "record":
        fields = {field["name"]: converter_of(field["type"]) for field in schema["fields"]}
        changed = {name: convert for name, convert in fields.items() if convert is not None}
        if not changed:
            return None
        return lambda value: {**value, **{name: convert(value[name]) for name, convert in changed.items()}}
    if kind == "array":
        element = converter_of(schema["items"])
        return None if element is None else lambda value: [element(each) for each in value]
    if kind == "map":
        item = converter_of(schema["values"])
        return None if item is None else lambda value: {key: item(each) for key, each in value.items()}
    return converter_of(kind) if isinstance(kind, list | Mapping) else None


def _converter_of_union(schema: list[Any]) -> Convert | None:
    members = _members(schema)
    if len(members) == 1:
        [only] = members.values()
        inner, named = converter_of(only), _name_of(only) is not None
        if not named and inner is None:
            return None

        def of_one(value: Any) -> Any:
            bare = value[1] if named and value is not None else value
            return bare if inner is None or bare is None else inner(bare)

        return of_one
    if not members:
        return None
    fields = [
        (name, _fits(each), converter_of(each), _name_of(each) is not None) for name, each in members.items()
    ]  # fmt: skip

    def of_many(value: Any) -> Any:
        if value is None:
            return None
        for name, fits, convert, named in fields:
            if fits(value):
                bare = value[1] if named else value
                return {name: bare if convert is None else convert(bare)}
        raise TypeError(f"{value!r:.50} is of no member of its union")

    return of_many


def _fits(schema: Any) -> Callable[[Any], bool]:
    """Whether a value is of this member of a union."""
    name = _name_of(schema)
    if name is not None:
        return lambda value: isinstance(value, tuple) and value[0] == name
    kind, logical = (schema.get("type"), schema.get("logicalType")) if isinstance(schema, Mapping) else (schema, None)
    if isinstance(kind, Mapping):
        return _fits(kind)
    if isinstance(logical, str) and "timestamp" in logical:
        local = logical.startswith("local-")
        return lambda value: isinstance(value, datetime) and (value.tzinfo is None) == local
    wanted = _CLASSES[str(logical if logical in _CLASSES else kind)]
    return lambda value: type(value) is wanted


def _name_of(schema: Any) -> str | None:
    """The name of a named type."""
    kind = schema.get("type") if isinstance(schema, Mapping) else None
    return schema["name"] if isinstance(kind, str) and kind in _NAMED else None


def _members(union: list[Any]) -> dict[str, Any]:
    """The members of a union, by their fields: no two of them have values of one class of Python.

    Raises:
        InvalidConfig: it has two members of one type, or a union.
    """
    found: dict[str, Any] = {}
    field_of: dict[str, str] = {}
    seen = set[str]()
    for each in union:
        bare = _bare(each)
        kind = bare.get("type") if isinstance(bare, Mapping) else bare
        if not isinstance(kind, str):
            raise _strange("a union is a member of a union" if isinstance(kind, list) else f"{each!r} is not a type")
        if (identity := _name_of(bare) or kind) in seen:
            raise _strange(f"a union has {identity!r} twice")
        seen.add(identity)
        if bare == "null":
            continue
        name = f"member{len(seen) - ('null' in seen) - 1}"
        if bare == kind:
            name = field_of.setdefault(_WIDER.get(kind, kind), name)
        found[name] = _WIDER.get(kind, kind) if name in found else bare
    return found


def _bare(schema: Any) -> Any:
    """The name of a type of which the schema says no more that matters here; else the schema."""
    while isinstance(schema, Mapping) and "logicalType" not in schema:
        inner = schema.get("type")
        if not isinstance(inner, Mapping) and not (isinstance(inner, str) and inner in _PRIMITIVE.keys() - _NAMED):
            break
        schema = inner
    return schema


def _ddl(schema: Any) -> str:
    if isinstance(schema, list):
        members = _members(schema)
        if len(members) <= 1:
            return next(map(_ddl, members.values()), _PRIMITIVE["null"])
        return f"STRUCT<{', '.join(f'`{name}`: {_ddl(each)}' for name, each in members.items())}>"
    if isinstance(schema, str):
        if schema not in _PRIMITIVE:
            raise _strange(f"type {schema!r} is not known, or refers to itself")
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
    if not fits or not max(scale, 1) <= precision <= _MAX_DIGITS:
        raise _strange(f"a decimal has up to {_MAX_DIGITS} digits, not {precision!r} with {scale!r} behind the point")
    return f"DECIMAL({precision}, {scale})"


def _field(field: Mapping[str, Any]) -> str:
    name = field.get("name")
    if not isinstance(name, str) or not name or "`" in name:
        raise _strange(f"{name!r} is no name of a field")
    return f"`{name}`: {_ddl(field.get('type'))}"


def known_to_spark(schema: Any) -> Any:
    """An Avro schema without the logical types that have no name in Spark: what they stand for comes as it is."""
    if isinstance(schema, list):
        return [known_to_spark(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        name: known_to_spark(value)
        for name, value in schema.items()
        if name != "logicalType" or (isinstance(value, str) and value in _LOGICAL)
    }


def _strange(what: str) -> InvalidConfig:
    return InvalidConfig(f"option payloadSchema: {what}")
