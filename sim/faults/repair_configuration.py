"""The part of a run's shape that is about the repair: how many take part, and how soon they give a bookie up.

A part of the runs without a theme has one. It is drawn by itself, so that the other runs are what they would be
without. Such a run has enough bookies for others to take the places of a lost one, and all of them scrub: rot that
nobody has met is mended by nobody.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from tallybook.core.config import RepairSettings
from tallybook.core.limits import KIB
from tallybook.runtime.rng import Rng

if TYPE_CHECKING:
    from .swarm import Swarm

SHARE: Final = 0.25
"""Of the runs without a theme that have a repair."""

FEWEST_BOOKIES: Final = 5
REPAIR_FAULTS: Final = {"drain": 10.0, "absence": 6.0, "repairer_kill": 4.0, "replaced_disk": 4.0}
"""Faults that strike there, with their weights, besides the others."""

LOSING_SHARE: Final = 0.6
"""Of these runs, those in which a disk may be replaced under any ledger: none has a password or is confirmed by one."""
LOSING_QUORUMS: Final = ((3, 3, 2, 1), (4, 3, 2, 2), (2, 2, 2, 1))

LONGER_SECONDS: Final = 2.0
"""Such runs go on for longer: only what is closed is repaired."""
MOST_THINKING_SECONDS: Final = 0.3

LEFTOVERS_SECONDS: Final = 15
"""Bookies keep copies that others have now for so long: longer than from a look at them to the metadata."""


@dataclass(frozen=True, slots=True)
class RepairSwarm:
    """What there is of a repair in one run. Durations in seconds."""

    repairers: int
    rivals: bool
    """They all audit, all of the time: that one does it saves work, and no promise rests on it."""
    lost_after_s: int
    open_grace_s: int
    check_period_s: int
    concurrent: int
    bytes_per_second: int

    def settings(self) -> RepairSettings:
        """What every repairer runs with."""
        return RepairSettings(
            lost_after_s=self.lost_after_s,
            open_grace_s=self.open_grace_s,
            interval_s=1,
            check_period_s=self.check_period_s,
            concurrent_ledgers=self.concurrent,
            bytes_per_second=self.bytes_per_second,
            lease_s=1,
        )


def _pick(rng: Rng, *choices: int) -> int:
    return choices[rng.randint(0, len(choices) - 1)]


def _repair(rng: Rng) -> RepairSwarm:
    repairers = _pick(rng, 1, 2, 2)
    return RepairSwarm(
        repairers=repairers,
        rivals=repairers > 1 and rng.random() < 0.5,
        lost_after_s=_pick(rng, 0, 1, 3),
        open_grace_s=_pick(rng, 0, 1, 3),
        check_period_s=_pick(rng, 0, 2, 5),
        concurrent=_pick(rng, 1, 2, 4),
        bytes_per_second=_pick(rng, 0, 0, 64 * KIB),
    )


def with_repair(swarm: Swarm, rng: Rng) -> Swarm:
    """The same run, which for some has a repair."""
    if swarm.theme or rng.random() >= SHARE:
        return swarm
    faults = dict(swarm.faults) | REPAIR_FAULTS if swarm.faults else {}
    repair, losing = _repair(rng), rng.random() < LOSING_SHARE
    return replace(
        swarm,
        repair=repair,
        quorums=LOSING_QUORUMS if losing else swarm.quorums,
        passwords=swarm.passwords and not losing,
        hmac=swarm.hmac and not losing,
        bookies=max(swarm.bookies, FEWEST_BOOKIES),
        faults=tuple(faults.items()),
        recoverers=max(1, swarm.recoverers),
        scrub_period_s=max(5, swarm.scrub_period_s),
        safety_seconds=swarm.safety_seconds + LONGER_SECONDS,
        ledger_bursts=min(swarm.ledger_bursts, _pick(rng, 1, 2, 6)),
        think_seconds=min(swarm.think_seconds, MOST_THINKING_SECONDS),
    )
