"""The metrics of an offloader: what each of its numbers is called, and what it means."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Final

from tallybook.runtime.meter import Reading
from tallybook.runtime.metric_catalogue import Kind, MetricInfo

from .offloader import Offloader

_C: Final = Kind.COUNTER
_G: Final = Kind.GAUGE

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
        "Closed ledgers that are not in the archive yet, and old and large enough for it.",
    ),
    MetricInfo("waiting_bytes", "tallybook_offload_waiting_bytes", _G, "Their payload."),
    MetricInfo(
        "oldest_waiting_s", "tallybook_offload_oldest_waiting_seconds", _G, "How long the oldest of them has waited."
    ),
    MetricInfo(
        "unreleased_ledgers", "tallybook_offload_unreleased_ledgers", _G, "Archived ledgers that bookies still keep."
    ),
    MetricInfo("orphans", "tallybook_offload_orphans", _G, "Objects of nobody that wait to be removed."),
)


def numbers(offloader: Offloader, *, leads: bool) -> Mapping[str, Reading]:
    """All of them, now. What waits is left out where another offloader leads: it may be long archived."""
    found: dict[str, Reading] = {"leads": leads, "streamed_bytes": offloader.streamed_bytes}
    found |= {name: value for name, value in asdict(offloader.totals).items() if name != "last_error"}
    if leads:
        found |= asdict(offloader.backlog)
    return found
