"""The metrics of a repair process, combined from its parts."""

from __future__ import annotations

from typing import Final, NamedTuple

from tallybook.runtime.metrics.part_metrics import PartMetrics

from . import auditor, copier, replicator
from .auditor import AUDIT_METRICS, Auditor
from .copier import Copier
from .replicator import Replicator


class RepairNumbers(NamedTuple):
    """The parts of a repair process that count, and whether it is the auditor."""

    auditor: Auditor
    replicator: Replicator
    copier: Copier
    leads: bool


REPAIR_METRICS: Final = (
    PartMetrics[RepairNumbers]()
    .gauge(
        "leads", "tallybook_repair_leads", "1 while this process is the auditor, else 0.", lambda repair: repair.leads
    )
    .of(auditor.METRICS, lambda repair: repair.auditor)
    # Findings of a former auditor may be out of date.
    .of(AUDIT_METRICS, lambda repair: repair.auditor.audit if repair.leads else None)
    .of(replicator.METRICS, lambda repair: repair.replicator)
    .of(copier.METRICS, lambda repair: repair.copier)
)
