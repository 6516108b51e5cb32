"""What a soak must have done: a cluster in which nothing happens does not grow either. Pure."""

from __future__ import annotations

from typing import Final

from tallybook.bench.gates import Figures

WANTED: Final = (
    "confirmed entries", "entries read", "closed ledgers", "deleted ledgers", "entries read again",
    "strikes", "loads through the gateway",
    "collector_rounds", "ledgers_dropped", "entry_logs_removed", "compacted_bytes", "scrub_rounds",
    "repair_rounds", "repair_places", "repair_copied_batches",
)  # fmt: skip
"""Of each of these a soak that is judged does something."""


def left_undone(figures: Figures) -> list[str]:
    """What never happened."""
    return [name for name in WANTED if not figures.get(name)]
