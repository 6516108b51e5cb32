"""What is done with streams, in all stores that share it: how long records took, and what became of segments."""

from __future__ import annotations

from typing import Final

from tallybook.runtime.histogram import Histogram
from tallybook.runtime.meter import Reading
from tallybook.runtime.metric_catalogue import Kind, MetricInfo

STREAM_METRICS: Final = (
    MetricInfo(
        "stream_confirm_seconds",
        "tallybook_stream_confirm_seconds",
        Kind.HISTOGRAM,
        "Of each envelope of records, from its first record until all of it was durable.",
    ),
    MetricInfo("stream_taken", "tallybook_stream_writers_opened_total", Kind.COUNTER, "Streams taken to be written."),
    MetricInfo("stream_segments", "tallybook_stream_segments_total", Kind.COUNTER, "Segments that writers have begun."),
    MetricInfo(
        "stream_failed_segments",
        "tallybook_stream_failed_segments_total",
        Kind.COUNTER,
        "Of those, the ones that failed and were recovered, or are being.",
    ),
    MetricInfo(
        "stream_failed_renewals",
        "tallybook_stream_session_renewal_failures_total",
        Kind.COUNTER,
        "Renewals of a session that failed: after three in a row others may take what it writes.",
    ),
    MetricInfo(
        "stream_keeper_rounds",
        "tallybook_stream_keeper_rounds_total",
        Kind.COUNTER,
        "Times that all streams were looked after, by the process that leads in it.",
    ),
    MetricInfo(
        "stream_keeper_failures",
        "tallybook_stream_keeper_failures_total",
        Kind.COUNTER,
        "Streams, and whole rounds, that could not be looked after.",
    ),
    MetricInfo(
        "stream_tails",
        "tallybook_stream_tails",
        Kind.GAUGE,
        "Open segments that are read as they grow, for all readers.",
    ),
    MetricInfo(
        "stream_tail_followers", "tallybook_stream_tail_followers", Kind.GAUGE, "Readers that follow one of these."
    ),
    MetricInfo(
        "stream_tail_bytes",
        "tallybook_stream_tail_bytes",
        Kind.GAUGE,
        "What is kept of them for readers that are behind: up to 4 MiB of each, and always what came last.",
    ),
)


class StreamLoad:
    """The counts."""

    def __init__(self) -> None:
        self.confirm_seconds = Histogram()
        self.taken = 0
        self.segments = 0
        self.failed_segments = 0
        self.failed_renewals = 0
        self.keeper_rounds = 0
        self.keeper_failures = 0
        self.tails = 0
        self.tail_followers = 0
        self.tail_bytes = 0

    def readings(self) -> dict[str, Reading]:
        """All of them, for ``STREAM_METRICS``."""
        return {
            "stream_confirm_seconds": self.confirm_seconds,
            "stream_taken": self.taken,
            "stream_segments": self.segments,
            "stream_failed_segments": self.failed_segments,
            "stream_failed_renewals": self.failed_renewals,
            "stream_keeper_rounds": self.keeper_rounds,
            "stream_keeper_failures": self.keeper_failures,
            "stream_tails": self.tails,
            "stream_tail_followers": self.tail_followers,
            "stream_tail_bytes": self.tail_bytes,
        }
