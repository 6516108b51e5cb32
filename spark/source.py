"""``format("tallybook")``: ledgers as a table that Spark reads and writes.

    spark.dataSource.register(TallybookDataSource)
    spark.read.format("tallybook").option("metadata", URI).option("ledger", 7).load()

Filters are not pushed down, on purpose: PySpark 4.3 keeps the reader of a filtered query for the next one on the same
DataFrame, which then gets the rows of the first. Bounds are options: startingEntry, endingTime and so on.

Spark starts a Python for each step of a query, so what a step does is loaded with it.
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
from .options import batch_options, read_options, write_options
from .tables import TABLES

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

NAME = "tallybook"


class TallybookDataSource(DataSource):
    """Ledgers, and what is known of them. docs/spark.md lists the options."""

    _has_reader = False

    @classmethod
    def name(cls) -> str:
        """What ``format`` is given."""
        return NAME

    def schema(self) -> str:
        """The columns, in Spark's DDL."""
        refuse_table_properties(self.options)
        options = read_options(self.options)
        return TABLES[options.table].ddl if options.table != "entries" else columns_for(options).ddl

    def reader(self, schema: StructType) -> DataSourceReader:
        """A batch: entries, or one of the tables of metadata."""
        from .batch import EntryReader, TableReader  # noqa: PLC0415

        options = batch_options(self.options)
        if options.table != "entries":
            return TableReader(options)
        self._has_reader = True
        if options.of_streams:
            from .records.batch import RecordReader  # noqa: PLC0415

            return RecordReader(options, schema)
        return EntryReader(options, schema)

    def __getstate__(self) -> dict[str, Any]:
        # Spark sends the source along with its reader to each task, where only its name is asked for.
        return {**self.__dict__, "options": {}} if self._has_reader else self.__dict__

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Ledgers as they close, or records of streams as they come."""
        options = read_options(self.options)
        if options.of_streams:
            from .records.following import RecordStreamReader  # noqa: PLC0415

            return RecordStreamReader(options, schema)
        from .stream import LedgerStreamReader  # noqa: PLC0415

        return LedgerStreamReader(options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        """Rows become entries of new ledgers, which come into view together, or records of a stream."""
        options = write_options(self.options)
        if options.stream is not None:
            from .records.sink import RecordWriter  # noqa: PLC0415

            return RecordWriter(options, schema, overwrite=overwrite)
        from .sink import LedgerWriter  # noqa: PLC0415

        return LedgerWriter(options, schema, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        """Each micro-batch becomes entries of new ledgers, or records of a stream, exactly once."""
        options = write_options(self.options)
        if options.stream is not None:
            from .records.sink import RecordStreamWriter  # noqa: PLC0415

            return RecordStreamWriter(options, schema, overwrite=overwrite)
        from .sink import LedgerStreamWriter  # noqa: PLC0415

        return LedgerStreamWriter(options, schema, overwrite=overwrite)
