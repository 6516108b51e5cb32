"""Batch reader of records: planned on the driver, read on executors."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader

from tallybook.core.errors import InvariantViolation
from tallybook.runtime.blocking.loop_thread import LoopThread

from ..columns import check_columns
from ..locations import open_location
from ..options import ReadOptions
from ..query.record_snapshot import RecordSnapshot
from .planning import cut_records, plan_records, resolve_record_snapshot
from .ranges import RecordPartition
from .task import read_records

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


class RecordReader(DataSourceReader):
    """Reads records. It is pickled to executors, so it has plain values only, and drops what only planning needs."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._query: ReadOptions | None = options
        # A task has its ranges in its partition; the empty snapshot only marks the query as one of records.
        self._options = replace(options, snapshot=RecordSnapshot("", ()), records=None)
        self._schema = schema
        check_columns(options, schema)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_query": None}

    def partitions(self) -> list[RecordPartition]:
        """The partitions of the query; resolves which records are read, once for all tasks."""
        if self._query is None:
            raise InvariantViolation("a reader in a task cannot plan")
        with LoopThread("tallybook") as loop:
            return loop.run(_planned(self._query))

    def read(self, partition: RecordPartition) -> Iterator[pa.RecordBatch]:  # type: ignore[override]
        """The records of one partition."""
        return read_records(self._options, self._schema, partition)


async def _planned(options: ReadOptions) -> list[RecordPartition]:
    async with open_location(options.place) as place:
        snapshot = await resolve_record_snapshot(place, options)
        plan = await plan_records(place, snapshot.ranges, fail=options.fail_on_data_loss)
        return await cut_records(place, options, plan)
