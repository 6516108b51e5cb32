"""Rules that find what adds and reads at a bookie wait for, from its metrics. Pure.

Each rule is a function that returns a finding or ``None``. Each threshold has its reason.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tallybook.core.limits import KIB

from .causes import BottleneckFinding, Cause, Evidence
from .samples import SampleDelta

BUSY: Final = 0.8
"""Part of the time for which a resource is in use. Above it, most requests wait and queues grow fast."""

SLOW_WRITE_SECONDS: Final = 0.02
"""A healthy device makes a small write durable in 0.1 to 10 ms. Above this every add is slow, at any load."""

LARGE_COMMIT_BYTES: Final = 256 * KIB
"""On most devices a write of this size takes longer than the sync after it, so throughput is the limit, not latency."""

QUEUED_WRITES: Final = 3.0
"""A record waits for the write in flight and for its own, two at most, unless the next block was already full."""

STALLED: Final = 0.05
"""If adds wait for space for a twentieth of the time, every writer notices."""

SLOW_READ_SECONDS: Final = 0.05
"""Five seeks of a hard disk."""

SLOW_LOOKUP_SECONDS: Final = 0.02
"""An index that is in memory answers in microseconds, one on a disk in a read or two."""

MAINLY: Final = 0.5
"""More than half of a time is the main part of it."""

SOME: Final = 1.0
"""Operations per second. With fewer, their duration is not judged."""

NEARLY_FULL: Final = 0.9
"""A read-only bookie with its disk this full is read-only because of the disk space."""

WAITED: Final = 0.01
"""A checkpoint that finds no disk space waits for a second before it tries again."""

_CHECKPOINT_SPACE: Final = ("room in the journal", "room in the write cache", "ledgers that wait for a checkpoint")
_WRITES: Final = ("append", "sync", "mark")
_OF_INDEX: Final = ("index", "index_sync")


def bookie_findings(change: SampleDelta) -> list[BottleneckFinding]:
    """The findings of all rules."""
    found = [rule(change) for rule in RULES]
    return [finding for finding in found if finding is not None]


def _disk_full(change: SampleDelta) -> BottleneckFinding | None:
    waited = change.rate("tallybook_bookie_disk_full_seconds_total")
    used = change.now("tallybook_bookie_disk_used_fraction")
    read_only = change.now("tallybook_bookie_read_only") > 0
    if waited < WAITED and not (read_only and used >= NEARLY_FULL):
        return None
    return BottleneckFinding(
        Cause.DISK_FULL,
        change.name,
        1.0,
        (
            Evidence("of its disk in use", used, "part", NEARLY_FULL),
            Evidence("of the time a checkpoint waited for space", waited, "part", WAITED),
            Evidence("free bytes", change.now("tallybook_bookie_disk_free_bytes"), "bytes"),
        ),
    )


def busiest_journal(change: SampleDelta) -> float:
    """Part of the time for which the busiest journal device writes.

    A write is counted in full when it ends, so one that began before the first sample may exceed the time between both.
    """
    return min(1.0, change.busiest("tallybook_journal_device_seconds_total"))


def _journal(change: SampleDelta) -> BottleneckFinding | None:
    """A journal device that is busy or slow; the cause is its throughput or the latency of a sync.

    Of several journals the busiest counts: each ledger belongs to one journal, and its adds wait for that one.
    """
    busy = busiest_journal(change)
    write = change.mean("tallybook_journal_write_seconds")
    commits = change.rate("tallybook_journal_commits_total")
    slow = write >= SLOW_WRITE_SECONDS and commits >= SOME
    if busy < BUSY and not slow:
        return None
    wait = change.mean("tallybook_journal_commit_seconds")
    size = change.rate("tallybook_journal_bytes_total") / commits if commits else 0.0
    bytes_take_the_time = size >= LARGE_COMMIT_BYTES or (busy >= BUSY and wait >= QUEUED_WRITES * write)
    return BottleneckFinding(
        Cause.JOURNAL if bytes_take_the_time else Cause.DEVICE,
        change.name,
        min(1.0, max(busy, write / SLOW_WRITE_SECONDS / 2 if slow else 0.0)),
        (
            Evidence("of the time the busiest device writes a journal", busy, "part", BUSY),
            Evidence("a durable write", write, "s", SLOW_WRITE_SECONDS),
            Evidence("a group commit, waiting included", wait, "s"),
            Evidence("a group commit", size, "bytes", LARGE_COMMIT_BYTES),
            Evidence("group commits", commits, "/s"),
        ),
    )


def _checkpoints(change: SampleDelta) -> BottleneckFinding | None:
    """Adds that wait for space that a checkpoint frees; the cause is its slowest step."""
    stalled = max(
        change.rate("tallybook_bookie_add_stall_seconds_total", where=where) for where in ("write_cache", "journal")
    )
    refused = sum(change.rate("tallybook_bookie_refused_adds_total", reason=reason) for reason in _CHECKPOINT_SPACE)
    if stalled < STALLED and refused < SOME:
        return None
    writes, index = (
        sum(change.rate("tallybook_bookie_checkpoint_stage_busy_seconds_total", stage=stage) for stage in stages)
        for stages in (_WRITES, _OF_INDEX)
    )
    return BottleneckFinding(
        Cause.INDEX if index > writes else Cause.FLUSH,
        change.name,
        min(1.0, max(stalled, writes + index)),
        (
            Evidence("of the time adds waited for space", stalled, "part", STALLED),
            Evidence("adds refused for lack of space", refused, "/s", SOME),
            Evidence("of the time entry logs were written", writes, "part"),
            Evidence("of the time the index was written", index, "part"),
            Evidence("moved to entry logs, a second", change.rate("tallybook_bookie_flushed_bytes_total"), "bytes"),
        ),
    )


def _lookups(change: SampleDelta) -> BottleneckFinding | None:
    """Index lookups, by reads and by adds to ledgers that are not in memory."""
    busy = change.rate("tallybook_bookie_index_lookup_busy_seconds_total")
    each = change.mean("tallybook_bookie_index_lookup_seconds")
    asked = change.grown("tallybook_bookie_index_lookup_seconds_sum")
    read = change.grown("tallybook_bookie_entry_log_read_seconds_sum")
    often = change.count("tallybook_bookie_index_lookup_seconds") / change.seconds >= SOME
    if asked <= read or not (busy >= BUSY or (each >= SLOW_LOOKUP_SECONDS and often)):
        return None
    return BottleneckFinding(
        Cause.INDEX,
        change.name,
        min(1.0, busy),
        (
            Evidence("of the time the index was read", busy, "part", BUSY),
            Evidence("an index lookup", each, "s", SLOW_LOOKUP_SECONDS),
            Evidence("all questions together", asked, "s"),
            Evidence("all reads from entry logs together", read, "s"),
        ),
    )


def _reads(change: SampleDelta) -> BottleneckFinding | None:
    busy = change.rate("tallybook_bookie_entry_log_read_busy_seconds_total")
    each = change.mean("tallybook_bookie_entry_log_read_seconds")
    spent = change.grown("tallybook_bookie_entry_log_read_seconds_sum")
    reads = change.grown("tallybook_bookie_read_seconds_sum")
    often = change.count("tallybook_bookie_entry_log_read_seconds") / change.seconds >= SOME
    # Entry log reads of scrub and compaction delay no client.
    if reads <= 0 or spent < MAINLY * reads or spent < change.grown("tallybook_bookie_index_lookup_seconds_sum"):
        return None
    if busy < BUSY and not (each >= SLOW_READ_SECONDS and often):
        return None
    return BottleneckFinding(
        Cause.READS,
        change.name,
        min(1.0, busy),
        (
            Evidence("of the time entry logs were read", busy, "part", BUSY),
            Evidence("a read from an entry log", each, "s", SLOW_READ_SECONDS),
            Evidence("a read, from caches or entry logs", change.mean("tallybook_bookie_read_seconds"), "s"),
            *(
                Evidence(
                    f"batches from {name}", change.rate("tallybook_bookie_read_batches_total", source=source), "/s"
                )
                for source, name in (("entry_log", "entry logs"), ("cache", "memory"))
            ),
        ),
    )


RULES: Final[tuple[Callable[[SampleDelta], BottleneckFinding | None], ...]] = (
    _disk_full,
    _journal,
    _checkpoints,
    _lookups,
    _reads,
)
