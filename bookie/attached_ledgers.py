"""Ledgers that a writer's connection has attached, over all Add streams of a bookie: it may have a writer."""

from __future__ import annotations


class AttachedLedgers:
    """How many streams have each ledger attached."""

    def __init__(self) -> None:
        self._streams: dict[int, int] = {}

    def __contains__(self, ledger_id: int) -> bool:
        return ledger_id in self._streams

    def add(self, ledger_id: int) -> None:
        """One more stream has it attached."""
        self._streams[ledger_id] = self._streams.get(ledger_id, 0) + 1

    def remove(self, ledger_id: int) -> None:
        """One of the streams that had it attached has it no longer."""
        left = self._streams.pop(ledger_id) - 1
        if left:
            self._streams[ledger_id] = left
