"""Batches of records: planned on the driver, read on executors."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader

from tallybook.core.errors import InvariantViolation
from tallybook.runtime.blocking import LoopThread

from ..columns import check_columns
from ..options import ReadOptions
from ..places import opened
from .planning import cut_records, plan_records, settled_snapshot
from .snapshot import RecordSnapshot
from .stretches import RecordPartition
from .task import read_records

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


class RecordReader(DataSourceReader):
    """Reads records. Travels to executors, so it holds plain values only, and leaves behind what only a plan needs."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._query: ReadOptions | None = options
        # A task has its records in its partition; that they are records is all it has to know.
        self._options = replace(options, snapshot=RecordSnapshot("", ()), records=None)
        self._schema = schema
        check_columns(options, schema)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_query": None}

    def partitions(self) -> list[RecordPartition]:
        """What the tasks read; settles which records are read, once for all of them."""
        if self._query is None:
            raise InvariantViolation("this reader has travelled to a task, which plans nothing")
        with LoopThread("tallybook") as loop:
            return loop.run(_planned(self._query))

    def read(self, partition: RecordPartition) -> Iterator[pa.RecordBatch]:  # type: ignore[override]
        """The records of one partition."""
        return read_records(self._options, self._schema, partition)


async def _planned(options: ReadOptions) -> list[RecordPartition]:
    async with opened(options.place) as place:
        snapshot = await settled_snapshot(place, options)
        plan = await plan_records(place, snapshot.ranges, fail=options.fail_on_data_loss)
        return await cut_records(place, options, plan)
