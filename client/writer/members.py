"""How the members of a writer's ensemble stand, and what each of them lacks.

A member is

    UP     connected: new batches are sent to it
    DOWN   connection lost a short while ago: batches are retained for it
    LOST   away too long, or too far behind: nothing is retained for it; what it misses is recorded
    GONE   another bookie answered at its place: it never comes back

One that returns from DOWN or LOST gets every batch still held that it has not acked.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from tallybook.core.errors import TallybookError
from tallybook.metadata.model import MissedRange

from .outbox import Outbox

MAX_MISSED_RANGES: Final = 64
"""Ranges recorded for one member; beyond it the last one is stretched."""


class Member(Enum):
    """How a position of the ensemble stands (see the module's text)."""

    UP = "up"
    DOWN = "down"
    LOST = "lost"
    GONE = "gone"


@dataclass(slots=True)
class Missed:
    """The confirmed entries that one bookie was not there for, in order."""

    ranges: list[tuple[int, int]] = field(default_factory=list)
    growing: bool = False
    """Whether the bookie is still away, so that the last range has no end yet."""

    def add(self, first: int, last: int) -> None:
        """It was not there for these."""
        if self.growing or len(self.ranges) >= MAX_MISSED_RANGES:
            # Naming too much is harmless: repair looks before it copies.
            start, end = self.ranges[-1]
            self.ranges[-1] = (min(start, first), max(end, last))
        else:
            self.ranges.append((first, last))

    def of(self, bookie_id: str) -> list[MissedRange]:
        """As the metadata say it. An open end is ``None``."""
        ended = [MissedRange(bookie_id, first, last) for first, last in self.ranges]
        if self.growing:
            ended[-1] = MissedRange(bookie_id, self.ranges[-1][0], None)
        return ended


@dataclass(slots=True)
class Position:
    """One position of the ensemble, and the bookie that holds it."""

    bookie_id: str
    state: Member = Member.DOWN
    away_since: float = 0.0
    """When it was last known to serve: connecting again proves nothing until it acks."""
    unserved_since: float = 0.0
    """The same for the position: whoever takes it starts with the debt of those before, until an ack."""
    serving: bool = False
    """Whether it has acked since it connected, or owed nothing then and is not doubted."""
    doubted: bool = False
    """It was lost, or came back and left without an ack: only an ack proves that it serves."""
    unreached: TallybookError | None = None
    """Why the last attempt to connect to it failed, since it was connected to."""
    refused_with: type[TallybookError] | None = None
    """Why it did not take what it was sent last, unless it was merely busy; ``None`` from the next ack on."""
    busy_since: float | None = None
    busy_at: float = float("-inf")
    """When it last said that it is."""
    lag_bytes: int = 0
    """Of what is confirmed and retained for it."""
    behind_since: float | None = None
    """Since when ``lag_bytes`` is above the limit; begins anew once the member has acked more than the limit of it."""
    caught_up_bytes: int = 0
    """How many bytes of confirmed batches it has acked since ``behind_since``."""
    outbox: Outbox = field(default_factory=Outbox)
    missed: Missed = field(default_factory=Missed)

    @property
    def retained_for(self) -> bool:
        """Whether confirmed batches are kept for it."""
        return self.state in (Member.UP, Member.DOWN)

    @property
    def serves(self) -> bool:
        """Whether it answers: with acks, or by saying that it is busy."""
        return self.serving or self.busy_since is not None

    @property
    def described(self) -> str:
        """Its name, and why it cannot be reached or takes nothing, where that is known."""
        if self.unreached is not None:
            return f"{self.bookie_id} ({self.unreached.message})"
        return self.bookie_id if self.refused_with is None else f"{self.bookie_id} ({self.refused_with.__name__})"

    @property
    def refuses(self) -> bool:
        """Whether it answers and takes no batch (read-only, a failed disk), or another bookie answers in its place."""
        return self.refused_with is not None or self.state is Member.GONE

    @property
    def at_rest(self) -> bool:
        """Whether it is there and not busy, or given up: who is away for a moment may be lost by time alone."""
        return self.state is not Member.DOWN and self.busy_since is None

    def failed(self, now: float, patience_s: float) -> bool:
        """Whether another bookie should take its place. A newcomer has the whole add timeout for its first ack."""
        away = self.state is Member.DOWN and now - self.away_since >= patience_s
        return away or self.doubted or self.state is Member.GONE
