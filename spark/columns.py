"""Columns of the tables, as Spark DDL and as Arrow schema, which must agree exactly."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from tallybook.core.errors import InvalidConfig

from .options import ReadOptions
from .payloads.payloads import check_value, value_ddl

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

ENTRY_DDL: Final = (
    "ledger_id BIGINT NOT NULL, entry_id BIGINT NOT NULL, written_at TIMESTAMP_LTZ NOT NULL, crc32c BIGINT NOT NULL, "
    "payload BINARY NOT NULL"
)
_TIME: Final = pa.timestamp("us", "UTC")

ENTRY_COLUMNS: Final = ("ledger_id", "entry_id", "written_at", "crc32c", "payload")
"""The same as in archive objects (``archive/format/schema.py``), so that both can be read together."""

_TYPES: Final = {
    "ledger_id": ("BIGINT", pa.int64()),
    "entry_id": ("BIGINT", pa.int64()),
    "written_at": ("TIMESTAMP_LTZ", _TIME),
    "crc32c": ("BIGINT", pa.int64()),
    "payload": ("BINARY", pa.binary()),
    "tier": ("STRING", pa.string()),
    "object": ("STRING", pa.string()),
    "gap": (
        "STRUCT<kind: STRING, first: BIGINT, last: BIGINT, reason: STRING>",
        pa.struct([("kind", pa.string()), ("first", pa.int64()), ("last", pa.int64()), ("reason", pa.string())]),
    ),
    "slot": ("INT", pa.int32()),
    "stream": ("STRING", pa.string()),
    "position": ("STRING", pa.string()),
    "sequence": ("BIGINT", pa.int64()),
    "timestamp": ("TIMESTAMP_LTZ", _TIME),
    "key": ("BINARY", pa.binary()),
    "txid": ("BIGINT", pa.int64()),
    "segment": ("BIGINT", pa.int64()),
    "timestamp_ms": ("BIGINT", pa.int64()),
    "dedup_id": ("BINARY", pa.binary()),
    "row": ("INT", pa.int32()),
    "bad_payload": ("BINARY", pa.binary()),
    "bad_reason": ("STRING", pa.string()),
}

KEYS: Final = {"ledger_id", "entry_id"}
"""Columns of entries that are never null, not even in a row that reports a gap."""
_RECORD_KEYS: Final = {"stream", "position"}
"""The same for records."""

_RECORD: Final = (
    ("stream", False), ("position", False), ("sequence", False), ("timestamp", True), ("key", True), ("txid", True),
    ("payload", False),
)  # fmt: skip
_RECORD_METADATA: Final = (
    ("segment", False), ("ledger_id", False), ("entry_id", False), ("slot", False), ("timestamp_ms", False),
    ("dedup_id", True), ("written_at", False),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class TableColumns:
    """The columns of one query in order, each with its nullability."""

    names: tuple[tuple[str, bool], ...]
    value_ddl: str = ""
    """Type of column ``value`` if payloads are parsed."""

    @property
    def ddl(self) -> str:
        """The columns as Spark DDL."""
        return ", ".join(
            f"{name} {self.value_ddl if name == 'value' else _TYPES[name][0]}{'' if nullable else ' NOT NULL'}"
            for name, nullable in self.names
        )

    def only(self, chosen: Sequence[str]) -> TableColumns:
        """The columns of option ``columns``, in its order.

        Raises:
            InvalidConfig: one of them does not exist, or a column is missing without which rows are misunderstood.
        """
        known = dict(self.names)
        unknown = [name for name in chosen if name not in known]
        if unknown:
            raise InvalidConfig(f"option columns: there is no column {unknown[0]}; there are {', '.join(known)}")
        for needed, why in (("gap", "failOnDataLoss=false"), ("value", "payloadFormat")):
            if needed in known and needed not in chosen:
                raise InvalidConfig(f"option columns: with {why}, name column {needed}, too")
        if "bad_reason" in known and not {"bad_reason", "bad_payload"}.intersection(chosen):
            # Else a payload that cannot be parsed looks like one that is null.
            raise InvalidConfig(
                "option columns: with badRecords=keep, name column bad_reason or bad_payload, or set badRecords=fail"
            )
        return replace(self, names=tuple((name, known[name]) for name in chosen))

    def arrow(self, value: pa.DataType | None = None) -> pa.Schema:
        """The columns as an Arrow schema; ``value`` is the type of column ``value``."""
        return pa.schema(
            [
                pa.field(name, value if name == "value" and value is not None else _TYPES[name][1], nullable)
                for name, nullable in self.names
            ]
        )


def columns_of(options: ReadOptions, value_ddl: str) -> TableColumns:
    """The columns of a query of entries.

    Args:
        value_ddl: type of parsed payloads; empty: payloads are raw.
    """
    gaps = not options.fail_on_data_loss
    names: list[tuple[str, bool]] = [
        (name, gaps and name not in KEYS) for name in ENTRY_COLUMNS if name != "payload" or not value_ddl
    ]
    if value_ddl:
        if options.payload.kind == "arrow":
            names.append(("slot", True))
        names.append(("value", True))
        if options.payload.bad_records == "keep":
            names += [("bad_payload", True), ("bad_reason", True)]
    if options.include_metadata:
        names += [("tier", gaps), ("object", True)]
    if gaps:
        names.append(("gap", True))
    return TableColumns(tuple(names), value_ddl)


def record_columns_of(options: ReadOptions, value_ddl: str) -> TableColumns:
    """The columns of a query of records.

    Args:
        value_ddl: as for ``columns_of``.
    """
    gaps = not options.fail_on_data_loss
    names: list[tuple[str, bool]] = []
    for name, nullable in (*_RECORD, *(_RECORD_METADATA if options.include_metadata else ())):
        if name == "payload" and value_ddl:
            names += [("row", True)] if options.payload.kind == "arrow" else []
            names.append(("value", True))
            if options.payload.bad_records == "keep":
                names += [("bad_payload", True), ("bad_reason", True)]
        else:
            names.append((name, nullable or (gaps and name not in _RECORD_KEYS)))
    if options.include_metadata:
        names += [("tier", gaps), ("object", True)]
    if gaps:
        names.append(("gap", True))
    return TableColumns(tuple(names), value_ddl)


def columns_for(options: ReadOptions) -> TableColumns:
    """The columns of a query of entries, or of records.

    Raises:
        InvalidConfig: the schema of payloads has a type that Spark lacks; or as ``TableColumns.only``.
    """
    columns = record_columns_of if options.of_streams else columns_of
    found = columns(options, value_ddl(options.payload))
    return found.only(options.columns) if options.columns else found


def archived_columns(options: ReadOptions) -> frozenset[str]:
    """The columns of archive objects that a query needs."""
    needed = frozenset(name for name, _ in columns_for(options).names)
    if options.of_streams or options.payload.kind != "raw":
        needed |= {"payload"}
    return needed.intersection(ENTRY_COLUMNS)


def check_columns(options: ReadOptions, schema: StructType) -> None:
    """Check that the schema that Spark requests is the one that the options define.

    Raises:
        InvalidConfig: it is a different one, or has a type that payloads cannot have.
    """
    wanted = columns_for(options)
    if [field.name for field in schema.fields] != [name for name, _ in wanted.names]:
        raise InvalidConfig(f"the columns of this table are: {wanted.ddl}; choose some of them with option columns")
    check_value(options.payload, schema)
