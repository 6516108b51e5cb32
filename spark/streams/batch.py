"""Batch reader of records: planned on the driver, read on executors."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa

from ..batch_reader import PlannedReader
from ..locations import open_location
from ..options import ReadOptions
from ..query.record_snapshot import RecordSnapshot
from .planning import cut_records, plan_records, resolve_record_snapshot
from .ranges import RecordPartition
from .task import read_records

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


class RecordReader(PlannedReader[RecordPartition]):
    """Reads records."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        # A task has its ranges in its partition; the empty snapshot only marks the query as one of records.
        super().__init__(options, replace(options, snapshot=RecordSnapshot("", ()), records=None), schema)

    def read(self, partition: RecordPartition) -> Iterator[pa.RecordBatch]:  # type: ignore[override]
        """The records of one partition."""
        return read_records(self._options, self._schema, partition)

    async def _planned(self, query: ReadOptions) -> list[RecordPartition]:
        async with open_location(query.location) as location:
            snapshot = await resolve_record_snapshot(location, query)
            plan = await plan_records(location, snapshot.ranges, fail=query.fail_on_data_loss)
            return await cut_records(location, query, plan)
