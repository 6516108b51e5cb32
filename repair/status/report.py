"""Turns overview, diagnosis, entry trace and task progress into JSON values, for the CLI and the console."""

from __future__ import annotations

from ..diagnosis.causes import BottleneckFinding
from ..diagnosis.verdict import Diagnosis
from ..task_progress import TaskProgress
from .entry_trace import BookieCopy, EntryTrace
from .overview import BookieView, Overview


def overview_json(found: Overview) -> dict[str, object]:
    """The overview of a cluster."""
    ledgers = found.ledgers
    return {
        "healthy": found.healthy,
        "problems": found.problems,
        "bookies": [bookie_json(bookie) for bookie in found.bookies],
        "ledgers": None
        if ledgers is None
        else {
            "total": ledgers.total,
            **dict(ledgers.states),
            "unreadable": ledgers.unreadable,
            "open_lacking": {
                "count": ledgers.open_lacking.count,
                "with_password": ledgers.open_lacking.with_password,
                "not_recoverable": ledgers.open_lacking.not_recoverable,
                "ledgers": [each._asdict() for each in ledgers.open_lacking.named],
            },
            "complete": ledgers.complete,
        },
        "copies": {
            "under_replicated": found.under_replicated,
            "moving": found.moving,
            "audited_s_ago": found.audit_age_s,
            "counted_s_ago": found.walk_age_s,
            "last_audit": found.audit,
            "tasks": found.tasks,
            "paused_since_ms": found.paused_since_ms,
        },
        "archive": None
        if found.archive is None
        else {
            "url": found.archive,
            "ledgers": ledgers and ledgers.archived,
            "released": ledgers and ledgers.released,
            "waiting_bytes": ledgers and ledgers.waiting_bytes,
        },
    }


def bookie_json(bookie: BookieView) -> dict[str, object]:
    """One bookie of the overview."""
    info, status = bookie.info, bookie.status
    return {
        "bookie_id": bookie.bookie_id,
        "mode": bookie.mode,
        "wanted": bookie.wanted.value,
        "rack": info and info.rack,
        "disk_used": status and status.disk_used_fraction,
        "free_bytes": status and status.free_bytes,
        "directories": status and [directory._asdict() for directory in status.directories],
        "ledgers": bookie.ledgers,
        "draining": bookie.draining,
        "damaged": status and status.damaged_batches,
        "in_limbo": bookie.limbo_ledgers,
        "entry_logs": status and status.entry_logs,
        "log_bytes": status and status.entry_log_bytes,
        "journal_used": status and status.journal_used_fraction,
        "ledgers_in_memory": status and status.ledgers_in_memory,
        "limbo_events": status and status.limbo_events,
        "scrub_rounds": status and status.scrub_rounds,
        "uptime_seconds": status and status.uptime_seconds,
    }


def diagnosis_json(found: Diagnosis) -> dict[str, object]:
    """A diagnosis, with every finding and its evidence."""
    return {
        "verdict": found.verdict.value,
        "healthy": found.verdict.is_healthy and not found.silent,
        "sentence": found.sentence,
        "seconds": round(found.seconds, 3),
        "processes": list(found.processes),
        "silent": dict(found.silent),
        "findings": [_finding(finding) for finding in found.findings],
    }


def _finding(finding: BottleneckFinding) -> dict[str, object]:
    return {
        "cause": finding.cause.value,
        "process": finding.process,
        "score": round(finding.score, 3),
        "decides": finding.decides,
        "evidence": [
            {"what": each.what, "value": each.value, "unit": each.unit, "above": each.above, "told": str(each)}
            for each in finding.evidence
        ],
    }


def trace_json(found: EntryTrace) -> dict[str, object]:
    """The trace of one entry."""
    metadata, archive = found.metadata, found.archive
    return {
        "ledger_id": metadata.ledger_id,
        "entry_id": found.entry_id,
        "state": metadata.state.value,
        "copies_released": metadata.copies_released,
        "good": not found.problems,
        "problems": found.problems,
        "copies_wanted": found.wanted,
        "copies_intact": found.intact,
        "same": found.same,
        "copies": [_copy(copy) for copy in found.copies],
        "archive": archive
        and {
            "object": archive.object_key,
            "verdict": archive.verdict,
            "why": archive.why,
            "batch_bytes": archive.batch_bytes,
            "place": archive.place and archive.place._asdict(),
        },
    }


def _copy(copy: BookieCopy) -> dict[str, object]:
    said: dict[str, object] = {
        "bookie_id": copy.bookie_id,
        "alive": copy.alive,
        "verdict": copy.verdict,
        "why": copy.why,
    }
    if copy.trace is None:
        return said
    places = [place._asdict() for place in copy.trace.places]
    return {**copy.trace._asdict(), **said, "places": places}


def progress_json(found: TaskProgress) -> dict[str, object]:
    """The progress of one or several repair tasks; ``None`` for what is not known."""
    return {
        "ledgers_total": found.ledgers or None,
        "not_mended": found.not_mended,
        "places": found.places,
        "batches": found.batches,
        "copied_bytes": found.copied_bytes,
        "expected_bytes": found.expected_bytes,
        "bytes_per_second": found.bytes_per_second,
        "seconds_left": found.seconds_left,
        "under_way": [each._asdict() for each in found.under_way],
    }
