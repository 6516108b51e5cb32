"""Registers ``format("tallybook")``: PySpark imports all modules named ``pyspark_*`` and their ``DefaultSource``."""

from tallybook.spark.source import TallybookDataSource as DefaultSource

__all__ = ["DefaultSource"]
