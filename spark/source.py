"""``format("tallybook")``: the Spark data source for reading and writing ledgers and streams.

    spark.dataSource.register(TallybookDataSource)
    spark.read.format("tallybook").option("metadata", URI).option("ledger", 7).load()

For archived ledgers ``native.read_ledgers`` is faster: Spark scans their objects itself, which a Python data source
cannot ask for. It is not told the columns of a query, either, so they are an option.

Filters are deliberately not pushed down: PySpark 4.3 reuses the reader of a filtered query for the next query on the
same DataFrame, which would then get the rows of the first. Bounds are options: startingEntry, endingTime and so on.

Spark starts a Python process for each step of a query, so modules are imported by the step that needs them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
)

from .catalog_tables import refuse_table_properties
from .columns import columns_for
from .ledgers.tables import TABLES
from .options import batch_options, read_options, write_options

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

NAME = "tallybook"


class TallybookDataSource(DataSource):
    """Spark data source for ledgers, streams and metadata tables. docs/use/spark.md lists the options."""

    _has_reader = False

    @classmethod
    def name(cls) -> str:
        """The name for ``format``."""
        return NAME

    def schema(self) -> str:
        """The columns in Spark DDL."""
        refuse_table_properties(self.options)
        options = read_options(self.options)
        return TABLES[options.table].ddl if options.table != "entries" else columns_for(options).ddl

    def reader(self, schema: StructType) -> DataSourceReader:
        """The reader of a batch: entries, records or a metadata table."""
        from .ledgers.batch import EntryReader, TableReader  # noqa: PLC0415

        options = batch_options(self.options)
        if options.table != "entries":
            return TableReader(options)
        self._has_reader = True
        if options.of_streams:
            from .streams.batch import RecordReader  # noqa: PLC0415

            return RecordReader(options, schema)
        return EntryReader(options, schema)

    def __getstate__(self) -> dict[str, Any]:
        # Spark sends the source with its reader to each task, which uses only its name.
        return {**self.__dict__, "options": {}} if self._has_reader else self.__dict__

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """The streaming reader: ledgers when they close, or records of streams when they are confirmed."""
        options = read_options(self.options)
        if options.of_streams:
            from .streams.micro_batches import RecordStreamReader  # noqa: PLC0415

            return RecordStreamReader(options, schema)
        from .ledgers.micro_batches import LedgerStreamReader  # noqa: PLC0415

        return LedgerStreamReader(options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        """The batch writer: rows become entries of new ledgers, published atomically, or records of a stream."""
        options = write_options(self.options)
        if options.stream is not None:
            from .streams.sink import RecordBatchWriter  # noqa: PLC0415

            return RecordBatchWriter(options, schema, overwrite=overwrite)
        from .ledgers.sink import LedgerBatchWriter  # noqa: PLC0415

        return LedgerBatchWriter(options, schema, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        """The streaming writer: each micro-batch is written exactly once, to new ledgers or to a stream."""
        options = write_options(self.options)
        if options.stream is not None:
            from .streams.sink import RecordStreamWriter  # noqa: PLC0415

            return RecordStreamWriter(options, schema, overwrite=overwrite)
        from .ledgers.sink import LedgerStreamWriter  # noqa: PLC0415

        return LedgerStreamWriter(options, schema, overwrite=overwrite)
