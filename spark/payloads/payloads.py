"""Parses payloads to values: JSON, Avro or Arrow, with a schema that the query gives.

    json    one JSON object; text in UTF-8, with values in the forms of ``json_values.py``.
    avro    one datum in Avro's binary encoding, without a header.
    arrow   an Arrow IPC stream: one row per row of the stream, numbered in column ``slot``. Columns match by name.

A payload that cannot be parsed has no value; its bytes are in ``bad_payload`` and the reason in ``bad_reason``.
"""

from __future__ import annotations

import io
import re
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import pyarrow as pa

from tallybook.core.errors import InvalidArgument

from ..options import PayloadOptions
from .avro_types import converter_of, ddl_of, expanded, known_to_spark, schema_of
from .json_values import json_decoder, json_key, json_leaf
from .values import Leaf, built, plain

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

Parsed: TypeAlias = tuple[pa.Table, dict[str, pa.Array]]

MAX_REASON_CHARACTERS: Final = 200

_TIMESTAMP: Final = re.compile(
    r"""(?P<quoted>`[^`]*`|'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")"""
    r"""|\bTIMESTAMP\b(?=\s*(?:$|[,>)]|NOT\s+NULL\b|COMMENT\b|DEFAULT\b))""",
    re.IGNORECASE | re.DOTALL,
)
"""TIMESTAMP as a type, followed by the end or an attribute of a field; before a colon or a type it is a field name."""


class _BadPayloadError(Exception):
    """A payload cannot be parsed. Internal to this module."""


def value_ddl(options: PayloadOptions) -> str:
    """The type of column ``value``; empty: payloads stay raw.

    Raises:
        InvalidConfig: the schema has a type that Spark lacks.
    """
    if options.kind == "raw":
        return ""
    if options.kind == "avro":
        return ddl_of(schema_of(options.reader_schema or options.schema))
    return f"STRUCT<{with_time_zone(options.schema)}>"


def with_time_zone(ddl: str) -> str:
    """Replace type ``TIMESTAMP`` by ``TIMESTAMP_LTZ``, independent of the session's setting."""
    return _TIMESTAMP.sub(lambda found: found[0] if found["quoted"] else "TIMESTAMP_LTZ", ddl)


def check_value(options: PayloadOptions, schema: StructType) -> None:
    """Check that payloads can have values of these types.

    Raises:
        InvalidConfig: a type is not supported; the message names the field.
    """
    if options.kind != "raw":
        from .value_types import check_type  # noqa: PLC0415 (only needed for parsing)

        check_type("value", schema["value"].dataType, options.kind)


def parser_of(options: PayloadOptions, schema: StructType, rows: str = "slot") -> Parser | None:
    """The parser of payloads; ``None``: they stay raw.

    Args:
        schema: schema of the table as Spark has parsed it.
        rows: name of the column that numbers the rows of a payload.

    Raises:
        InvalidConfig: fastavro is not installed, or does not accept the schema.
    """
    if options.kind == "raw":
        return None
    from pyspark.sql.pandas.types import to_arrow_type  # noqa: PLC0415 (only needed for parsing)

    wanted = to_arrow_type(schema["value"].dataType, timezone="UTC")
    if options.kind == "arrow":
        return ArrowParser(wanted, options, rows)
    if options.kind == "json":
        return RowParser(wanted, options, partial(_json, json_decoder(wanted)), json_leaf, json_key)
    return RowParser(wanted, options, _avro(options), plain, plain)


class Parser:
    """Parses the payloads of a table.

    Args:
        wanted: Arrow type of the values, a struct.
    """

    def __init__(self, wanted: pa.DataType, options: PayloadOptions) -> None:
        self.type = wanted
        self._fails = options.bad_records == "fail"
        self._kind = options.kind

    def parse(self, table: pa.Table) -> Parsed:
        """The table with one row per value, and the additional columns.

        Raises:
            InvalidArgument: a payload cannot be parsed, and ``badRecords`` is ``fail``.
        """
        raise NotImplementedError

    def _columns(
        self, table: pa.Table, values: pa.Array, payloads: Sequence[bytes | None], reasons: Sequence[str | None]
    ) -> dict[str, pa.Array]:
        bad = next((at for at, reason in enumerate(reasons) if reason), None)
        if self._fails and bad is not None:
            ledger_id, entry_id = table["ledger_id"][bad].as_py(), table["entry_id"][bad].as_py()
            raise InvalidArgument(f"entry {entry_id} of ledger {ledger_id} is not {self._kind}: {reasons[bad]}")
        kept = [payload if reason else None for payload, reason in zip(payloads, reasons, strict=True)]
        return {
            "value": values,
            "bad_payload": pa.array(kept, pa.binary()),
            "bad_reason": pa.array(reasons, pa.string()),
        }


