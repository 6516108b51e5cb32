"""The copies that a recovery has read and not settled yet, in order, and what each member answered about them. Pure."""

from __future__ import annotations

from collections.abc import ItemsView
from dataclasses import dataclass, field
from typing import Final

from tallybook.core.batch import BatchHeader
from tallybook.core.errors import TallybookError
from tallybook.core.quorum import Quorum

WINDOW_BATCHES: Final = 512
"""Most batches that are read before their copies are settled."""

WINDOW_BYTES: Final = 16 << 20
"""Bytes of copies from which on no more are read before some are settled."""


@dataclass(slots=True)
class Copy:
    """A verified copy of one batch, and what each member answered when it was added again."""

    header: BatchHeader
    batch: bytes
    adds: dict[int, TallybookError | None] = field(default_factory=dict)
    acked: bool = False
    """Whether an ack quorum holds it."""

    @property
    def entry_id(self) -> int:
        """The first entry."""
        return self.header.first_entry_id

    @property
    def good(self) -> list[int]:
        """The positions that hold the batch durably."""
        return [at for at, failure in self.adds.items() if failure is None]

    @property
    def failures(self) -> ItemsView[int, TallybookError]:
        """The positions that do not, each with its answer."""
        return {at: failure for at, failure in self.adds.items() if failure is not None}.items()


class Window:
    """Copies by their first entries, in order. It counts, so that an answer costs the same however many there are."""

    def __init__(self, quorum: Quorum) -> None:
        self._quorum = quorum
        self.copies: dict[int, Copy] = {}
        self.bytes = 0
        self.unanswered = 0
        """Copies that some member of the write set has not answered."""
        self.unacked = 0
        """Copies that no ack quorum holds."""

    def room(self, share: int = 1) -> bool:
        """Whether more is to be read; ``share`` 2: whether half of it is free."""
        return len(self.copies) < WINDOW_BATCHES // share and self.bytes < WINDOW_BYTES // share

    def put(self, copy: Copy) -> None:
        """Take a copy in, behind the others."""
        self.copies[copy.entry_id] = copy
        self.bytes += len(copy.batch)
        self._count(copy, 1)

    def answer(self, entry_id: int, position: int, failure: TallybookError | None) -> None:
        """A member has answered."""
        copy = self.copies[entry_id]
        self._count(copy, -1)
        copy.adds[position] = failure
        self._judge(copy)

    def forget(self, entry_id: int, position: int) -> None:
        """Another member takes the position, and has not answered yet."""
        copy = self.copies[entry_id]
        self._count(copy, -1)
        del copy.adds[position]
        self._judge(copy)

    def drop_first(self) -> None:
        """The first copy is settled."""
        copy = self.copies.pop(next(iter(self.copies)))
        self.bytes -= len(copy.batch)
        self._count(copy, -1)

    def clear(self) -> None:
        """All of them are settled."""
        self.copies = {}
        self.bytes = self.unanswered = self.unacked = 0

    def _judge(self, copy: Copy) -> None:
        copy.acked = self._quorum.acked(copy.good, copy.entry_id)
        self._count(copy, 1)

    def _count(self, copy: Copy, by: int) -> None:
        self.unanswered += by * (len(copy.adds) < self._quorum.write_quorum)
        self.unacked += by * (not copy.acked)
