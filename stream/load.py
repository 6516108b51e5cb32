"""Counters of stream writers and readers, shared by the stores that use the same ``StreamLoad``."""

from __future__ import annotations

from typing import Final

from tallybook.runtime.metrics.catalog import MetricInfo, MetricKind
from tallybook.runtime.metrics.histogram import Histogram
from tallybook.runtime.metrics.part_metrics import PartMetrics
from tallybook.runtime.metrics.usage import MetricValue, Series

from .info import LagSweep

_SUBSCRIPTION: Final = ("namespace", "stream", "subscription")

LAG_METRICS: Final = (
    MetricInfo(
        "lag_records",
        "tallybook_stream_subscription_lag_records",
        MetricKind.GAUGE,
        "Records between the position of a subscription and the end of its stream, as of the last pass of the leading "
        "janitor.",
        labels=_SUBSCRIPTION,
    ),
    MetricInfo(
        "lag_bytes",
        "tallybook_stream_subscription_lag_bytes",
        MetricKind.GAUGE,
        "Stored size of these records, rounded up to a whole batch.",
        labels=_SUBSCRIPTION,
    ),
    MetricInfo(
        "lag_seconds",
        "tallybook_stream_subscription_lag_seconds",
        MetricKind.GAUGE,
        "Age of the oldest of these records; 0 if there is none.",
        labels=_SUBSCRIPTION,
    ),
)
"""Lag of each subscription, at most 500, in the process that leads the stream janitor."""


class StreamLoad:
    """Counters of stream writers, readers and the janitor."""

    def __init__(self) -> None:
        self.confirm_seconds = Histogram()
        self.taken = 0
        self.segments = 0
        self.failed_segments = 0
        self.failed_renewals = 0
        self.janitor_rounds = 0
        self.janitor_failures = 0
        self.lags = LagSweep()
        self.tails = 0
        self.tail_followers = 0
        self.tail_bytes = 0

    def readings(self) -> dict[str, MetricValue]:
        """Values of ``STREAM_METRICS``."""
        return STREAM_METRICS.readings(self)

    def lag_series(self) -> dict[str, Series]:
        """The lag of each subscription, for ``LAG_METRICS``."""
        lags = self.lags.lags
        return {
            "lag_records": {key: lag.records for key, lag in lags.items()},
            "lag_bytes": {key: lag.size_bytes for key, lag in lags.items()},
            "lag_seconds": {key: lag.age_s for key, lag in lags.items()},
        }


STREAM_METRICS: Final = (
    PartMetrics[StreamLoad]()
    .histogram(
        "stream_confirm_seconds",
        "tallybook_stream_confirm_seconds",
        "Time of each envelope of records, from its first append until it was durable.",
        lambda load: load.confirm_seconds,
    )
    .counter(
        "stream_taken",
        "tallybook_stream_writers_opened_total",
        "Stream writers that were opened.",
        lambda load: load.taken,
    )
    .counter(
        "stream_segments",
        "tallybook_stream_segments_total",
        "Segments that writers have started.",
        lambda load: load.segments,
    )
    .counter(
        "stream_failed_segments",
        "tallybook_stream_failed_segments_total",
        "Segments that failed while being written, and are recovered by their writer.",
        lambda load: load.failed_segments,
    )
    .counter(
        "stream_failed_renewals",
        "tallybook_stream_session_renewal_failures_total",
        "Failed renewals of a session; after three in a row other processes may take over its streams.",
        lambda load: load.failed_renewals,
    )
    .counter(
        "stream_keeper_rounds",
        "tallybook_stream_keeper_rounds_total",
        "Passes of the stream janitor over all streams, by the process that leads.",
        lambda load: load.janitor_rounds,
    )
    .counter(
        "stream_keeper_failures",
        "tallybook_stream_keeper_failures_total",
        "Streams, and whole passes, in which the stream janitor failed.",
        lambda load: load.janitor_failures,
    )
    .gauge(
        "stream_unmeasured",
        "tallybook_stream_subscriptions_unmeasured",
        "Subscriptions whose lag the leading janitor does not know: their position is lost, bookies do not answer, or "
        "there are more than 500 of them.",
        lambda load: load.lags.unmeasured,
    )
    .gauge(
        "stream_tails",
        "tallybook_stream_tails",
        "Open segments that are followed on behalf of readers.",
        lambda load: load.tails,
    )
    .gauge(
        "stream_tail_followers",
        "tallybook_stream_tail_followers",
        "Readers that follow an open segment.",
        lambda load: load.tail_followers,
    )
    .gauge(
        "stream_tail_bytes",
        "tallybook_stream_tail_bytes",
        "Bytes of open segments kept for readers that are behind: up to 4 MiB each, and always the latest records.",
        lambda load: load.tail_bytes,
    )
)
