"""Ledgers and streams in Spark: ``read_ledgers`` and the data source ``format("tallybook")``.

    from tallybook.spark import TallybookDataSource, read_ledgers
    read_ledgers(spark, URI)  # archived ledgers at the speed of Spark's Parquet reader
    spark.dataSource.register(TallybookDataSource)
    spark.read.format("tallybook").option("metadata", URI).option("stream", "orders").load()

docs/use/spark.md lists tables, columns and options. ``source.py`` is the entrance, and ``native.py`` for
``read_ledgers``. ``ledgers/`` and ``streams/`` read and write entries and records, ``query/`` has the values that
describe a query, ``payloads/`` parses payloads, ``pipelines/`` has jobs over a whole archive. No server or client
module imports this room: PySpark is optional.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .native import read_ledgers, take_snapshot
    from .source import TallybookDataSource

__all__ = ["TallybookDataSource", "read_ledgers", "take_snapshot"]

# Spark starts a Python process for each step of a query: each loads only the modules that the step needs.
_HOMES = {"TallybookDataSource": "source", "read_ledgers": "native", "take_snapshot": "native"}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from tallybook.runtime.extras import NeedsExtra  # noqa: PLC0415 (as above)

    with NeedsExtra("tallybook.spark", "spark"):
        return getattr(import_module(f".{_HOMES[name]}", __name__), name)
