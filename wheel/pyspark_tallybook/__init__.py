"""``format("tallybook")`` without registration: PySpark imports every module ``pyspark_*`` and takes its source."""

from tallybook.spark.source import TallybookDataSource as DefaultSource

__all__ = ["DefaultSource"]
