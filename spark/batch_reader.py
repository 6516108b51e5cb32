"""Base of the batch readers: planned on the driver, read on executors."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from pyspark.sql.datasource import DataSourceReader, InputPartition

from tallybook.core.errors import InvariantViolation
from tallybook.runtime.blocking.loop_thread import LoopThread

from .columns import check_columns
from .options import ReadOptions

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

P = TypeVar("P", bound=InputPartition)


class PlannedReader(DataSourceReader, Generic[P]):
    """It is pickled to executors, so it has plain values only, and drops what only planning needs.

    Args:
        options: of the query.
        task_options: those that tasks need.
    """

    def __init__(self, options: ReadOptions, task_options: ReadOptions, schema: StructType) -> None:
        self._query: ReadOptions | None = options
        self._options = task_options
        self._schema = schema
        check_columns(options, schema)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_query": None}

    def partitions(self) -> list[P]:
        """The partitions of the query; resolves what is read, once for all tasks."""
        if self._query is None:
            raise InvariantViolation("a reader in a task cannot plan")
        with LoopThread("tallybook") as loop:
            return loop.run(self._planned(self._query))

    @abstractmethod
    async def _planned(self, query: ReadOptions) -> list[P]:
        """Plan the partitions."""
