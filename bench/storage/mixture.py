"""Which ledgers a bookie is filled with, and which of them are deleted: drawn from a seed. Pure.

Sizes are spread evenly over the orders of magnitude, so that there are many small ledgers and most bytes are in large
ones; what is deleted does not depend on the size.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, log
from typing import Final, NamedTuple

from tallybook.core.limits import KIB
from tallybook.runtime.rng import SeededRng

SMALLEST_BYTES: Final = 16 * KIB
LARGEST_PART: Final = 320
"""The largest ledger has at most one part in so many of all bytes: of 5 GiB, 16 MiB."""
ENTRY_BYTES: Final = (KIB, 4 * KIB, 16 * KIB)


class Ledger(NamedTuple):
    """One that was written."""

    ledger_id: int
    size: int
    """Of its payload, in bytes."""


def sizes(seed: int, total_bytes: int) -> list[tuple[int, int]]:
    """Payload and entry size of ledgers that have about ``total_bytes`` together."""
    rng = SeededRng(seed)
    most = max(2 * SMALLEST_BYTES, total_bytes // LARGEST_PART)
    found: list[tuple[int, int]] = []
    left = total_bytes
    while left > 0:
        size = int(exp(log(SMALLEST_BYTES) + rng.random() * (log(most) - log(SMALLEST_BYTES))))
        entry_bytes = ENTRY_BYTES[rng.randint(0, len(ENTRY_BYTES) - 1)]
        size = max(entry_bytes, size // entry_bytes * entry_bytes)
        found.append((size, entry_bytes))
        left -= size
    return found


def some_of(ledgers: Sequence[Ledger], percent: int) -> list[Ledger]:
    """So many of them, drawn at random."""
    rng = SeededRng(len(ledgers))
    return sorted(ledgers, key=lambda _: rng.random())[: len(ledgers) * percent // 100]
