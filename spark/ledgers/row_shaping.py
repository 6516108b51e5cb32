"""Converts rows in the archive's format to Spark's schema: names, order, types and nulls."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import pyarrow as pa

from tallybook.core.limits import MIB

from ..columns import TableColumns
from ..options import ReadOptions
from ..payloads.payloads import Parser
from ..query.gaps import EntryGap
from .reading import EntryRows

BATCH_BYTES: Final = MIB
"""Approximate size of an Arrow batch passed to Spark."""

_ARCHIVE: Final = "archive"
_BOOKIES: Final = "bookies"


class RowShaper:
    """Builds the Arrow batches of one query.

    Args:
        parser: parses payloads; ``None``: they stay raw.
    """

    def __init__(self, columns: TableColumns, options: ReadOptions, parser: Parser | None) -> None:
        self._schema = columns.arrow(parser.type if parser else None)
        self._parser = parser
        self._gaps = not options.fail_on_data_loss

    def rows(self, rows: EntryRows) -> Iterator[pa.RecordBatch]:
        """Batches of entries."""
        used = rows.table.column_names if self._parser else set(rows.table.column_names) & set(self._schema.names)
        size = sum(rows.table[name].nbytes for name in used) + rows.table.num_rows * self._added_bytes(rows.object_key)
        step = max(1, rows.table.num_rows * BATCH_BYTES // max(1, size))
        for at in range(0, rows.table.num_rows, step):
            part = rows.table.slice(at, step)
            # A table of one chunk is used as it is: combining would copy it.
            whole = all(column.num_chunks == 1 for column in part.columns)
            yield from self._batches(part if whole else part.combine_chunks(), rows.object_key)

    def _added_bytes(self, object_key: str | None) -> int:
        """Bytes of a row in the columns that are not read."""
        added = {"tier": _ARCHIVE if object_key else _BOOKIES, "object": object_key or ""}
        return sum(4 + len(text) for name, text in added.items() if name in self._schema.names)

    def _batches(self, table: pa.Table, object_key: str | None) -> Iterator[pa.RecordBatch]:
        found: dict[str, pa.Array | pa.ChunkedArray]
        if self._parser is not None:
            table, found = self._parser.parse(table)
        else:
            found = {}
        if not table.num_rows:
            return
        columns = [self._column(field, table, found, object_key) for field in self._schema]
        yield from pa.Table.from_arrays(columns, schema=self._schema).to_batches()

    def _column(
        self, field: pa.Field, table: pa.Table, found: dict[str, pa.Array], object_key: str | None
    ) -> pa.Array | pa.ChunkedArray:
        if field.name in found:
            return found[field.name]
        if field.name == "tier":
            return pa.repeat(pa.scalar(_ARCHIVE if object_key else _BOOKIES, field.type), table.num_rows)
        if field.name == "object":
            return pa.repeat(pa.scalar(object_key, field.type), table.num_rows)
        if field.name == "gap":
            return pa.nulls(table.num_rows, field.type)
        return table[field.name].cast(field.type)

    def gap(self, gap: EntryGap) -> pa.RecordBatch:
        """A batch with one row that reports a gap, with the id of its first entry."""
        row = {
            "ledger_id": gap.ledger_id,
            "entry_id": gap.first,
            "gap": {"kind": gap.kind, "first": gap.first, "last": gap.last, "reason": gap.reason},
        }
        return pa.RecordBatch.from_pylist([row], schema=self._schema)
