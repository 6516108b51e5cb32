"""Reads of a ledger besides following it to its end: single entries, and unconfirmed ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tallybook.client.reader.handle import LedgerReader
from tallybook.core.errors import EntryAbsent
from tallybook.runtime.rng import Rng

from .history import Reading

SINGLE_READS: Final = 8
SINGLE_READS_SHARE: Final = 0.4
"""Share of the readers that read single entries first."""


async def read_single(rng: Rng, reader: LedgerReader, reading: Reading) -> None:
    """Sometimes read a few entries that are known to be confirmed, one by one, in any order.

    A bookie may serve them without the rest of their batches.
    """
    last = reader.last_add_confirmed
    if last < 0 or rng.random() >= SINGLE_READS_SHARE:
        return
    for _ in range(SINGLE_READS):
        entry = await reader.read_entry(rng.randint(0, last))
        reading.saw(entry.entry_id, entry.payload)
        reading.begin()


async def read_unconfirmed(reader: LedgerReader, reading: Reading, mark: Callable[[str], None]) -> None:
    """Read unconfirmed entries: none are promised, but any must have been appended."""
    first = max(0, reader.last_add_confirmed)
    try:
        async for entry in reader.read_unconfirmed(first, first + 10):
            reading.saw(entry.entry_id, entry.payload)
            mark("reader: saw unconfirmed entries")
    except EntryAbsent:
        mark("reader: nothing unconfirmed")
