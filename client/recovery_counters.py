"""Counters of a client's recovery work: ensemble changes, speculative reads, ledger recoveries."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tallybook.runtime.metrics.part_metrics import PartMetrics


@dataclass(slots=True)
class RecoveryCounters:
    """Recovery counters of one client, over all its handles."""

    ensemble_changes: int = 0
    speculative_reads: int = 0
    recoveries: int = 0
    failed_recoveries: int = 0


METRICS: Final = (
    PartMetrics[RecoveryCounters]()
    .counter(
        "client_ensemble_changes",
        "tallybook_client_ensemble_changes_total",
        "Ensemble changes: failed members were replaced.",
        lambda counters: counters.ensemble_changes,
    )
    .counter(
        "client_speculative_reads",
        "tallybook_client_speculative_reads_total",
        "Reads for which a second bookie was asked because the first was slow.",
        lambda counters: counters.speculative_reads,
    )
    .counter(
        "client_recoveries",
        "tallybook_client_recoveries_total",
        "Ledger recoveries that were started.",
        lambda counters: counters.recoveries,
    )
    .counter(
        "client_failed_recoveries",
        "tallybook_client_failed_recoveries_total",
        "Ledger recoveries that ended with an error.",
        lambda counters: counters.failed_recoveries,
    )
)
