"""The metrics of a client: what each number of ``Client.stats`` is called, and what it means.

A program that uses the client library and has a registry of its own shows them there::

    prometheus_client.REGISTRY.register(collector(client))
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Protocol

from tallybook.archive.metrics import ARCHIVE_METRICS, ARCHIVE_READER_METRICS
from tallybook.metadata.metered import METADATA_METRICS
from tallybook.runtime.meter import Reading
from tallybook.runtime.metric_catalogue import Kind, MetricInfo, error_metrics
from tallybook.runtime.metrics import Metrics, StatsCollector
from tallybook.runtime.span_catalogue import TRACE_METRICS

from .client import Client

_C: Final = Kind.COUNTER
_G: Final = Kind.GAUGE
_H: Final = Kind.HISTOGRAM

CLIENT_METRICS: Final = (
    MetricInfo("client_pending_bytes", "tallybook_client_pending_bytes", _G, "Bytes that appends hold now."),
    MetricInfo("client_max_pending_bytes", "tallybook_client_max_pending_bytes", _G, "What they may hold."),
    MetricInfo(
        "client_no_room",
        "tallybook_client_no_room_total",
        _C,
        "Appends that found no room, and waited or were refused.",
    ),
    MetricInfo(
        "client_confirm_seconds",
        "tallybook_client_confirm_seconds",
        _H,
        "Of each batch that was written, from its sealing until enough bookies had it.",
    ),
    MetricInfo(
        "client_add_seconds",
        "tallybook_client_add_seconds",
        _H,
        "Of each batch and bookie, from its sending to the answer: the bookie's own time, and the network's.",
    ),
    MetricInfo(
        "client_request_seconds",
        "tallybook_client_request_seconds",
        _H,
        "Of each request to a bookie, long polls apart, from the question to the answer.",
    ),
    MetricInfo(
        "client_ensemble_changes",
        "tallybook_client_ensemble_changes_total",
        _C,
        "Changes of ledgers' ensembles: members that did not serve were replaced.",
    ),
    MetricInfo(
        "client_speculative_reads",
        "tallybook_client_speculative_reads_total",
        _C,
        "Reads for which a second bookie was asked, since the first took long.",
    ),
    MetricInfo("client_recoveries", "tallybook_client_recoveries_total", _C, "Recoveries of ledgers that were begun."),
    MetricInfo(
        "client_failed_recoveries",
        "tallybook_client_failed_recoveries_total",
        _C,
        "Of those, the ones that ended with an error.",
    ),
    MetricInfo(
        "client_quarantined",
        "tallybook_client_quarantined_bookies",
        _G,
        "Bookies that failed lately, and that new ensembles avoid.",
    ),
    MetricInfo("client_connections", "tallybook_client_connections", _G, "Bookies that are connected to."),
    MetricInfo("client_connects", "tallybook_client_connects_total", _C, "Attempts to connect to a bookie."),
    *error_metrics(
        "client_errors", "tallybook_client_errors_total", "Errors that bookies answered, or that were met on the way."
    ),
)


class HasStats(Protocol):
    """A client, with asyncio or without."""

    def stats(self) -> Mapping[str, Reading]:
        """Its numbers, now."""


def collector(client: HasStats) -> StatsCollector:
    """What a ``prometheus_client`` registry takes, for as long as the client is open."""
    return StatsCollector((*CLIENT_METRICS, *TRACE_METRICS, *ARCHIVE_METRICS, *ARCHIVE_READER_METRICS), client.stats)


def show_client(metrics: Metrics, client: Client, *, with_metadata: bool = True, with_archive: bool = True) -> None:
    """Have a process show what its client does.

    Args:
        with_metadata: and what it asks of the metadata store.
        with_archive: and what it asks of the object store; not where the process shows what it asks itself.
    """
    archive = ARCHIVE_METRICS if with_archive else ()
    metrics.add((*CLIENT_METRICS, *TRACE_METRICS, *archive, *ARCHIVE_READER_METRICS), client.stats)
    load = client.world.metadata_load
    if with_metadata and load is not None:
        metrics.add(METADATA_METRICS, load.readings)
