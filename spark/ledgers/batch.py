"""Batches of ``format("tallybook")``: planned on the driver, read on executors."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader

from tallybook.core.errors import InvariantViolation
from tallybook.runtime.blocking import LoopThread

from .columns import check_columns
from .options import ReadOptions
from .places import opened
from .plan import EntryPartition
from .planning import cut, settle
from .tables import read_table
from .task import read_rows

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


class TableReader(DataSourceReader):
    """Reads a table of metadata, on one executor."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options

    def partitions(self) -> list[EntryPartition]:
        """One."""
        with LoopThread("tallybook") as loop:
            return [loop.run(_whole(self._options))]

    def read(self, partition: EntryPartition) -> Iterator[pa.RecordBatch]:  # type: ignore[override]
        """All of its rows."""
        with LoopThread("tallybook") as loop:
            yield from loop.run(read_table(self._options, partition.cluster_id)).to_batches()


class EntryReader(DataSourceReader):
    """Reads entries. Travels to executors, so it holds plain values only, and leaves behind what only a plan needs."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._query: ReadOptions | None = options
        # Each task has its own ledgers, in its partition: a snapshot names all of them.
        self._options = replace(options, snapshot=None, ledgers=None)
        self._schema = schema
        check_columns(options, schema)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_query": None}

    def partitions(self) -> list[EntryPartition]:
        """What the tasks read; settles which entries are read, once for all of them."""
        if self._query is None:
            raise InvariantViolation("this reader has travelled to a task, which plans nothing")
        with LoopThread("tallybook") as loop:
            return loop.run(_planned(self._query))

    def read(self, partition: EntryPartition) -> Iterator[pa.RecordBatch]:  # type: ignore[override]
        """The rows of one partition."""
        return read_rows(self._options, self._schema, partition)


async def _whole(options: ReadOptions) -> EntryPartition:
    async with opened(options.place) as place:
        return EntryPartition((), cluster_id=place.cluster_id)


async def _planned(options: ReadOptions) -> list[EntryPartition]:
    async with opened(options.place) as place:
        snapshot, known, gaps = await settle(place, options)
        found = await cut(place, options, snapshot, known)
    # One even if there is nothing to read: in place of none, Spark sends a task something that is no partition of ours.
    rest = EntryPartition((), gaps=tuple(gaps), cluster_id=snapshot.cluster_id)
    return found + ([rest] if gaps or not found else [])
