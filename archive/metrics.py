"""Metrics of processes that read or write an archive."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tallybook.runtime.metrics.catalogue import MetricInfo, MetricKind, meter_metrics
from tallybook.runtime.metrics.usage import MetricValue

from .objects.retries import RetryPolicy

_C: Final = MetricKind.COUNTER
_G: Final = MetricKind.GAUGE

ANSWERS: Final = ("ok", "busy", "failed", "refused")
"""Outcomes of one try of a request. After ``busy``, and usually after ``failed``, it is retried."""

CACHES: Final = ("index", "pages")
"""Caches of a reader: page indexes of objects, and pages of entries."""

ARCHIVE_METRICS: Final = (
    *(
        MetricInfo(
            f"tries_{answer}",
            "tallybook_archive_tries_total",
            _C,
            "Tries of requests to the object store, by outcome; the end of an upload counts as one more.",
            ("answer", answer),
        )
        for answer in ANSWERS
    ),
    *meter_metrics("archive", "tallybook_archive_request", "Tries of requests to the object store"),
    MetricInfo(
        "archive_wait_seconds",
        "tallybook_archive_wait_seconds_total",
        _C,
        "Seconds in which any request waited because the store asked for fewer requests.",
    ),
    MetricInfo("bytes_read", "tallybook_archive_read_bytes_total", _C, "Bytes read from the object store."),
    MetricInfo("bytes_written", "tallybook_archive_written_bytes_total", _C, "Bytes written to it."),
    MetricInfo(
        "request_rate_limit",
        "tallybook_archive_request_rate_limit",
        _G,
        "Limit of requests per second, set when the store asked for fewer; +Inf: no limit.",
    ),
    MetricInfo(
        "seals",
        "tallybook_archive_seals",
        _G,
        "Cached encryption headers of objects, plain objects included; none without keys.",
    ),
    MetricInfo("max_seals", "tallybook_archive_max_seals", _G, "Maximum cached encryption headers."),
    MetricInfo("seal_hits", "tallybook_archive_seal_hits_total", _C, "Reads of objects with a cached header."),
    MetricInfo(
        "seal_misses", "tallybook_archive_seal_misses_total", _C, "Reads that had to fetch the header from the store."
    ),
)
"""Metrics of every process that uses an object store."""

ARCHIVE_READER_METRICS: Final = tuple(
    MetricInfo(f"{stat}_{cache}", f"tallybook_archive_cache_{name}", kind, text, ("cache", cache))
    for stat, name, kind, text in (
        ("cache_bytes", "bytes", _G, "Bytes in the caches of a reader of archives."),
        ("cache_max_bytes", "max_bytes", _G, "Maximum bytes in them."),
        ("cache_hits", "hits_total", _C, "Parts of an index, and pages, found in them."),
        ("cache_misses", "misses_total", _C, "Parts of an index, and pages, not found in them."),
    )
    for cache in CACHES
)
"""Metrics of a client that has read from the archive of its cluster."""


def archive_readings(retries: RetryPolicy, seals: Mapping[str, MetricValue]) -> Mapping[str, MetricValue]:
    """Current values of ``ARCHIVE_METRICS``. Callable from any thread.

    Args:
        seals: readings of the header cache; see ``EncryptedStore.readings``.
    """
    stats = dict(retries.stats)
    return {
        **{
            f"tries_{answer}": sum(count for kind, count in stats.items() if kind.endswith(f"_{answer}"))
            for answer in ANSWERS
        },
        **{f"bytes_{way}": stats.get(f"bytes_{way}", 0) for way in ("read", "written")},
        "archive_wait_seconds": retries.waits.seconds,
        "request_rate_limit": retries.rate.limit,
        **retries.meter.readings("archive"),
        **seals,
    }
