"""The window of a recovery: copies that are being written back, in order, with each member's answer. Pure."""

from __future__ import annotations

from collections.abc import ItemsView
from dataclasses import dataclass, field
from typing import Final

from tallybook.core.batch import BatchHeader
from tallybook.core.errors import TallybookError
from tallybook.core.quorum import Quorum

WINDOW_BATCHES: Final = 512
"""Batches in the window at most."""

WINDOW_BYTES: Final = 16 << 20
"""Bytes in the window above which no more batches are read."""


@dataclass(slots=True)
class BatchCopy:
    """A verified copy of one batch, and each member's answer to its recovery add."""

    header: BatchHeader
    batch: bytes
    adds: dict[int, TallybookError | None] = field(default_factory=dict)
    acked: bool = False
    """Whether an ack quorum has it."""

    @property
    def entry_id(self) -> int:
        """The first entry."""
        return self.header.first_entry_id

    @property
    def good(self) -> list[int]:
        """The positions that have the batch on disk."""
        return [at for at, failure in self.adds.items() if failure is None]

    @property
    def failures(self) -> ItemsView[int, TallybookError]:
        """The positions that do not, each with its error."""
        return {at: failure for at, failure in self.adds.items() if failure is not None}.items()


class RecoveryWindow:
    """Copies by first entry, in order, with counters, so that each answer takes constant time."""

    def __init__(self, quorum: Quorum) -> None:
        self._quorum = quorum
        self.copies: dict[int, BatchCopy] = {}
        self.bytes = 0
        self.unanswered = 0
        """Copies that some member of the write set has not answered."""
        self.unacked = 0
        """Copies without an ack quorum."""

    def has_space(self, share: int = 1) -> bool:
        """Whether the window has space for more batches; ``share`` 2: whether half of it is free."""
        return len(self.copies) < WINDOW_BATCHES // share and self.bytes < WINDOW_BYTES // share

    def put(self, copy: BatchCopy) -> None:
        """Append a copy."""
        self.copies[copy.entry_id] = copy
        self.bytes += len(copy.batch)
        self._count(copy, 1)

    def answer(self, entry_id: int, position: int, failure: TallybookError | None) -> None:
        """Record the answer of a member; ``None``: it has the batch."""
        copy = self.copies[entry_id]
        self._count(copy, -1)
        copy.adds[position] = failure
        self._judge(copy)

    def forget(self, entry_id: int, position: int) -> None:
        """Drop the answer of a position: a replacement bookie takes it."""
        copy = self.copies[entry_id]
        self._count(copy, -1)
        del copy.adds[position]
        self._judge(copy)

    def drop_first(self) -> None:
        """Remove the first copy."""
        copy = self.copies.pop(next(iter(self.copies)))
        self.bytes -= len(copy.batch)
        self._count(copy, -1)

    def clear(self) -> None:
        """Remove all copies."""
        self.copies = {}
        self.bytes = self.unanswered = self.unacked = 0

    def _judge(self, copy: BatchCopy) -> None:
        copy.acked = self._quorum.acked(copy.good, copy.entry_id)
        self._count(copy, 1)

    def _count(self, copy: BatchCopy, by: int) -> None:
        self.unanswered += by * (len(copy.adds) < self._quorum.write_quorum)
        self.unacked += by * (not copy.acked)
