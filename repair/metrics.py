"""The metrics of a repair process."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tallybook.runtime.metrics.catalogue import MetricInfo, MetricKind, meter_metrics
from tallybook.runtime.metrics.usage import MetricValue

from .auditor import Auditor, AuditReport
from .copier import Copier
from .needs import RepairReason
from .replicator import Replicator

_C: Final = MetricKind.COUNTER
_G: Final = MetricKind.GAUGE

_REASONS: Final = [why for why in RepairReason if why is not RepairReason.UNFINISHED]
"""Reasons with which ledgers are counted in ``WalkFindings.needing``."""

REPAIR_METRICS: Final = (
    MetricInfo("leads", "tallybook_repair_leads", _G, "1 while this process is the auditor, else 0."),
    MetricInfo("rounds", "tallybook_repair_rounds_total", _C, "Completed passes of the auditor."),
    MetricInfo("walks", "tallybook_repair_walks_total", _C, "Walks of the auditor over all ledgers."),
    MetricInfo("published", "tallybook_repair_tasks_published_total", _C, "Tasks that the auditor published."),
    MetricInfo(
        "bookies_away", "tallybook_repair_bookies_away", _G, "Bookies that ledgers name and that are not registered."
    ),
    MetricInfo("bookies_lost", "tallybook_repair_bookies_lost", _G, "Of these, the ones that count as lost."),
    MetricInfo("bookies_draining", "tallybook_repair_bookies_draining", _G, "Bookies that are being drained."),
    MetricInfo("bookies_in_limbo", "tallybook_repair_bookies_in_limbo", _G, "Bookies that lost data."),
    MetricInfo("ledgers", "tallybook_repair_ledgers", _G, "Ledgers, as of the last walk."),
    *(
        MetricInfo(
            f"needing_{why.name.lower()}",
            "tallybook_repair_ledgers_needing",
            _G,
            "Ledgers to be repaired, by reason. For the reason draining, no copy is missing.",
            ("reason", why.name.lower()),
        )
        for why in _REASONS
    ),
    MetricInfo(
        "to_end",
        "tallybook_repair_ledgers_to_end",
        _G,
        "Open ledgers whose last fragment names a bookie that is lost or lost its data.",
    ),
    MetricInfo(
        "in_one_rack", "tallybook_repair_ledgers_in_one_rack", _G, "Ledgers with all copies of an entry in one rack."
    ),
    MetricInfo("unreadable", "tallybook_repair_ledgers_unreadable", _G, "Ledgers whose metadata cannot be decoded."),
    MetricInfo("tasks", "tallybook_repair_tasks", _G, "Tasks that are published and not done, as of the last pass."),
    MetricInfo("tasks_done", "tallybook_repair_tasks_done_total", _C, "Tasks that this process has done."),
    MetricInfo(
        "ledgers_mended",
        "tallybook_repair_ledgers_looked_at_total",
        _C,
        "Ledgers that this process checked, and repaired where needed.",
    ),
    *meter_metrics("mending", "tallybook_repair_ledger", "Ledgers checked, and repaired where needed"),
    MetricInfo(
        "ledgers_left",
        "tallybook_repair_ledgers_left_total",
        _C,
        "Of these, the ones that could not be repaired in full.",
    ),
    MetricInfo(
        "ledgers_lost",
        "tallybook_repair_ledgers_lost_total",
        _C,
        "Of these, the ones with an entry of which no good copy is left.",
    ),
    MetricInfo("places", "tallybook_repair_places_total", _C, "Ensemble positions for which a bookie was replaced."),
    MetricInfo("copied_batches", "tallybook_repair_copied_batches_total", _C, "Batches copied to bookies."),
    MetricInfo("copied_bytes", "tallybook_repair_copied_bytes_total", _C, "Their bytes."),
)


def repair_readings(
    auditor: Auditor, replicator: Replicator, copier: Copier, *, leads: bool
) -> Mapping[str, MetricValue]:
    """The current readings. Without the auditor's findings unless this process leads: they may be out of date."""
    totals = replicator.totals
    return {
        **(_found(auditor.audit) if leads else {}),
        "leads": leads,
        "rounds": auditor.passes,
        "walks": auditor.walks,
        "published": auditor.published,
        "tasks_done": totals.tasks,
        "ledgers_mended": totals.ledgers,
        **replicator.mending.readings("mending"),
        "ledgers_left": totals.incomplete_ledgers,
        "ledgers_lost": totals.lost_ledgers,
        "places": totals.replaced,
        "copied_batches": copier.copied_batches,
        "copied_bytes": copier.copied_bytes,
    }


def _found(audit: AuditReport) -> dict[str, MetricValue]:
    findings = audit.findings
    return {
        "bookies_away": len(audit.away),
        "bookies_lost": len(audit.lost),
        "bookies_draining": len(audit.draining),
        "bookies_in_limbo": len(audit.limbo),
        "ledgers": findings.ledgers,
        **{f"needing_{why.name.lower()}": findings.needing[why] for why in _REASONS},
        "to_end": findings.to_end,
        "in_one_rack": findings.in_one_rack,
        "unreadable": findings.unreadable,
        "tasks": audit.tasks,
    }
