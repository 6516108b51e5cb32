"""The metrics of whoever reads or writes an archive: what each of its numbers is called, and what it means."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tallybook.runtime.meter import Reading
from tallybook.runtime.metric_catalogue import Kind, MetricInfo, meter_metrics

from .objects.patience import Patience

_C: Final = Kind.COUNTER
_G: Final = Kind.GAUGE

ANSWERS: Final = ("ok", "busy", "failed", "refused")
"""What may come of a try of a request. After ``busy`` and most of ``failed`` there is another one."""

CACHES: Final = ("index", "pages")
"""Of a reader: what says where in objects entries lie, and pages of entries."""

ARCHIVE_METRICS: Final = (
    *(
        MetricInfo(
            f"tries_{answer}",
            "tallybook_archive_tries_total",
            _C,
            "Tries of requests to the object store, by what came of them; an upload's end counts besides its requests.",
            ("answer", answer),
        )
        for answer in ANSWERS
    ),
    *meter_metrics("archive", "tallybook_archive_request", "Tries of requests to the object store"),
    MetricInfo(
        "archive_wait_seconds",
        "tallybook_archive_wait_seconds_total",
        _C,
        "Seconds in which any request waited for its turn, since the store wanted fewer.",
    ),
    MetricInfo("bytes_read", "tallybook_archive_read_bytes_total", _C, "Bytes read from the object store."),
    MetricInfo("bytes_written", "tallybook_archive_written_bytes_total", _C, "Bytes written to it."),
    MetricInfo(
        "request_rate_limit",
        "tallybook_archive_request_rate_limit",
        _G,
        "Requests per second that it is asked at most, since it wanted fewer; +Inf: no limit.",
    ),
    MetricInfo(
        "seals",
        "tallybook_archive_seals",
        _G,
        "Objects of which it is remembered how they are opened, or that they are plain; none without keys.",
    ),
    MetricInfo("max_seals", "tallybook_archive_max_seals", _G, "How many that may be."),
    MetricInfo("seal_hits", "tallybook_archive_seal_hits_total", _C, "Reads of objects of which that was remembered."),
    MetricInfo(
        "seal_misses", "tallybook_archive_seal_misses_total", _C, "Reads before which it was looked for in the store."
    ),
)
"""Of whoever asks an object store."""

ARCHIVE_READER_METRICS: Final = tuple(
    MetricInfo(f"{stat}_{cache}", f"tallybook_archive_cache_{name}", kind, text, ("cache", cache))
    for stat, name, kind, text in (
        ("cache_bytes", "bytes", _G, "Bytes in the caches of a reader of archives."),
        ("cache_max_bytes", "max_bytes", _G, "What may be in them."),
        ("cache_hits", "hits_total", _C, "Parts of an index, and pages, that were in them."),
        ("cache_misses", "misses_total", _C, "Those that were not."),
    )
    for cache in CACHES
)
"""Of a client, once it has read from the archive of its cluster."""


def numbers(patience: Patience, seals: Mapping[str, Reading]) -> Mapping[str, Reading]:
    """All of ``ARCHIVE_METRICS``, now. From any thread.

    Args:
        seals: what is remembered of objects; see ``SealedStore.readings``.
    """
    stats = dict(patience.stats)
    return {
        **{
            f"tries_{answer}": sum(count for kind, count in stats.items() if kind.endswith(f"_{answer}"))
            for answer in ANSWERS
        },
        **{f"bytes_{way}": stats.get(f"bytes_{way}", 0) for way in ("read", "written")},
        "archive_wait_seconds": patience.waits.seconds,
        "request_rate_limit": patience.rate.limit,
        **patience.meter.readings("archive"),
        **seals,
    }
