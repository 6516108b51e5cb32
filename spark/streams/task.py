"""What a task of a query of streams does on an executor, from its partition to batches that Spark takes."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from typing import TYPE_CHECKING

import pyarrow as pa

from tallybook.runtime.blocking import LoopThread

from ..columns import columns_for
from ..gaps import Gap
from ..options import ReadOptions
from ..payloads import parser_of
from ..places import LedgerPlace, opened
from ..reading import Rows, read_partition
from ..shaping import Shaper
from .rows import RecordRows
from .settling import Streams
from .stretches import RecordGap, RecordPartition, RecordStretch

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


class RecordShaper(Shaper):
    """Makes the batches of a query of streams."""

    def lost(self, gap: RecordGap) -> pa.RecordBatch:
        """A gap: a row with the position of what comes first in it.

        Raises:
            TallybookError: there must not be any.
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
        """Records, and the gaps between them."""
        for each in found:
            if isinstance(each, RecordGap):
                yield self.lost(each)
            else:
                yield from self.rows(Rows(each, object_key))


def read_records(options: ReadOptions, schema: StructType, partition: RecordPartition) -> Iterator[pa.RecordBatch]:
    """The records of a partition as Spark wants them, by a task that opens and closes all that it needs.

    Raises:
        TallybookError: they cannot be had; ``DataMissing``, ``StreamGap`` and ``NoSuchStream``: ever.
    """
    shaper = RecordShaper(columns_for(options), options, parser_of(options.payload, schema, "row"))
    for gap in partition.missing:
        yield shaper.lost(gap)
    if partition.stretches:
        with LoopThread("tallybook") as loop:
            yield from loop.iterate(_shaped(options, shaper, partition))


async def _shaped(
    options: ReadOptions, shaper: RecordShaper, partition: RecordPartition
) -> AsyncGenerator[pa.RecordBatch, None]:
    rows = RecordRows([each for each in partition.stretches if isinstance(each, RecordStretch)])
    async with opened(options.place, partition) as place:
        source = read_partition(place, partition, whole_gaps=not options.fail_on_data_loss)
        async with aclosing(source) as entries:
            async for each in entries:
                if isinstance(each, Gap):
                    found, key = await _lost(place, rows, each), None
                else:
                    found, key = rows.records(each.table), each.object_key
                for batch in shaper.shaped(found, key):
                    yield batch
        for batch in shaper.shaped(rows.rest(), None):
            yield batch


async def _lost(place: LedgerPlace, rows: RecordRows, gap: Gap) -> Iterator[RecordGap]:
    if gap.kind != "trimmed":
        return rows.lost(gap, None)
    return rows.lost(gap, await Streams(place).catalog.peek(rows.stretch(gap.ledger_id, gap.first).stream_id))
