"""Events that a soak test must have caused: an idle cluster would not grow either. Pure."""

from __future__ import annotations

from typing import Final

from ..gates import Figures

WANTED: Final = (
    "confirmed entries", "entries read", "closed ledgers", "deleted ledgers", "entries read again",
    "strikes", "loads through the gateway",
    "collector_rounds", "ledgers_dropped", "entry_logs_removed", "compacted_bytes", "scrub_rounds",
    "repair_rounds", "repair_places", "repair_copied_batches",
)  # fmt: skip
"""Counters that must be above 0 in a judged soak test."""


def left_undone(figures: Figures) -> list[str]:
    """The events that never happened."""
    return [name for name in WANTED if not figures.get(name)]