class RowParser(Parser):
    """Parses payloads with one value each.

    Args:
        decode: decodes a payload; raises ``_BadPayloadError``.
        leaf, key: see ``values.built``.
    """

    def __init__(
        self, wanted: pa.DataType, options: PayloadOptions, decode: Callable[[bytes], Any], leaf: Leaf, key: Leaf
    ) -> None:
        super().__init__(wanted, options)
        self._decode = decode
        self._leaf = leaf
        self._key = key

    def parse(self, table: pa.Table) -> Parsed:
        """One row per payload."""
        payloads = table["payload"].to_pylist()
        values: list[Any] = []
        reasons: list[str | None] = []
        for payload in payloads:
            try:
                values.append(self._decode(payload))
                reasons.append(None)
            except _BadPayloadError as error:
                values.append(None)
                reasons.append(_short(error))
        return table, self._columns(table, self._array(values, reasons), payloads, reasons)

    def _array(self, values: list[Any], reasons: list[str | None]) -> pa.Array:
        try:
            return self._typed(values)
        except (pa.ArrowException, TypeError, ValueError, OverflowError):
            pass  # some value has the wrong type: find it below
        for at, value in enumerate(values):
            try:
                self._typed([value])
            except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
                values[at], reasons[at] = None, _short(error)
        return self._typed(values)

    def _typed(self, values: list[Any]) -> pa.Array:
        return built(values, self.type, self._leaf, self._key)


class ArrowParser(Parser):
    """Parses payloads with a table each.

    Args:
        rows: name of the column that numbers its rows.
    """

    def __init__(self, wanted: pa.DataType, options: PayloadOptions, rows: str) -> None:
        super().__init__(wanted, options)
        self._rows_column = rows

    def parse(self, table: pa.Table) -> Parsed:
        """One row per row of a payload; one row for a payload that cannot be parsed."""
        payloads = table["payload"].to_pylist()
        rows: list[int] = []
        slots: list[int | None] = []
        values: list[pa.Array] = [pa.nulls(0, self.type)]
        reasons: list[str | None] = []
        for at, payload in enumerate(payloads):
            try:
                found, reason = self._rows(payload), None
            except _BadPayloadError as error:
                found, reason = pa.nulls(1, self.type), _short(error)
            values.append(found)
            rows += [at] * len(found)
            slots += [None] if reason else range(len(found))
            reasons += [reason] * len(found)
        # Drop the payload: ``take`` would copy it for each of its rows.
        table = table.drop_columns(["payload"]).take(pa.array(rows, pa.int64()))
        columns = self._columns(table, pa.concat_arrays(values), [payloads[at] for at in rows], reasons)
        return table, {**columns, self._rows_column: pa.array(slots, pa.int32())}

    def _rows(self, payload: bytes) -> pa.Array:
        try:
            with pa.ipc.open_stream(payload) as stream:
                table = stream.read_all()
            # Arrow trusts the stream's metadata and would follow an offset out of bounds.
            table.validate(full=True)
            # A dict: searching ten thousand columns one by one would take minutes.
            names: list[str] = table.column_names
            places = {name: at for at, name in enumerate(names)}
            if len(places) < len(names):
                seen = Counter(names)
                twice = [field.name for field in self.type if seen[field.name] > 1]
                if twice:
                    raise _BadPayloadError(f"it has two columns {twice[0]}")
            columns = [
                table.column(places[field.name]).cast(field.type)
                if field.name in places
                else pa.nulls(len(table), field.type)
                for field in self.type
            ]
            # Nested fields were checked by the cast.
            for field, column in zip(self.type, columns, strict=True):
                if column.null_count and not field.nullable:
                    raise _BadPayloadError(f"column {field.name} has nulls, and is NOT NULL")
            found = pa.Table.from_arrays(columns, schema=pa.schema(list(self.type))).to_struct_array().combine_chunks()
        except (pa.ArrowException, OSError, ValueError, KeyError) as error:
            raise _BadPayloadError(str(error)) from error
        return found


def _json(decode: Callable[[str], Any], payload: bytes) -> Any:
    try:
        found = decode(payload.decode())
    except UnicodeDecodeError as error:
        raise _BadPayloadError(f"it is not UTF-8 from byte {error.start} on") from error
    except (ValueError, RecursionError) as error:
        raise _BadPayloadError(f"it is not JSON: {error}") from error
    if found is not None and not isinstance(found, dict):
        raise _BadPayloadError(f"expected a JSON object, not a {type(found).__name__}")
    return found


def _avro(options: PayloadOptions) -> Callable[[bytes], Any]:
    schemas = [known_to_spark(schema_of(each)) for each in (options.schema, options.reader_schema) if each]
    convert = converter_of([expanded(each) for each in schemas][-1])
    import fastavro  # noqa: PLC0415 (``expanded`` has checked that it is installed)

    parsed = [fastavro.parse_schema(each) for each in schemas]

    def decode(payload: bytes) -> Any:
        source = io.BytesIO(payload)
        try:
            found = fastavro.schemaless_reader(source, parsed[0], parsed[-1], return_named_type=True)
            value = found if convert is None else convert(found)
        # fastavro raises many kinds of errors for bytes that do not match the schema.
        except (
            ValueError, EOFError, IndexError, KeyError, TypeError, OverflowError, MemoryError,
            fastavro.read.SchemaResolutionError,
        ) as error:  # fmt: skip
            raise _BadPayloadError(f"it is not of the Avro schema: {error!r}") from error
        if source.tell() != len(payload):
            raise _BadPayloadError(f"its {len(payload)} bytes continue after the datum, at byte {source.tell()}")
        return value

    return decode


def _short(error: Exception) -> str:
    return " ".join(str(error).split())[:MAX_REASON_CHARACTERS] or type(error).__name__
