"""Rules for every process: processor time, metadata store, object store, and rejected requests. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from .bookie import BUSY, SOME
from .causes import BottleneckFinding, Cause, Evidence
from .samples import ProcessKind, SampleDelta

LOOP_BUSY: Final = 0.85
"""Part of a processor. An event loop that uses more is nearly always behind."""

LATE_SECONDS: Final = 0.05
"""Average lag of timers. Everything that the process does takes that much longer."""

SLOW_METADATA_SECONDS: Final = 0.1
"""A healthy store answers in 1 to 10 ms; a write with its syncs takes up to 30 ms."""

AGAIN: Final = 2.0
OFTEN: Final = 0.1
"""Failures decide the verdict if there are at least two, and they are at least one in ten operations."""

REFUSED: Final = 0.01
"""Part of the requests. If more are rejected, it is not only a short burst."""

SLOWED: Final = 0.2
"""Part of the time for which requests to an object store wait because it asked for fewer requests."""

_OF_CLIENTS: Final = ("adds that wait", "age of the journal queue", "bytes in flight")
"""Reasons to refuse an add that mean overload. The other reasons are signs of other causes."""


def process_findings(change: SampleDelta) -> list[BottleneckFinding]:
    """The findings of all rules."""
    found = [rule(change) for rule in RULES]
    return [finding for finding in found if finding is not None]


def _processor(change: SampleDelta) -> BottleneckFinding | None:
    busy = change.rate("tallybook_process_loop_cpu_seconds_total")
    late = change.mean("tallybook_process_loop_lag_seconds")
    if busy < LOOP_BUSY and late < LATE_SECONDS:
        return None
    return BottleneckFinding(
        Cause.CPU,
        change.name,
        min(1.0, max(busy, late / LATE_SECONDS / 2)),
        (
            Evidence("of a processor taken by the event loop", busy, "part", LOOP_BUSY),
            Evidence("delay of its timers", late, "s", LATE_SECONDS),
            Evidence("of a processor taken by all threads", change.rate("process_cpu_seconds_total"), "part"),
        ),
    )


def _metadata(change: SampleDelta) -> BottleneckFinding | None:
    away = sum(
        change.grown("tallybook_metadata_errors_total", error=error)
        for error in ("MetadataUnavailable", "MetadataOutcomeUnknown")
    )
    reads, writes = (change.mean(f"tallybook_metadata_{way}_seconds") for way in ("read", "write"))
    busy = max(change.rate(f"tallybook_metadata_{way}_busy_seconds_total") for way in ("read", "write"))
    in_flight = sum(change.now(f"tallybook_metadata_{way}_under_way") for way in ("read", "write"))
    ended = sum(change.count(f"tallybook_metadata_{way}_seconds") for way in ("read", "write"))
    # An operation that hangs is not counted as ended, but as in flight all the time.
    hangs = in_flight > 0 and busy >= BUSY and ended < SOME * change.seconds
    slowest = max(reads, writes)
    slow = slowest >= SLOW_METADATA_SECONDS
    if away < 1 and not slow and not hangs:
        return None
    part = min(1.0, away / max(ended, away, 1.0))
    often = away >= AGAIN and part >= OFTEN
    return BottleneckFinding(
        Cause.METADATA,
        change.name,
        1.0 if often or hangs else min(1.0, max(busy, slowest)),
        (
            Evidence("operations without an answer", away, "", 1),
            Evidence("of all operations", part, "part", OFTEN),
            Evidence("a read", reads, "s", SLOW_METADATA_SECONDS),
            Evidence("a write", writes, "s", SLOW_METADATA_SECONDS),
            Evidence("of the time an operation was in progress", busy, "part", BUSY if hangs else None),
        ),
        decides=often or slow or hangs,
    )


def _object_store(change: SampleDelta) -> BottleneckFinding | None:
    waiting = change.now("tallybook_offload_waiting_ledgers")
    busy = change.rate("tallybook_archive_request_busy_seconds_total")
    slowed = change.rate("tallybook_archive_wait_seconds_total")
    wanted_fewer = change.grown("tallybook_archive_tries_total", answer="busy")
    failed = change.grown("tallybook_archive_tries_total", answer="failed")
    complaints = wanted_fewer + failed
    part = min(1.0, complaints / max(change.grown("tallybook_archive_tries_total"), complaints, 1.0))
    often = complaints >= AGAIN and part >= OFTEN
    taken_up = slowed >= SLOWED or busy >= BUSY
    if not waiting or not (complaints >= 1 or taken_up):
        return None
    return BottleneckFinding(
        Cause.ARCHIVE,
        change.name,
        1.0 if often else min(1.0, max(busy, slowed)),
        (
            Evidence("of the time a request was in progress", busy, "part", BUSY),
            Evidence("a request", change.mean("tallybook_archive_request_seconds"), "s"),
            Evidence("of the time requests waited because the store wanted fewer", slowed, "part", SLOWED),
            Evidence("answers that asked for fewer requests", wanted_fewer, "", 1),
            Evidence("requests that failed", failed, "", 1),
            Evidence("of all requests", part, "part", OFTEN),
            Evidence("ledgers that wait", waiting, ""),
            Evidence("age of the oldest", change.now("tallybook_offload_oldest_waiting_seconds"), "s"),
        ),
        decides=often or taken_up,
    )


def _overload(change: SampleDelta) -> BottleneckFinding | None:
    if change.kind is ProcessKind.GATEWAY:
        refused = change.rate("tallybook_gateway_calls_rejected_total")
        asked = change.rate("tallybook_gateway_calls_total")
        why = {"calls for lack of space or credit": refused}
    else:
        reasons = change.by_label("tallybook_bookie_refused_adds_total", "reason")
        why = {reason: by / change.seconds for reason, by in reasons.items() if reason in _OF_CLIENTS}
        refused = sum(why.values())
        asked = refused + change.rate("tallybook_bookie_add_batches_total")
    if refused < SOME or refused < REFUSED * asked:
        return None
    part = min(1.0, refused / asked) if asked else 1.0
    return BottleneckFinding(
        Cause.OVERLOADED,
        change.name,
        part,
        (
            Evidence("of requests refused", part, "part", REFUSED),
            *(Evidence(f"refused: {reason}", rate, "/s", SOME) for reason, rate in why.items()),
        ),
    )


RULES: Final[tuple[Callable[[SampleDelta], BottleneckFinding | None], ...]] = (
    _processor,
    _metadata,
    _object_store,
    _overload,
)
