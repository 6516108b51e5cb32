"""Metrics of an offloader."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Final

from tallybook.runtime.metrics.catalogue import MetricInfo, MetricKind
from tallybook.runtime.metrics.usage import MetricValue

from .offloader import Offloader

_C: Final = MetricKind.COUNTER
_G: Final = MetricKind.GAUGE

OFFLOAD_METRICS: Final = (
    MetricInfo("leads", "tallybook_offload_leads", _G, "1 while this process leads, else 0."),
    MetricInfo("rounds", "tallybook_offload_rounds_total", _C, "Completed passes."),
    MetricInfo("ledgers_archived", "tallybook_offload_ledgers_archived_total", _C, "Ledgers put into the archive."),
    MetricInfo("ledgers_moved", "tallybook_offload_ledgers_moved_total", _C, "Ledgers moved by compaction of objects."),
    MetricInfo(
        "ledgers_released", "tallybook_offload_ledgers_released_total", _C, "Ledgers whose copies bookies may drop."
    ),
    MetricInfo(
        "streamed_bytes", "tallybook_offload_streamed_bytes_total", _C, "Payload read to be written to objects."
    ),
    MetricInfo("objects_written", "tallybook_offload_objects_written_total", _C, "Objects written and read back."),
    MetricInfo("payload_bytes", "tallybook_offload_payload_bytes_total", _C, "Payload in them."),
    MetricInfo("object_bytes", "tallybook_offload_object_bytes_total", _C, "Their sizes, summed up."),
    MetricInfo("objects_removed", "tallybook_offload_objects_removed_total", _C, "Removed orphaned objects."),
    MetricInfo("uploads_aborted", "tallybook_offload_uploads_aborted_total", _C, "Removed unfinished uploads."),
    MetricInfo(
        "failures",
        "tallybook_offload_failures_total",
        _C,
        "Failed ledgers, objects and passes.",
    ),
    MetricInfo("ledgers", "tallybook_offload_ledgers", _G, "Ledgers in the last pass."),
    MetricInfo("archived_ledgers", "tallybook_offload_archived_ledgers", _G, "Those that are archived."),
    MetricInfo("archived_bytes", "tallybook_offload_archived_bytes", _G, "Their payload."),
    MetricInfo(
        "waiting_ledgers",
        "tallybook_offload_waiting_ledgers",
        _G,
        "Closed ledgers that are due for archiving: old and large enough, and not archived yet.",
    ),
    MetricInfo("waiting_bytes", "tallybook_offload_waiting_bytes", _G, "Their payload."),
    MetricInfo(
        "oldest_waiting_s", "tallybook_offload_oldest_waiting_seconds", _G, "How long the oldest of them has waited."
    ),
    MetricInfo(
        "unreleased_ledgers", "tallybook_offload_unreleased_ledgers", _G, "Archived ledgers that bookies must keep."
    ),
    MetricInfo("orphans", "tallybook_offload_orphans", _G, "Orphaned objects that wait to be removed."),
)


def numbers(offloader: Offloader, *, leads: bool) -> Mapping[str, MetricValue]:
    """Current values. Omits the backlog while another offloader leads: it may be out of date."""
    found: dict[str, MetricValue] = {"leads": leads, "streamed_bytes": offloader.streamed_bytes}
    found |= {name: value for name, value in asdict(offloader.totals).items() if name != "last_error"}
    if leads:
        found |= asdict(offloader.backlog)
    return found
