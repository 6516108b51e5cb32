"""Counters of stream writers and readers, shared by the stores that use the same ``StreamLoad``."""

from __future__ import annotations

from typing import Final

from tallybook.runtime.metrics.catalogue import MetricInfo, MetricKind
from tallybook.runtime.metrics.histogram import Histogram
from tallybook.runtime.metrics.usage import MetricValue, Series

from .info import LagSweep

STREAM_METRICS: Final = (
    MetricInfo(
        "stream_confirm_seconds",
        "tallybook_stream_confirm_seconds",
        MetricKind.HISTOGRAM,
        "Time of each envelope of records, from its first append until it was durable.",
    ),
    MetricInfo(
        "stream_taken", "tallybook_stream_writers_opened_total", MetricKind.COUNTER, "Stream writers that were opened."
    ),
    MetricInfo(
        "stream_segments", "tallybook_stream_segments_total", MetricKind.COUNTER, "Segments that writers have started."
    ),
    MetricInfo(
        "stream_failed_segments",
        "tallybook_stream_failed_segments_total",
        MetricKind.COUNTER,
        "Segments that failed while being written, and are recovered by their writer.",
    ),
    MetricInfo(
        "stream_failed_renewals",
        "tallybook_stream_session_renewal_failures_total",
        MetricKind.COUNTER,
        "Failed renewals of a session; after three in a row other processes may take over its streams.",
    ),
    MetricInfo(
        "stream_keeper_rounds",
        "tallybook_stream_keeper_rounds_total",
        MetricKind.COUNTER,
        "Passes of the stream janitor over all streams, by the process that leads.",
    ),
    MetricInfo(
        "stream_keeper_failures",
        "tallybook_stream_keeper_failures_total",
        MetricKind.COUNTER,
        "Streams, and whole passes, in which the stream janitor failed.",
    ),
    MetricInfo(
        "stream_unmeasured",
        "tallybook_stream_subscriptions_unmeasured",
        MetricKind.GAUGE,
        "Subscriptions whose lag the leading janitor does not know: their position is lost, bookies do not answer, or "
        "there are more than 500 of them.",
    ),
    MetricInfo(
        "stream_tails",
        "tallybook_stream_tails",
        MetricKind.GAUGE,
        "Open segments that are followed on behalf of readers.",
    ),
    MetricInfo(
        "stream_tail_followers",
        "tallybook_stream_tail_followers",
        MetricKind.GAUGE,
        "Readers that follow an open segment.",
    ),
    MetricInfo(
        "stream_tail_bytes",
        "tallybook_stream_tail_bytes",
        MetricKind.GAUGE,
        "Bytes of open segments kept for readers that are behind: up to 4 MiB each, and always the latest records.",
    ),
)

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
        """All readings, for ``STREAM_METRICS``."""
        return {
            "stream_confirm_seconds": self.confirm_seconds,
            "stream_taken": self.taken,
            "stream_segments": self.segments,
            "stream_failed_segments": self.failed_segments,
            "stream_failed_renewals": self.failed_renewals,
            "stream_keeper_rounds": self.janitor_rounds,
            "stream_keeper_failures": self.janitor_failures,
            "stream_unmeasured": self.lags.unmeasured,
            "stream_tails": self.tails,
            "stream_tail_followers": self.tail_followers,
            "stream_tail_bytes": self.tail_bytes,
        }

    def lag_series(self) -> dict[str, Series]:
        """The lag of each subscription, for ``LAG_METRICS``."""
        lags = self.lags.lags
        return {
            "lag_records": {key: lag.records for key, lag in lags.items()},
            "lag_bytes": {key: lag.size_bytes for key, lag in lags.items()},
            "lag_seconds": {key: lag.age_s for key, lag in lags.items()},
        }
