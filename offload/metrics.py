"""The metrics of an offloader: what each of its numbers is called, and what it means."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Final

from tallybook.archive.objects.patience import Patience
from tallybook.runtime.meter import Reading
from tallybook.runtime.metric_catalogue import Kind, MetricInfo, meter_metrics

from .offloader import Offloader

_C: Final = Kind.COUNTER
_G: Final = Kind.GAUGE

ANSWERS: Final = ("ok", "busy", "failed", "refused")
"""What may come of a try of a request. After ``busy`` and most of ``failed`` there is another one."""

OFFLOAD_METRICS: Final = (
    MetricInfo("leads", "tallybook_offload_leads", _G, "1 while this process is the one that works, else 0."),
    MetricInfo("rounds", "tallybook_offload_rounds_total", _C, "Rounds that came to their end."),
    MetricInfo("ledgers_archived", "tallybook_offload_ledgers_archived_total", _C, "Ledgers put into the archive."),
    MetricInfo("ledgers_moved", "tallybook_offload_ledgers_moved_total", _C, "Ledgers moved by merging objects."),
    MetricInfo(
        "ledgers_released", "tallybook_offload_ledgers_released_total", _C, "Ledgers that bookies were let drop."
    ),
    MetricInfo(
        "streamed_bytes", "tallybook_offload_streamed_bytes_total", _C, "Payload read to be written to objects."
    ),
    MetricInfo("objects_written", "tallybook_offload_objects_written_total", _C, "Objects written and read back."),
    MetricInfo("payload_bytes", "tallybook_offload_payload_bytes_total", _C, "Payload in them."),
    MetricInfo("object_bytes", "tallybook_offload_object_bytes_total", _C, "Their sizes, summed up."),
    MetricInfo("objects_removed", "tallybook_offload_objects_removed_total", _C, "Removed objects of nobody."),
    MetricInfo("uploads_aborted", "tallybook_offload_uploads_aborted_total", _C, "The same for unfinished uploads."),
    MetricInfo(
        "failures",
        "tallybook_offload_failures_total",
        _C,
        "Ledgers, objects and rounds that failed.",
    ),
    MetricInfo("ledgers", "tallybook_offload_ledgers", _G, "Ledgers, as of the last round."),
    MetricInfo("archived_ledgers", "tallybook_offload_archived_ledgers", _G, "Of those, the ones in the archive."),
    MetricInfo("archived_bytes", "tallybook_offload_archived_bytes", _G, "Their payload."),
    MetricInfo(
        "waiting_ledgers",
        "tallybook_offload_waiting_ledgers",
        _G,
        "Closed ledgers that are not in the archive yet.",
    ),
    MetricInfo("waiting_bytes", "tallybook_offload_waiting_bytes", _G, "Their payload."),
    MetricInfo("oldest_waiting_s", "tallybook_offload_oldest_waiting_seconds", _G, "Age of the oldest of them."),
    MetricInfo(
        "unreleased_ledgers", "tallybook_offload_unreleased_ledgers", _G, "Archived ledgers that bookies still keep."
    ),
    MetricInfo("orphans", "tallybook_offload_orphans", _G, "Objects of nobody that wait to be removed."),
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
)


def numbers(offloader: Offloader, patience: Patience, *, leads: bool) -> Mapping[str, Reading]:
    """All of them, now. What waits is left out where another offloader leads: it may be long archived."""
    found: dict[str, Reading] = {"leads": leads, "request_rate_limit": patience.rate.limit}
    found["streamed_bytes"] = offloader.streamed_bytes
    found |= {name: value for name, value in asdict(offloader.totals).items() if name != "last_error"}
    if leads:
        found |= asdict(offloader.backlog)
    for answer in ANSWERS:
        found[f"tries_{answer}"] = sum(count for kind, count in patience.stats.items() if kind.endswith(f"_{answer}"))
    for way in ("read", "written"):
        found[f"bytes_{way}"] = patience.stats.get(f"bytes_{way}", 0)
    found["archive_wait_seconds"] = patience.waits.seconds
    return {**found, **patience.meter.readings("archive")}
