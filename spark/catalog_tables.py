"""Refusal of tables in Spark's catalog (``saveAsTable``, ``CREATE TABLE``).

Spark 4.3 does not store the options of such a table for a Python data source and creates its reader without options, so
the table could not be read. A temporary view keeps its options.

Some of these tables cannot be refused. For ``CREATE TABLE`` with a list of columns, Spark does not call the source.
Within ``foreachBatch``, the source cannot tell ``saveAsTable`` from ``save``: both are nested executions of the
micro-batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pyspark import TaskContext

from tallybook.core.errors import InvalidConfig

NO_TABLES: Final = (
    "Spark's catalog does not store the options of a Python data source, so the table could not be read: read through "
    "CREATE TEMPORARY VIEW ... USING tallybook OPTIONS (...), and write with save() instead of saveAsTable"
)

_EXECUTION_ID: Final = "spark.sql.execution.id"
_ROOT_ID: Final = "spark.sql.execution.root.id"
_QUERY_ID: Final = "sql.streaming.queryId"
_TABLE_PROPERTY: Final = "provider"
"""An option that Spark passes only for a table that is being created."""


def refuse_table_properties(options: Mapping[str, str]) -> None:
    """Refuse ``CREATE TABLE``, for which Spark asks for the schema and passes the properties of the table.

    Raises:
        InvalidConfig: the options are properties of a table.
    """
    if any(name.lower() == _TABLE_PROPERTY for name in options):
        raise InvalidConfig(NO_TABLES)


def refuse_new_table() -> None:
    """Refuse, in a task of a batch write, ``saveAsTable`` and ``CREATE TABLE AS SELECT``.

    Spark does not tell the source about the table. It runs the write as a nested execution of the one that creates the
    table, and drops the table if the write fails. Batches of ``foreachBatch`` are nested in the execution of their
    query and are accepted.

    Raises:
        InvalidConfig: the write belongs to a table that is being created.
    """
    context = TaskContext.get()
    if context is None or context.getLocalProperty(_QUERY_ID):
        return
    execution, root = context.getLocalProperty(_EXECUTION_ID), context.getLocalProperty(_ROOT_ID)
    if execution and root and execution != root:
        raise InvalidConfig(NO_TABLES)
