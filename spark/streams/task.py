"""Task of a query of streams on an executor: from a partition to Arrow batches for Spark."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Collection, Iterator
from contextlib import aclosing
from typing import TYPE_CHECKING

import pyarrow as pa

from tallybook.runtime.blocking.loop_thread import LoopThread

from ..columns import archived_columns, columns_for
from ..ledgers.reading import EntryRows, read_partition
from ..ledgers.row_shaping import RowShaper
from ..locations import LedgerLocation, open_location
from ..options import ReadOptions
from ..payloads.payloads import parser_of
from ..query.gaps import EntryGap
from ..worker import settle_worker
from .bounds_resolution import StreamResolver
from .ranges import PlannedRecordRange, RecordGap, RecordPartition
from .rows import RecordRows

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


class RecordShaper(RowShaper):
    """Builds the Arrow batches of a query of streams."""

    @property
    def needed(self) -> frozenset[str]:
        """The columns that a table of records needs: those it uses, and one by which records are counted."""
        parsed = {"payload", "ledger_id", "entry_id"} if self._parser else set()
        return frozenset({"sequence", *parsed, *self._schema.names})

    def lost(self, gap: RecordGap) -> pa.RecordBatch:
        """A batch with one row that reports a gap, with the position of its first record.

        Raises:
            TallybookError: the query must not have gaps.
        """
        if not self._gaps:
            raise gap.error()
        row = {
            "stream": gap.stream,
            "position": str(gap.at),
            "gap": {"kind": gap.kind, "first": gap.first, "last": gap.last, "reason": gap.reason},
        }
        return pa.RecordBatch.from_pylist([row], schema=self._schema)

    def shaped(self, found: Iterator[pa.Table | RecordGap], object_key: str | None) -> Iterator[pa.RecordBatch]:
        """Batches of records and gaps."""
        for each in found:
            if isinstance(each, RecordGap):
                yield self.lost(each)
            else:
                yield from self.rows(EntryRows(each, object_key))


def read_records(options: ReadOptions, schema: StructType, partition: RecordPartition) -> Iterator[pa.RecordBatch]:
    """The records of a partition in Spark's schema. Opens and closes the location itself.

    Raises:
        TallybookError: records cannot be read. ``DataMissing``, ``StreamGap`` and ``NoSuchStream`` are permanent.
    """
    shaper = RecordShaper(columns_for(options), options, parser_of(options.payload, schema, "row"))
    for gap in partition.missing:
        yield shaper.lost(gap)
    if partition.planned_ranges:
        with LoopThread("tallybook") as loop:
            for found, object_key in loop.iterate(_found(options, shaper.needed, partition), ahead=1):
                yield from shaper.shaped(found, object_key)
                settle_worker()


async def _found(
    options: ReadOptions, needed: Collection[str] | None, partition: RecordPartition
) -> AsyncGenerator[tuple[Iterator[pa.Table | RecordGap], str | None], None]:
    """The records of each table of entries, and the key of its object.

    They are decoded when the task's thread iterates over them: piece by piece, and not on the event loop.
    """
    ranges = [each for each in partition.planned_ranges if isinstance(each, PlannedRecordRange)]
    rows = RecordRows(ranges, needed)
    async with open_location(options.location, partition) as location:
        source = read_partition(
            location, partition, columns=archived_columns(options), whole_gaps=not options.fail_on_data_loss
        )
        async with aclosing(source) as entries:
            async for each in entries:
                if isinstance(each, EntryGap):
                    yield await _lost(location, rows, each), None
                else:
                    yield rows.records(each.table), each.object_key
        yield rows.rest(), None


async def _lost(location: LedgerLocation, rows: RecordRows, gap: EntryGap) -> Iterator[RecordGap]:
    if gap.kind != "trimmed":
        return rows.lost(gap, None)
    return rows.lost(
        gap, await StreamResolver(location).catalog.peek(rows.planned_range(gap.ledger_id, gap.first).stream_id)
    )
