"""Maps Avro types and values to Spark.

A union of null and one other type is that type, nullable; a union of int and long is BIGINT, one of float and double
DOUBLE. Any other union is a struct with a field per member, ``member0`` and so on, as in Spark's ``from_avro``; but int
and long share the field of the first of them as BIGINT, and float and double as DOUBLE, since fastavro does not report
which of them a value was written as.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import date, datetime
from decimal import Decimal
from typing import Any, Final, TypeAlias

from tallybook.core.errors import InvalidConfig
from tallybook.runtime.extras import NeedsExtra

Convert: TypeAlias = Callable[[Any], Any]
"""Converts a value from fastavro to the type in the DDL of the schema."""

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
"""Maximum precision of a Spark decimal."""

_TIMES: Final = {
    "date": "DATE",
    "timestamp-millis": "TIMESTAMP_LTZ",
    "timestamp-micros": "TIMESTAMP_LTZ",
    "local-timestamp-millis": "TIMESTAMP_NTZ",
    "local-timestamp-micros": "TIMESTAMP_NTZ",
}
_LOGICAL: Final = frozenset({"decimal", *_TIMES})
"""Logical types that map to a Spark type of their own. A uuid is a string in Spark."""

_WIDER: Final = {"int": "long", "float": "double"}
"""The common type if a union has both."""
_NAMED: Final = frozenset({"record", "error", "enum", "fixed"})
_CLASSES: Final[Mapping[str, type]] = {
    "boolean": bool, "int": int, "long": int, "float": float, "double": float, "string": str, "bytes": bytes,
    "array": list, "map": dict, "date": date, "decimal": Decimal,
}  # fmt: skip
"""Python classes of fastavro's values, by type and logical type; timestamps are distinguished by their time zone."""


def expanded(schema: Any) -> Any:
    """Replace names of types by their definitions, and remove logical types that Spark lacks.

    Raises:
        InvalidConfig: it is not a valid schema, or fastavro is not installed.
    """
    with NeedsExtra("a payload in Avro"):
        import fastavro  # noqa: PLC0415 (needed for Avro only)
    try:
        return fastavro.schema.expand_schema(known_to_spark(schema))
    except RecursionError as error:
        raise _invalid_schema("its types are nested too deeply") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise _invalid_schema(f"it is not an Avro schema: {error!r}") from error
    except (fastavro.schema.SchemaParseException, fastavro.schema.UnknownType) as error:
        raise _invalid_schema(f"it is not an Avro schema: {error}") from error


def schema_of(text: str) -> Any:
    """Parse the schema in an option.

    Raises:
        InvalidConfig: it is not JSON.
    """
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _invalid_schema(f"it is not JSON: {error}") from error


def ddl_of(schema: Any) -> str:
    """Spark DDL of a record schema.

    Raises:
        InvalidConfig: it is not a record, is recursive, or has a type that Spark lacks.
    """
    if not isinstance(schema, Mapping) or schema.get("type") != "record":
        raise InvalidConfig("option payloadSchema: the Avro schema must be a record")
    try:
        return _ddl(expanded(schema))
    except RecursionError:
        raise _invalid_schema("its types are nested too deeply") from None


def converter_of(schema: Any) -> Convert | None:
    """The converter from values of an expanded schema to the types of its DDL; ``None``: no conversion is needed.

    Values of named types in unions are pairs of type name and value (``return_named_type`` of fastavro).
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
        raise TypeError(f"{value!r:.50} matches no member of its union")

    return of_many


def _fits(schema: Any) -> Callable[[Any], bool]:
    """A test whether a value is of this member of a union."""
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
    """The members of a union by field name; no two of them have values of the same Python class.

    Raises:
        InvalidConfig: two members have the same type, or a member is a union.
    """
    found: dict[str, Any] = {}
    field_of: dict[str, str] = {}
    seen = set[str]()
    for each in union:
        bare = _bare(each)
        kind = bare.get("type") if isinstance(bare, Mapping) else bare
        if not isinstance(kind, str):
            raise _invalid_schema(
                "a union is a member of a union" if isinstance(kind, list) else f"{each!r} is not a type"
            )
        if (identity := _name_of(bare) or kind) in seen:
            raise _invalid_schema(f"a union has {identity!r} twice")
        seen.add(identity)
        if bare == "null":
            continue
        name = f"member{len(seen) - ('null' in seen) - 1}"
        if bare == kind:
            name = field_of.setdefault(_WIDER.get(kind, kind), name)
        found[name] = _WIDER.get(kind, kind) if name in found else bare
    return found


def _bare(schema: Any) -> Any:
    """Reduce a schema to its type name if it has no other relevant attributes."""
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
            raise _invalid_schema(f"type {schema!r} is unknown or recursive")
        return _PRIMITIVE[schema]
    if not isinstance(schema, Mapping):
        raise _invalid_schema(f"{schema!r} is not a type")
    return _of_mapping(schema)


def _of_mapping(schema: Mapping[str, Any]) -> str:
    kind, logical = schema.get("type"), schema.get("logicalType")
    if kind == "record":
        fields = schema.get("fields")
        if not isinstance(fields, list) or not fields or not all(isinstance(each, Mapping) for each in fields):
            raise _invalid_schema("a record must have fields")
        return f"STRUCT<{', '.join(map(_field, fields))}>"
    if kind == "array":
        return f"ARRAY<{_ddl(schema.get('items'))}>"
    if kind == "map":
        return f"MAP<STRING, {_ddl(schema.get('values'))}>"
    if kind == "fixed" and (type(schema.get("size")) is not int or schema["size"] < 1):
        # A ten-byte payload could contain billions of values of zero bytes.
        raise _invalid_schema(f"a fixed type must have at least one byte, not {schema.get('size')!r}")
    if logical == "decimal":
        return _decimal(schema.get("precision"), schema.get("scale", 0))
    if isinstance(logical, str) and logical in _TIMES:
        return _TIMES[logical]
    return _ddl(kind)


def _decimal(precision: Any, scale: Any) -> str:
    fits = type(precision) is int and type(scale) is int and scale >= 0
    if not fits or not max(scale, 1) <= precision <= _MAX_DIGITS:
        raise _invalid_schema(f"a decimal has up to {_MAX_DIGITS} digits, not {precision!r} with scale {scale!r}")
    return f"DECIMAL({precision}, {scale})"


def _field(field: Mapping[str, Any]) -> str:
    name = field.get("name")
    if not isinstance(name, str) or not name or "`" in name:
        raise _invalid_schema(f"{name!r} is not a valid field name")
    return f"`{name}`: {_ddl(field.get('type'))}"


def known_to_spark(schema: Any) -> Any:
    """An Avro schema without the logical types that Spark lacks, which become their base types."""
    if isinstance(schema, list):
        return [known_to_spark(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        name: known_to_spark(value)
        for name, value in schema.items()
        if name != "logicalType" or (isinstance(value, str) and value in _LOGICAL)
    }


def _invalid_schema(what: str) -> InvalidConfig:
    return InvalidConfig(f"option payloadSchema: {what}")
