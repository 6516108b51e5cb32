"""When all ledgers are gone over again. Pure.

A walk costs a read of the metadata of every ledger, and that of what bookies hold where some lost data. So it is done
when there is news: a bookie was lost, or lost data, or met damage, or came while something was wrong. What was handed
out is left to those who work at it. Where that mends nothing, as of a ledger that nobody can mend, the pauses between
walks grow, and the longer a walk takes, the longer they may be.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from .needs import Loss
from .walk import Findings

QUIET_SECONDS: Final = 3_600.0
"""All ledgers are gone over so often where nothing is known to be wrong, or others still work at what is."""
LONGEST_PAUSE_SECONDS: Final = 600.0
"""The longest pause where something is wrong and stays so, unless a walk takes long."""
PAUSE_PER_WALK: Final = 10
"""Such a pause may be this many times as long as the walk was."""
MOST_TASKS: Final = 1_000
"""Urgent tasks that are handed out at a time."""
MOST_MOVING_TASKS: Final = 750
"""Of bookies that are to be emptied: a bookie may be lost meanwhile."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Signs:
    """What can be told of the cluster without a walk.

    Args:
        lost: bookies that were away for too long.
        draining: those that are to be emptied.
        limbo: bookies that lost data and have not got all of it back.
        damaged: damaged copies that bookies know of, those that it has been told of and that may be mended included.
        alive: who is there.
        handing_out: the repair is not paused.
    """

    lost: frozenset[str] = frozenset()
    draining: frozenset[str] = frozenset()
    limbo: Mapping[str, Loss] = field(default_factory=dict)
    damaged: Mapping[str, int] = field(default_factory=dict)
    alive: frozenset[str] = frozenset()
    handing_out: bool = True

    def __bool__(self) -> bool:
        """Whether there is something to be done."""
        return bool(self.lost or self.draining or self.limbo or any(self.damaged.values()))

    def are_news(self, before: Signs) -> bool:
        """Whether a walk now may find what the one before could not."""
        if self._heeded() != before._heeded():
            return True
        if any(count > before.damaged.get(name, 0) for name, count in self.damaged.items()):
            return True
        # Who has come may take a place, or have what others lack.
        return bool(self) and self.alive != before.alive

    def _heeded(self) -> tuple[object, ...]:
        """What is news however it changes."""
        return self.lost, self.draining, self.limbo, self.handing_out


class WalkTimes:
    """Says when to walk.

    Args:
        shortest_pause: seconds between two walks that each find less to be done.
    """

    def __init__(self, shortest_pause: float) -> None:
        self._shortest_pause = shortest_pause
        self._pause = shortest_pause
        self._signs: Signs | None = None
        """Those of the last walk; of damage the least that was told since."""
        self._to_do = 0
        self._left_out = False
        self._next_end: float | None = None
        self._ended_at = 0.0

    def is_due(self, signs: Signs, tasks: int, now: float) -> bool:
        """Whether to walk now.

        Args:
            tasks: urgent ones that are handed out and not done.
        """
        if self._signs is None or signs.are_news(self._signs):
            return True
        # What is mended leaves a list, and what comes to it later is news again.
        damaged = {name: min(count, signs.damaged.get(name, count)) for name, count in self._signs.damaged.items()}
        self._signs = replace(self._signs, damaged=damaged)
        if self._next_end is not None and now >= self._next_end:
            return True
        since = now - self._ended_at
        under_way = tasks > (MOST_TASKS // 2 if self._left_out else 0)
        if under_way or not (signs or self._to_do):
            return since >= QUIET_SECONDS
        return since >= self._pause

    def walked(
        self, signs: Signs, findings: Findings, *, left_out: bool, next_end: float | None, began: float, ended: float
    ) -> None:
        """All ledgers were gone over.

        Args:
            signs: as of before the walk.
            left_out: there were more ledgers that need something than could be handed out.
            next_end: when the next ledger is to be ended that is not yet.
        """
        # Of a listing that was cut short, who knows what it has left out.
        to_do = findings.under_replicated + findings.moving + findings.in_limbo + (not findings.complete)
        if self._signs is None or signs.are_news(self._signs) or to_do < self._to_do:
            self._pause = self._shortest_pause
        else:
            longest = max(self._shortest_pause, LONGEST_PAUSE_SECONDS, PAUSE_PER_WALK * (ended - began))
            self._pause = min(2 * self._pause, longest)
        self._signs = signs
        self._to_do, self._left_out = to_do, left_out
        self._next_end, self._ended_at = next_end, ended
