"""``format("tallybook")``: ledgers as a table that Spark reads and writes.

    spark.dataSource.register(TallybookDataSource)
    spark.read.format("tallybook").option("metadata", URI).option("ledger", 7).load()

Filters are not pushed down, on purpose: PySpark 4.3 keeps the reader of a filtered query for the next one on the same
DataFrame, which then gets the rows of the first. Bounds are options: startingEntry, endingTime and so on.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from tallybook.core.errors import InvalidConfig
from tallybook.runtime.blocking import LoopThread

from .options import ReadOptions, read_options, write_options
from .places import opened
from .plan import EntryPartition
from .planning import cut, settle
from .sink import LedgerStreamWriter, LedgerWriter
from .stream import LedgerStreamReader
from .tables import TABLES, read_table
from .task import columns_for, read_rows

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

NAME = "tallybook"


class TallybookDataSource(DataSource):
    """Ledgers, and what is known of them. docs/spark.md lists the options."""

    @classmethod
    def name(cls) -> str:
        """What ``format`` is given."""
        return NAME

    def schema(self) -> str:
        """The columns, in Spark's DDL."""
        options = read_options(self.options)
        return TABLES[options.table].ddl if options.table != "entries" else columns_for(options).ddl

    def reader(self, schema: StructType) -> DataSourceReader:
        """A batch: entries, or one of the tables of metadata."""
        options = read_options(self.options)
        if options.table != "entries":
            return TableReader(options)
        return EntryReader(options, schema)

    def streamReader(self, schema: StructType) -> LedgerStreamReader:
        """Ledgers as they close."""
        return LedgerStreamReader(read_options(self.options), schema)

    def writer(self, schema: StructType, overwrite: bool) -> LedgerWriter:
        """Rows become entries of new ledgers, which come into view together."""
        return LedgerWriter(write_options(self.options), schema, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> LedgerStreamWriter:
        """Each micro-batch becomes entries of new ledgers, exactly once."""
        return LedgerStreamWriter(write_options(self.options), schema, overwrite=overwrite)


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
