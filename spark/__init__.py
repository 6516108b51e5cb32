"""Ledgers as tables of Apache Spark: ``format("tallybook")`` and ``read_ledgers``.

    from tallybook.spark import TallybookDataSource
    spark.dataSource.register(TallybookDataSource)
    spark.read.format("tallybook").option("metadata", URI).load()

docs/spark.md lists tables, columns and options.
"""

from .native import read_ledgers, take_snapshot
from .source import TallybookDataSource

__all__ = ["TallybookDataSource", "read_ledgers", "take_snapshot"]
