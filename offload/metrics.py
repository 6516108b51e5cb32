"""Metrics of an offloader."""

from __future__ import annotations

from typing import Final, NamedTuple

from tallybook.runtime.metrics.part_metrics import PartMetrics

from .offloader import Offloader
from .totals import BACKLOG_METRICS, Totals


class OffloadNumbers(NamedTuple):
    """An offloader, and whether it leads."""

    offloader: Offloader
    leads: bool

    @property
    def totals(self) -> Totals:
        """Work done since the start."""
        return self.offloader.totals


OFFLOAD_METRICS: Final = (
    PartMetrics[OffloadNumbers]()
    .gauge("leads", "tallybook_offload_leads", "1 while this process leads, else 0.", lambda numbers: numbers.leads)
    .counter("rounds", "tallybook_offload_rounds_total", "Completed passes.", lambda numbers: numbers.totals.rounds)
    .counter(
        "ledgers_archived",
        "tallybook_offload_ledgers_archived_total",
        "Ledgers put into the archive.",
        lambda numbers: numbers.totals.ledgers_archived,
    )
    .counter(
        "ledgers_moved",
        "tallybook_offload_ledgers_moved_total",
        "Ledgers moved by compaction of objects.",
        lambda numbers: numbers.totals.ledgers_moved,
    )
    .counter(
        "ledgers_released",
        "tallybook_offload_ledgers_released_total",
        "Ledgers whose copies bookies may drop.",
        lambda numbers: numbers.totals.ledgers_released,
    )
    .counter(
        "streamed_bytes",
        "tallybook_offload_streamed_bytes_total",
        "Payload read to be written to objects.",
        lambda numbers: numbers.offloader.streamed_bytes,
    )
    .counter(
        "objects_written",
        "tallybook_offload_objects_written_total",
        "Objects written and read back.",
        lambda numbers: numbers.totals.objects_written,
    )
    .counter(
        "payload_bytes",
        "tallybook_offload_payload_bytes_total",
        "Payload in them.",
        lambda numbers: numbers.totals.payload_bytes,
    )
    .counter(
        "object_bytes",
        "tallybook_offload_object_bytes_total",
        "Their sizes, summed up.",
        lambda numbers: numbers.totals.object_bytes,
    )
    .counter(
        "objects_removed",
        "tallybook_offload_objects_removed_total",
        "Removed orphaned objects.",
        lambda numbers: numbers.totals.objects_removed,
    )
    .counter(
        "uploads_aborted",
        "tallybook_offload_uploads_aborted_total",
        "Removed unfinished uploads.",
        lambda numbers: numbers.totals.uploads_aborted,
    )
    .counter(
        "failures",
        "tallybook_offload_failures_total",
        "Failed ledgers, objects and passes.",
        lambda numbers: numbers.totals.failures,
    )
    # Out of date while another offloader leads.
    .of(BACKLOG_METRICS, lambda numbers: numbers.offloader.backlog if numbers.leads else None)
)
