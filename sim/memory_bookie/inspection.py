"""Answers of an in-memory bookie to repair and inspection requests, as pure functions.

It has no caches and no entry logs: a copy counts as in its write cache, and is damaged if a test planted a fault.
"""

from __future__ import annotations

from collections.abc import Mapping

from tallybook.core.answers import (
    BookieStatus,
    CopyPlace,
    CopyTrace,
    DamagedBatch,
    EntryRange,
    HeldAnswer,
    HeldLedger,
    HeldLedgers,
)
from tallybook.core.batch import BatchHeader, decode_header
from tallybook.core.ids import NO_ENTRY
from tallybook.core.limits import MAX_PAGE

from .faults import MemoryFaults
from .ledger import MemoryLedger

MemoryLedgers = Mapping[int, MemoryLedger]


def held_ranges(ledgers: MemoryLedgers, faults: MemoryFaults, ledger_id: int, first: int, last: int) -> HeldAnswer:
    """See ``LedgerStore.held``."""
    ranges: list[EntryRange] = []
    looked_up_to = last
    for header in _headers(ledgers, ledger_id, first, last):
        if ranges and header.first_entry_id == ranges[-1].last + 1:
            ranges[-1] = EntryRange(ranges[-1].first, header.last_entry_id)
        elif len(ranges) == MAX_PAGE:
            looked_up_to = ranges[-1].last
            break
        else:
            ranges.append(EntryRange(header.first_entry_id, header.last_entry_id))
    return HeldAnswer(tuple(ranges), looked_up_to, faults.in_limbo(ledger_id))


def held_ledgers(ledgers: MemoryLedgers, faults: MemoryFaults, after: int, limit: int) -> HeldLedgers:
    """See ``LedgerStore.held_ledgers``."""
    limit = min(limit, MAX_PAGE)
    ids = sorted(each for each, ledger in ledgers.items() if each > after and ledger.last_held > NO_ENTRY)
    held = ((each, ledgers[each]) for each in ids[:limit])
    listed = [HeldLedger(each, ledger.fenced, faults.in_limbo(each), ledger.identity) for each, ledger in held]
    return HeldLedgers(tuple(listed), complete=len(ids) <= limit)


def damaged(
    ledgers: MemoryLedgers, faults: MemoryFaults, after: tuple[int, int], limit: int
) -> tuple[DamagedBatch, ...]:
    """See ``LedgerStore.damaged``."""
    found = [
        DamagedBatch(ledger_id, header.first_entry_id, header.last_entry_id)
        for ledger_id, ledger in sorted(ledgers.items())
        for header in map(decode_header, ledger.batches.values())
        if faults.damages(header) and (ledger_id, header.first_entry_id) > after
    ]
    return tuple(found[: min(limit, MAX_PAGE)])


def status(ledgers: MemoryLedgers, faults: MemoryFaults, *, read_only: bool, uptime_seconds: float) -> BookieStatus:
    """See ``LedgerStore.status``."""
    events, below = faults.limbo_marker
    return BookieStatus(
        read_only=read_only,
        disk_used_fraction=0.0,
        free_bytes=0,
        entry_log_bytes=0,
        entry_logs=0,
        journal_used_fraction=0.0,
        ledgers_in_memory=len(ledgers),
        damaged_batches=len(damaged(ledgers, faults, (NO_ENTRY, NO_ENTRY), MAX_PAGE)),
        limbo_events=events,
        limbo_below=below,
        scrub_rounds=0,
        uptime_seconds=uptime_seconds,
    )


def trace(ledgers: MemoryLedgers, faults: MemoryFaults, ledger_id: int, entry_id: int) -> CopyTrace:
    """See ``LedgerStore.trace``."""
    ledger = ledgers.get(ledger_id, MemoryLedger())
    limbo = faults.in_limbo(ledger_id)
    batch = ledger.find(entry_id)
    if batch is None:
        verdict = "unknown" if limbo else "absent"
        return CopyTrace(verdict, "", NO_ENTRY, NO_ENTRY, 0, 0, ledger.lac, ledger.fenced, limbo, ())
    header = decode_header(batch)
    rotten = faults.damages(header)
    places = tuple(CopyPlace(where, "in memory", len(batch)) for where in ("write cache", "journal"))
    return CopyTrace(
        "damaged" if rotten else "intact", "planted damage" if rotten else "",
        header.first_entry_id, header.last_entry_id, 0 if rotten else header.crc, len(batch),
        ledger.lac, ledger.fenced, limbo, places,
    )  # fmt: skip


def _headers(ledgers: MemoryLedgers, ledger_id: int, first: int, last: int) -> list[BatchHeader]:
    ledger = ledgers.get(ledger_id)
    return [] if ledger is None else [decode_header(batch) for batch in ledger.overlapping(first, last)]
