"""What the numbers of a bookie say about what adds and reads there wait for. Pure.

Each rule is a function that gives a finding, or ``None``. The thresholds stand together, each with its reason.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tallybook.core.limits import KIB

from .causes import Cause, Evidence, Finding
from .samples import Change

BUSY: Final = 0.8
"""A resource that is in use for so much of the time is waited for by most who come: above it, queues grow fast."""

SLOW_WRITE_SECONDS: Final = 0.02
"""A sound device makes a small write durable in 0.1 to 10 ms. From here on every add is slow, however few there are."""

LARGE_COMMIT_BYTES: Final = 256 * KIB
"""A write of this size takes longer than the sync behind it, on most devices: it is the bytes that take the time."""

QUEUED_WRITES: Final = 3.0
"""A record waits for the write under way and for its own, two at the most, unless it found the next block full."""

STALLED: Final = 0.05
"""Adds that wait for room for one part in twenty of the time are noticed by every writer."""

SLOW_READ_SECONDS: Final = 0.05
"""Five seeks of a hard disk."""

SLOW_LOOKUP_SECONDS: Final = 0.02
"""An index that is in memory answers in microseconds, one on a disk in a read or two."""

MAINLY: Final = 0.5
"""More than half of a time is the main part of it."""

SOME: Final = 1.0
"""Fewer in a second are not judged by how long they took."""

NEARLY_FULL: Final = 0.9
"""A bookie that takes no ordinary adds while its disk is that full does so for want of room."""

WAITED: Final = 0.01
"""A checkpoint that finds no room waits for a second before it tries again."""

_CHECKPOINT_ROOM: Final = ("room in the journal", "room in the write cache", "ledgers that wait for a checkpoint")
_WRITES: Final = ("append", "sync", "mark")
_OF_INDEX: Final = ("index", "index_sync")


def bookie_findings(change: Change) -> list[Finding]:
    """All that is found."""
    found = [rule(change) for rule in RULES]
    return [finding for finding in found if finding is not None]


def _disk_full(change: Change) -> Finding | None:
    waited = change.rate("tallybook_bookie_disk_full_seconds_total")
    used = change.now("tallybook_bookie_disk_used_fraction")
    read_only = change.now("tallybook_bookie_read_only") > 0
    if waited < WAITED and not (read_only and used >= NEARLY_FULL):
        return None
    return Finding(
        Cause.DISK_FULL,
        change.name,
        1.0,
        (
            Evidence("of its disk in use", used, "part", NEARLY_FULL),
            Evidence("of the time a checkpoint waited for room", waited, "part", WAITED),
            Evidence("free bytes", change.now("tallybook_bookie_disk_free_bytes"), "bytes"),
        ),
    )


def busiest_journal(change: Change) -> float:
    """Part of the time for which the device of one journal writes, the busiest.

    A write is counted once it has ended, all of it: one that began long ago is more than the time between two looks.
    """
    return min(1.0, change.busiest("tallybook_journal_device_seconds_total"))


def _journal(change: Change) -> Finding | None:
    """The device of a journal: busy, or slow; by what takes the time it is the bytes, or the sync.

    Of several journals the busiest: ledgers belong to one each, and those that belong to it wait.
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
    return Finding(
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


def _checkpoints(change: Change) -> Finding | None:
    """Adds that wait for what only checkpoints make; which of their steps takes the time."""
    stalled = max(
        change.rate("tallybook_bookie_add_stall_seconds_total", where=where) for where in ("write_cache", "journal")
    )
    refused = sum(change.rate("tallybook_bookie_refused_adds_total", reason=reason) for reason in _CHECKPOINT_ROOM)
    if stalled < STALLED and refused < SOME:
        return None
    writes, index = (
        sum(change.rate("tallybook_bookie_checkpoint_stage_busy_seconds_total", stage=stage) for stage in stages)
        for stages in (_WRITES, _OF_INDEX)
    )
    return Finding(
        Cause.INDEX if index > writes else Cause.FLUSH,
        change.name,
        min(1.0, max(stalled, writes + index)),
        (
            Evidence("of the time adds waited for room", stalled, "part", STALLED),
            Evidence("adds refused for want of room", refused, "/s", SOME),
            Evidence("of the time entry logs were written", writes, "part"),
            Evidence("of the time the index was written", index, "part"),
            Evidence("moved to entry logs, a second", change.rate("tallybook_bookie_flushed_bytes_total"), "bytes"),
        ),
    )


def _lookups(change: Change) -> Finding | None:
    """The index as it is asked: by readers, and by adds to ledgers that are not in memory."""
    busy = change.rate("tallybook_bookie_index_lookup_busy_seconds_total")
    each = change.mean("tallybook_bookie_index_lookup_seconds")
    asked = change.grown("tallybook_bookie_index_lookup_seconds_sum")
    read = change.grown("tallybook_bookie_entry_log_read_seconds_sum")
    often = change.count("tallybook_bookie_index_lookup_seconds") / change.seconds >= SOME
    if asked <= read or not (busy >= BUSY or (each >= SLOW_LOOKUP_SECONDS and often)):
        return None
    return Finding(
        Cause.INDEX,
        change.name,
        min(1.0, busy),
        (
            Evidence("of the time the index was asked", busy, "part", BUSY),
            Evidence("a question to it", each, "s", SLOW_LOOKUP_SECONDS),
            Evidence("all questions together", asked, "s"),
            Evidence("all reads from entry logs together", read, "s"),
        ),
    )


def _reads(change: Change) -> Finding | None:
    busy = change.rate("tallybook_bookie_entry_log_read_busy_seconds_total")
    each = change.mean("tallybook_bookie_entry_log_read_seconds")
    spent = change.grown("tallybook_bookie_entry_log_read_seconds_sum")
    reads = change.grown("tallybook_bookie_read_seconds_sum")
    often = change.count("tallybook_bookie_entry_log_read_seconds") / change.seconds >= SOME
    # Who reads nothing for a reader, but scrubs or compacts, keeps nobody waiting.
    if reads <= 0 or spent < MAINLY * reads or spent < change.grown("tallybook_bookie_index_lookup_seconds_sum"):
        return None
    if busy < BUSY and not (each >= SLOW_READ_SECONDS and often):
        return None
    return Finding(
        Cause.READS,
        change.name,
        min(1.0, busy),
        (
            Evidence("of the time entry logs were read", busy, "part", BUSY),
            Evidence("a read from an entry log", each, "s", SLOW_READ_SECONDS),
            Evidence("a read, wherever it was found", change.mean("tallybook_bookie_read_seconds"), "s"),
            *(
                Evidence(
                    f"batches from {told}", change.rate("tallybook_bookie_read_batches_total", source=source), "/s"
                )
                for source, told in (("entry_log", "entry logs"), ("cache", "memory"))
            ),
        ),
    )


RULES: Final[tuple[Callable[[Change], Finding | None], ...]] = (_disk_full, _journal, _checkpoints, _lookups, _reads)
