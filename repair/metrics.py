"""The metrics of a repair process: what each of its numbers is called, and what it means."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tallybook.runtime.meter import Reading
from tallybook.runtime.metric_catalogue import Kind, MetricInfo, meter_metrics

from .auditor import Audit, Auditor
from .copier import Copier
from .needs import Why
from .replicator import Replicator

_C: Final = Kind.COUNTER
_G: Final = Kind.GAUGE

_REASONS: Final = [why for why in Why if why is not Why.UNFINISHED]
"""Those for which ledgers lack copies, or are moved."""

REPAIR_METRICS: Final = (
    MetricInfo("leads", "tallybook_repair_leads", _G, "1 while this process is the auditor, else 0."),
    MetricInfo("rounds", "tallybook_repair_rounds_total", _C, "Rounds of the auditor that came to their end."),
    MetricInfo("walks", "tallybook_repair_walks_total", _C, "Times that the auditor has gone over all ledgers."),
    MetricInfo("published", "tallybook_repair_tasks_published_total", _C, "Tasks that the auditor handed out."),
    MetricInfo("bookies_away", "tallybook_repair_bookies_away", _G, "Bookies that ledgers name and that are away."),
    MetricInfo("bookies_lost", "tallybook_repair_bookies_lost", _G, "Of those, the ones that count as lost."),
    MetricInfo("bookies_draining", "tallybook_repair_bookies_draining", _G, "Bookies that are to be emptied."),
    MetricInfo("bookies_in_limbo", "tallybook_repair_bookies_in_limbo", _G, "Bookies that lost data."),
    MetricInfo("ledgers", "tallybook_repair_ledgers", _G, "Ledgers, as of the last look over all of them."),
    *(
        MetricInfo(
            f"needing_{why.name.lower()}",
            "tallybook_repair_ledgers_needing",
            _G,
            "Ledgers to be mended, by the reason; of those that only leave a bookie (draining) no copy is missing.",
            ("reason", why.name.lower()),
        )
        for why in _REASONS
    ),
    MetricInfo(
        "to_end",
        "tallybook_repair_ledgers_to_end",
        _G,
        "Open ledgers that name a bookie that is lost, or lost its data, where they grow.",
    ),
    MetricInfo(
        "in_one_rack", "tallybook_repair_ledgers_in_one_rack", _G, "Ledgers with all copies of some entry in one rack."
    ),
    MetricInfo("unreadable", "tallybook_repair_ledgers_unreadable", _G, "Ledgers whose metadata cannot be understood."),
    MetricInfo(
        "tasks", "tallybook_repair_tasks", _G, "Tasks that were handed out and are not done, as of the last round."
    ),
    MetricInfo("tasks_done", "tallybook_repair_tasks_done_total", _C, "Tasks that this process did."),
    MetricInfo(
        "ledgers_mended",
        "tallybook_repair_ledgers_looked_at_total",
        _C,
        "Ledgers that it looked at, and mended where needed.",
    ),
    *meter_metrics("mending", "tallybook_repair_ledger", "Ledgers looked at, and mended where needed"),
    MetricInfo(
        "ledgers_left",
        "tallybook_repair_ledgers_left_total",
        _C,
        "Of those, the ones that could not be mended in full.",
    ),
    MetricInfo(
        "ledgers_lost", "tallybook_repair_ledgers_lost_total", _C, "Of those, the ones with an entry that nobody has."
    ),
    MetricInfo("places", "tallybook_repair_places_total", _C, "Places in ensembles that another bookie took."),
    MetricInfo("copied_batches", "tallybook_repair_copied_batches_total", _C, "Batches given to bookies."),
    MetricInfo("copied_bytes", "tallybook_repair_copied_bytes_total", _C, "Their bytes."),
)


def numbers(auditor: Auditor, replicator: Replicator, copier: Copier, *, leads: bool) -> Mapping[str, Reading]:
    """All of them, now. What the auditor has found is left out where another one leads: it may be long mended."""
    totals = replicator.totals
    return {
        **(_found(auditor.audit) if leads else {}),
        "leads": leads,
        "rounds": auditor.rounds,
        "walks": auditor.walks,
        "published": auditor.published,
        "tasks_done": totals.tasks,
        "ledgers_mended": totals.ledgers,
        **replicator.mending.readings("mending"),
        "ledgers_left": totals.left_ledgers,
        "ledgers_lost": totals.lost_ledgers,
        "places": totals.places,
        "copied_batches": copier.copied_batches,
        "copied_bytes": copier.copied_bytes,
    }


def _found(audit: Audit) -> dict[str, Reading]:
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
