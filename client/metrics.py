"""The client's metrics: names and help texts of the readings of ``Client.stats``.

A program with a Prometheus registry of its own exports them like this::

    prometheus_client.REGISTRY.register(collector(client))
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

from tallybook.archive.metrics import ARCHIVE_METRICS, ARCHIVE_READER_METRICS
from tallybook.metadata.metered_store import METADATA_METRICS
from tallybook.runtime.extras import NeedsExtra
from tallybook.runtime.metrics.usage import MetricValue
from tallybook.runtime.tracing.catalog import TRACE_METRICS

from .client import Client
from .stats import CLIENT_METRICS

if TYPE_CHECKING:
    from tallybook.runtime.metrics.registry import Metrics, StatsCollector


class HasStats(Protocol):
    """A client, asyncio or blocking."""

    def stats(self) -> Mapping[str, MetricValue]:
        """Its current readings."""


def collector(client: HasStats) -> StatsCollector:
    """A collector for a ``prometheus_client`` registry; valid while the client is open."""
    # Only a process with a registry has its library.
    with NeedsExtra("tallybook.client.metrics"):
        from tallybook.runtime.metrics.registry import StatsCollector  # noqa: PLC0415

    archive = (*ARCHIVE_METRICS.catalog, *ARCHIVE_READER_METRICS.catalog)
    return StatsCollector((*CLIENT_METRICS, *TRACE_METRICS, *archive), client.stats)


def show_client(metrics: Metrics, client: Client, *, with_metadata: bool = True, with_archive: bool = True) -> None:
    """Add a client's metrics to those of a process.

    Args:
        with_metadata: add the load on the metadata store.
        with_archive: add the load on the object store; off if the process counts that itself.
    """
    archive = ARCHIVE_METRICS.catalog if with_archive else ()
    metrics.add((*CLIENT_METRICS, *TRACE_METRICS, *archive, *ARCHIVE_READER_METRICS.catalog), client.stats)
    load = client.world.metadata_load
    if with_metadata and load is not None:
        metrics.add_part(METADATA_METRICS, load)
