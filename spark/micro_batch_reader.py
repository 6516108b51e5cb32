"""Base of the streaming readers of ledgers and of streams: limits of a micro-batch, the report, the connection."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from tallybook.core.errors import InvalidConfig

from .cached_location import CachedLocation
from .locations import LedgerLocation
from .options import NO_LIMIT, ReadOptions

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


class MicroBatchReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Base of both readers. It is pickled to executors; its connection is not."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._location = CachedLocation(options.location)
        self._report: dict[str, Any] | None = None

    def __getstate__(self) -> dict[str, Any]:
        # Tasks do not need the report, which may be large.
        return {**self.__dict__, "_report": None}

    def getDefaultReadLimit(self) -> ReadLimit:
        """The limit in the options; if there are two, ``latestOffset`` applies both."""
        options = self._options
        if options.max_entries_per_trigger < NO_LIMIT:
            return ReadMaxRows(options.max_entries_per_trigger)
        if options.max_bytes_per_trigger < NO_LIMIT:
            return ReadMaxBytes(options.max_bytes_per_trigger)
        return ReadAllAvailable()

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """For ``StreamingQueryProgress``: what is left to read after the last planned micro-batch."""
        return self._report

    def commit(self, end: dict[str, Any]) -> None:
        """No-op: no state is kept for a query."""

    def stop(self) -> None:
        """Disconnect from the cluster."""
        self._location.close()


def check_checkpoint(location: LedgerLocation, cluster_id: str) -> None:
    """Check that a checkpoint is of this cluster, since others have the same ids of ledgers, and other streams.

    Raises:
        InvalidConfig: the checkpoint is of another cluster.
    """
    if cluster_id != location.cluster_id:
        raise InvalidConfig(f"the checkpoint is of cluster {cluster_id}, and this is {location.cluster_id}")
