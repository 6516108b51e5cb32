"""Batches of ``format("tallybook")``: planned on the driver, read on executors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from tallybook.core.errors import InvalidConfig
from tallybook.runtime.blocking import LoopThread

from .columns import columns_for
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

    def partitions(self) -> list[InputPartition]:
        """One."""
        return [InputPartition(0)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """All of its rows."""
        with LoopThread("tallybook") as loop:
            yield from loop.run(read_table(self._options)).to_batches()


class EntryReader(DataSourceReader):
    """Reads entries. Travels to executors, so it holds plain values only."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        wanted = columns_for(options)
        if [field.name for field in schema.fields] != [name for name, _ in wanted.names]:
            raise InvalidConfig(f"the columns of this table are: {wanted.ddl}; choose some of them with select()")

    def partitions(self) -> list[EntryPartition]:
        """What the tasks read; settles which entries are read, once for all of them."""
        with LoopThread("tallybook") as loop:
            return loop.run(self._planned())

    async def _planned(self) -> list[EntryPartition]:
        async with opened(self._options.place) as place:
            snapshot, known, gaps = await settle(place, self._options)
            found = await cut(place, self._options, snapshot, known)
        return found + ([EntryPartition((), gaps=tuple(gaps))] if gaps else [])

    def read(self, partition: EntryPartition) -> Iterator[pa.RecordBatch]:  # type: ignore[override]
        """The rows of one partition."""
        return read_rows(self._options, self._schema, partition)
