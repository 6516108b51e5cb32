"""Decides when the auditor walks over all ledgers again. Pure.

A walk reads the metadata of every ledger, and the inventories of bookies that lost data. So the auditor walks when the
state of the cluster changed: a bookie was lost, lost data, found damage, or registered while something was wrong. While
published tasks are in progress it waits. If walks find the same problems again (ledgers that cannot be repaired), the
pauses between walks grow, in proportion to the duration of a walk.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from .ledger_walk import WalkFindings
from .needs import DataLoss

QUIET_SECONDS: Final = 3_600.0
"""Pause between walks while no problem is known, or replicators still work on the known ones."""
MAX_PAUSE_SECONDS: Final = 600.0
"""The longest pause between walks while a problem stays, unless a walk takes long."""
PAUSE_PER_WALK: Final = 10
"""After a long walk, the pause may be this many times as long as the walk."""
MAX_TASKS: Final = 1_000
"""Urgent tasks that are published at a time."""
MAX_DRAIN_TASKS: Final = 750
"""The limit for drain tasks; lower, so that tasks can be published if a bookie is lost meanwhile."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSigns:
    """The state of the cluster as the auditor knows it without a walk.

    Args:
        lost: bookies that have been away for too long.
        draining: bookies to be emptied.
        limbo: bookies that lost data and have not got all of it back.
        damaged: for each bookie, the damaged copies that it knows; some may be repaired already.
        alive: registered bookies.
        publishing: tasks are published: the repair is not paused.
    """

    lost: frozenset[str] = frozenset()
    draining: frozenset[str] = frozenset()
    limbo: Mapping[str, DataLoss] = field(default_factory=dict)
    damaged: Mapping[str, int] = field(default_factory=dict)
    alive: frozenset[str] = frozenset()
    publishing: bool = True

    def __bool__(self) -> bool:
        """Whether something needs repair."""
        return bool(self.lost or self.draining or self.limbo or any(self.damaged.values()))

    def changed_since(self, before: ClusterSigns) -> bool:
        """Whether a walk may find more now than at the time of ``before``."""
        if self._compared() != before._compared():
            return True
        if any(count > before.damaged.get(name, 0) for name, count in self.damaged.items()):
            return True
        # A bookie that registered can be a replacement, or have copies that others lack.
        return bool(self) and self.alive != before.alive

    def _compared(self) -> tuple[object, ...]:
        """The fields of which every change counts."""
        return self.lost, self.draining, self.limbo, self.publishing


class WalkSchedule:
    """Decides when the next walk is due.

    Args:
        shortest_pause: seconds between two walks while each finds fewer problems.
    """

    def __init__(self, shortest_pause: float) -> None:
        self._shortest_pause = shortest_pause
        self._pause = shortest_pause
        self._signs: ClusterSigns | None = None
        """The signs of the last walk, with the lowest damage count of each bookie since then."""
        self._to_do = 0
        self._left_out = False
        self._next_end: float | None = None
        self._ended_at = 0.0

    def is_due(self, signs: ClusterSigns, tasks: int, now: float) -> bool:
        """Whether to walk now.

        Args:
            tasks: urgent tasks that are published and not done.
            now: monotonic seconds.
        """
        if self._signs is None or signs.changed_since(self._signs):
            return True
        # Repaired copies leave a bookie's damage list. If the list grows again later, that is a change.
        damaged = {name: min(count, signs.damaged.get(name, count)) for name, count in self._signs.damaged.items()}
        self._signs = replace(self._signs, damaged=damaged)
        if self._next_end is not None and now >= self._next_end:
            return True
        since = now - self._ended_at
        in_flight = tasks > (MAX_TASKS // 2 if self._left_out else 0)
        if in_flight or not (signs or self._to_do):
            return since >= QUIET_SECONDS
        return since >= self._pause

    def record_walk(
        self,
        signs: ClusterSigns,
        findings: WalkFindings,
        *,
        left_out: bool,
        next_end: float | None,
        began: float,
        ended: float,
    ) -> None:
        """Record the result of a walk.

        Args:
            signs: from before the walk.
            left_out: not all ledgers that need repair could be published.
            next_end: when the grace period of the next open ledger ends; ``None``: no ledger is waiting.
            began, ended: monotonic seconds.
        """
        # An incomplete listing may have left out ledgers that need repair.
        to_do = findings.under_replicated + findings.moving + findings.in_limbo + (not findings.complete)
        if self._signs is None or signs.changed_since(self._signs) or to_do < self._to_do:
            self._pause = self._shortest_pause
        else:
            longest = max(self._shortest_pause, MAX_PAUSE_SECONDS, PAUSE_PER_WALK * (ended - began))
            self._pause = min(2 * self._pause, longest)
        self._signs = signs
        self._to_do, self._left_out = to_do, left_out
        self._next_end, self._ended_at = next_end, ended
