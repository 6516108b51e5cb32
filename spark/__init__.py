"""Ledgers as tables of Apache Spark: ``format("tallybook")`` and ``read_ledgers``.

    from tallybook.spark import TallybookDataSource
    spark.dataSource.register(TallybookDataSource)
    spark.read.format("tallybook").option("metadata", URI).load()

docs/spark.md lists tables, columns and options.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .native import read_ledgers, take_snapshot
    from .source import TallybookDataSource

__all__ = ["TallybookDataSource", "read_ledgers", "take_snapshot"]

# Spark starts a Python for each step of a query. What a step has no use for is not loaded there.
_HOMES = {"TallybookDataSource": "source", "read_ledgers": "native", "take_snapshot": "native"}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_HOMES[name]}", __name__), name)
