"""Refusal of tables in Spark's catalog (``saveAsTable``, ``CREATE TABLE``).

Such a table keeps none of its options for a source in Python: Spark 4.3 creates its reader with none, so that nobody
could read it. A temporary view keeps them.

Not every such table can be refused. For ``CREATE TABLE`` with a list of columns, Spark asks nothing of the source.
Within ``foreachBatch``, a write of ``saveAsTable`` looks to the source like one of ``save``: both are executions below
that of the micro-batch, and no property of their tasks tells how far.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pyspark import TaskContext

from tallybook.core.errors import InvalidConfig

NO_TABLES: Final = (
    "a table of Spark's catalog keeps no options for a source in Python, so that nobody could read it: read through "
    "CREATE TEMPORARY VIEW ... USING tallybook OPTIONS (...), and write with save() instead of saveAsTable"
)

_EXECUTION_ID: Final = "spark.sql.execution.id"
_ROOT_ID: Final = "spark.sql.execution.root.id"
_QUERY_ID: Final = "sql.streaming.queryId"
_TABLE_PROPERTY: Final = "provider"
"""Among the options of a table that is being created; no source has an option of that name."""


def refuse_table_properties(options: Mapping[str, str]) -> None:
    """Refuse ``CREATE TABLE``, for which Spark asks for the columns with the properties of the table.

    Raises:
        InvalidConfig: the options are properties of a table.
    """
    if any(name.lower() == _TABLE_PROPERTY for name in options):
        raise InvalidConfig(NO_TABLES)


def refuse_new_table() -> None:
    """Refuse, in the task of a batch, to write the rows of ``saveAsTable`` or ``CREATE TABLE AS SELECT``.

    A source is not told of the table. Spark runs the write as an execution within the one that creates the table, and
    drops the table again where the write fails. Batches of ``foreachBatch`` are within the execution of their query,
    and are let through.

    Raises:
        InvalidConfig: the write belongs to a table that is being created.
    """
    context = TaskContext.get()
    if context is None or context.getLocalProperty(_QUERY_ID):
        return
    execution, root = context.getLocalProperty(_EXECUTION_ID), context.getLocalProperty(_ROOT_ID)
    if execution and root and execution != root:
        raise InvalidConfig(NO_TABLES)
