"""The states of the members of a writer's ensemble, and the missed ranges of each.

    UP     connected: new batches are sent to it
    DOWN   connection lost recently: batches are retained for it
    LOST   unavailable too long, or too far behind: nothing is retained for it; its missed range is recorded
    GONE   its disk was replaced (another directory id): it never comes back

A member that returns from DOWN or LOST gets every retained batch that it has not acked.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from tallybook.core.answers import Incarnation
from tallybook.core.errors import TallybookError
from tallybook.metadata.ledger.model import Fragment, MissedRange

from ..outbox import MemberOutbox

MAX_MISSED_RANGES: Final = 64
"""Ranges recorded for one member; beyond this the last one is extended."""


class MemberState(Enum):
    """The state of a member (see the module docstring)."""

    UP = "up"
    DOWN = "down"
    LOST = "lost"
    GONE = "gone"


@dataclass(slots=True)
class MissedEntries:
    """The missed ranges of one bookie: confirmed entries that it does not have, in order."""

    ranges: list[tuple[int, int]] = field(default_factory=list)
    growing: bool = False
    """Whether the bookie is still unavailable, so that the last range has no end yet."""

    def add(self, first: int, last: int) -> None:
        """Add a missed batch."""
        if self.growing or len(self.ranges) >= MAX_MISSED_RANGES:
            # A range that is too large is harmless: repair checks before it copies.
            start, end = self.ranges[-1]
            self.ranges[-1] = (min(start, first), max(end, last))
        else:
            self.ranges.append((first, last))

    def of(self, bookie_id: str) -> list[MissedRange]:
        """The ranges as recorded in the metadata. An open end is ``None``."""
        ended = [MissedRange(bookie_id, first, last) for first, last in self.ranges]
        if self.growing:
            ended[-1] = MissedRange(bookie_id, self.ranges[-1][0], None)
        return ended


@dataclass(slots=True)
class EnsemblePosition:
    """One ensemble position, and the state of its bookie."""

    bookie_id: str
    state: MemberState = MemberState.DOWN
    away_since: float = 0.0
    """When the bookie last served; a new connection does not count until it acks."""
    unserved_since: float = 0.0
    """The same for the position: a replacement bookie inherits it, until it acks."""
    serving: bool = False
    """Whether it has acked since it connected, or owed nothing then and is not doubted."""
    doubted: bool = False
    """It was lost, or reconnected and left without an ack: only an ack proves that it serves."""
    incarnation: Incarnation | None = None
    """The bookie's incarnation at the last connection; with deferred sync it must not change."""
    unreached: TallybookError | None = None
    """The error of the last connection attempt; ``None`` once connected."""
    refused_with: type[TallybookError] | None = None
    """The last refusal, except Busy; ``None`` from the next ack on."""
    busy_since: float | None = None
    busy_at: float = float("-inf")
    """Time of its last Busy answer."""
    lag_bytes: int = 0
    """Bytes of confirmed batches that are retained for it."""
    behind_since: float | None = None
    """Since when ``lag_bytes`` is above the limit; starts anew once the member has acked more than the limit."""
    caught_up_bytes: int = 0
    """Bytes of confirmed batches acked since ``behind_since``."""
    outbox: MemberOutbox = field(default_factory=MemberOutbox)
    missed: MissedEntries = field(default_factory=MissedEntries)

    @property
    def retained_for(self) -> bool:
        """Whether confirmed batches are retained for it."""
        return self.state in (MemberState.UP, MemberState.DOWN)

    @property
    def serves(self) -> bool:
        """Whether it answers, with acks or with Busy."""
        return self.serving or self.busy_since is not None

    @property
    def described(self) -> str:
        """Its name, and the reason why it does not serve, if known."""
        if self.unreached is not None:
            return f"{self.bookie_id} ({self.unreached.message})"
        return self.bookie_id if self.refused_with is None else f"{self.bookie_id} ({self.refused_with.__name__})"

    @property
    def refuses(self) -> bool:
        """Whether it answers but takes no batches (read-only, failed disk), or its disk was replaced."""
        return self.refused_with is not None or self.state is MemberState.GONE

    @property
    def at_rest(self) -> bool:
        """Whether no timer concerns it: it is neither busy nor disconnected (DOWN)."""
        return self.state is not MemberState.DOWN and self.busy_since is None

    def failed(self, now: float, limit_s: float) -> bool:
        """Whether it should be replaced. A replacement bookie has the whole add timeout for its first ack."""
        away = self.state is MemberState.DOWN and now - self.away_since >= limit_s
        return away or self.doubted or self.state is MemberState.GONE


@dataclass(frozen=True, slots=True)
class EnsembleChange:
    """An ensemble change that is being written to the metadata. Meanwhile nothing is confirmed.

    Once it is written, the acks of replaced members are dropped, and unconfirmed batches are sent to the new members.
    """

    wanted: Fragment
    positions: tuple[int, ...]
