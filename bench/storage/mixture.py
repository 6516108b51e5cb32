"""Sizes of the ledgers that fill a bookie, and the choice of ledgers to delete, drawn from a seed. Pure.

Sizes are log-uniform, so most ledgers are small and most bytes are in large ones; deletion is independent of the size.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, log
from typing import Final, NamedTuple

from tallybook.core.limits import KIB
from tallybook.runtime.rng import SeededRng

SMALLEST_BYTES: Final = 16 * KIB
LARGEST_PART: Final = 320
"""The largest ledger has at most 1/320 of all bytes: 16 MiB of 5 GiB."""
ENTRY_BYTES: Final = (KIB, 4 * KIB, 16 * KIB)


class WrittenLedger(NamedTuple):
    """A written ledger."""

    ledger_id: int
    size: int
    """Payload bytes."""


def sizes(seed: int, total_bytes: int) -> list[tuple[int, int]]:
    """Payload and entry sizes of ledgers with about ``total_bytes`` in total."""
    rng = SeededRng(seed)
    max_bytes = max(2 * SMALLEST_BYTES, total_bytes // LARGEST_PART)
    found: list[tuple[int, int]] = []
    left = total_bytes
    while left > 0:
        size = int(exp(log(SMALLEST_BYTES) + rng.random() * (log(max_bytes) - log(SMALLEST_BYTES))))
        entry_bytes = ENTRY_BYTES[rng.randint(0, len(ENTRY_BYTES) - 1)]
        size = max(entry_bytes, size // entry_bytes * entry_bytes)
        found.append((size, entry_bytes))
        left -= size
    return found


def some_of(ledgers: Sequence[WrittenLedger], percent: int) -> list[WrittenLedger]:
    """A random selection of ``percent`` of the ledgers."""
    rng = SeededRng(len(ledgers))
    return sorted(ledgers, key=lambda _: rng.random())[: len(ledgers) * percent // 100]
