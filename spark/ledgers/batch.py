"""Batch readers of entries and metadata tables: planned on the driver, read on executors."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader

from tallybook.runtime.blocking.loop_thread import LoopThread

from ..batch_reader import PlannedReader
from ..columns import archived_columns, columns_for
from ..locations import open_location
from ..options import ReadOptions
from ..payloads.payloads import parser_of
from ..query.gaps import EntryGap
from ..query.partitions import EntryPartition
from ..worker import settle_worker
from .planning import cut, resolve_snapshot
from .reading import EntryRows, read_partition
from .row_shaping import RowShaper
from .tables import read_table

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


class TableReader(DataSourceReader):
    """Reads a metadata table on one executor."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options

    def partitions(self) -> list[EntryPartition]:
        """One partition."""
        with LoopThread("tallybook") as loop:
            return [loop.run(_whole(self._options))]

    def read(self, partition: EntryPartition) -> Iterator[pa.RecordBatch]:  # type: ignore[override]
        """All rows of the table."""
        with LoopThread("tallybook") as loop:
            yield from loop.run(read_table(self._options, partition.cluster_id)).to_batches()


class EntryReader(PlannedReader[EntryPartition]):
    """Reads entries."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        # The ledgers of a task are in its partition; the snapshot, with all ledgers, is not sent to tasks.
        super().__init__(options, replace(options, snapshot=None, ledgers=None), schema)

    async def _planned(self, query: ReadOptions) -> list[EntryPartition]:
        async with open_location(query.location) as location:
            snapshot, known, gaps = await resolve_snapshot(location, query)
            found = await cut(location, query, snapshot, known)
        # At least one: without partitions, Spark runs a task with a partition of another class.
        rest = EntryPartition((), gaps=tuple(gaps), cluster_id=snapshot.cluster_id)
        return found + ([rest] if gaps or not found else [])

    def read(self, partition: EntryPartition) -> Iterator[pa.RecordBatch]:  # type: ignore[override]
        """The rows of one partition."""
        return read_rows(self._options, self._schema, partition)


def read_rows(options: ReadOptions, schema: StructType, partition: EntryPartition) -> Iterator[pa.RecordBatch]:
    """The rows of a partition in Spark's schema. Opens and closes the location itself.

    Raises:
        TallybookError: entries cannot be read. ``DataMissing`` and ``NoSuchLedger`` are permanent.
    """
    shaper = RowShaper(columns_for(options), options, parser_of(options.payload, schema))
    with LoopThread("tallybook") as loop:
        # Shaped in this thread, while the loop reads on. One item ahead, because it may be a whole row group.
        for found in loop.iterate(_found(options, partition), ahead=1):
            settle_worker()
            if not isinstance(found, EntryGap):
                yield from shaper.rows(found)
            elif options.fail_on_data_loss:
                raise found.error()
            else:
                yield shaper.gap(found)


async def _found(options: ReadOptions, partition: EntryPartition) -> AsyncGenerator[EntryRows | EntryGap, None]:
    async with open_location(options.location, partition) as location:
        rows = read_partition(
            location, partition, columns=archived_columns(options), whole_gaps=not options.fail_on_data_loss
        )
        async with aclosing(rows):
            async for found in rows:
                yield found


async def _whole(options: ReadOptions) -> EntryPartition:
    async with open_location(options.location) as location:
        return EntryPartition((), cluster_id=location.cluster_id)
