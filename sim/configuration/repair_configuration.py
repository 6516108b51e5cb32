"""Draws the repair part of a run configuration: repairers, and how soon they replace a lost bookie.

A quarter of the runs without a mix have a repair. This part has its own random generator, so that other runs do not
depend on it. Such runs have enough bookies to replace a lost one, and all bookies scrub: a repair fixes only damage
that a bookie has found.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from tallybook.core.limits import KIB
from tallybook.core.settings import RepairSettings
from tallybook.runtime.rng import Rng

if TYPE_CHECKING:
    from .run_configuration import RunConfiguration

SHARE: Final = 0.25
"""Share of runs with a repair, among those without a mix."""

MIN_BOOKIES: Final = 5
REPAIR_FAULTS: Final = {"drain": 10.0, "absence": 6.0, "repairer_kill": 4.0, "replaced_disk": 4.0}
"""Additional faults of runs with a repair, with their weights."""

LOSING_SHARE: Final = 0.6
"""Share of these runs in which disks may be replaced: no ledger has a password or an ack quorum of one."""
LOSING_QUORUMS: Final = ((3, 3, 2, 1), (4, 3, 2, 2), (2, 2, 2, 1))

LONGER_SECONDS: Final = 2.0
"""Extra length of such runs: mostly closed ledgers are repaired."""
MAX_THINK_SECONDS: Final = 0.3

OVER_REPLICATION_DELAY_S: Final = 15
"""Delay before bookies drop over-replicated copies; longer than a repairer needs from reading copies to its update."""


@dataclass(frozen=True, slots=True)
class RepairConfiguration:
    """Repairers and repair settings of one run. Durations in seconds."""

    repairers: int
    rivals: bool
    """All repairers audit at the same time. The lead saves work only, so this must be safe."""
    lost_after_s: int
    open_grace_s: int
    check_period_s: int
    concurrent: int
    bytes_per_second: int

    def settings(self) -> RepairSettings:
        """Settings of every repairer."""
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


def _repair(rng: Rng) -> RepairConfiguration:
    repairers = _pick(rng, 1, 2, 2)
    return RepairConfiguration(
        repairers=repairers,
        rivals=repairers > 1 and rng.random() < 0.5,
        lost_after_s=_pick(rng, 0, 1, 3),
        open_grace_s=_pick(rng, 0, 1, 3),
        check_period_s=_pick(rng, 0, 2, 5),
        concurrent=_pick(rng, 1, 2, 4),
        bytes_per_second=_pick(rng, 0, 0, 64 * KIB),
    )


def with_repair(config: RunConfiguration, rng: Rng) -> RunConfiguration:
    """Add a repair to a share of the runs."""
    if config.fault_mix or rng.random() >= SHARE:
        return config
    faults = dict(config.faults) | REPAIR_FAULTS if config.faults else {}
    repair, losing = _repair(rng), rng.random() < LOSING_SHARE
    return replace(
        config,
        repair=repair,
        quorums=LOSING_QUORUMS if losing else config.quorums,
        passwords=config.passwords and not losing,
        hmac=config.hmac and not losing,
        bookies=max(config.bookies, MIN_BOOKIES),
        faults=tuple(faults.items()),
        recoverers=max(1, config.recoverers),
        scrub_period_s=max(5, config.scrub_period_s),
        safety_seconds=config.safety_seconds + LONGER_SECONDS,
        ledger_bursts=min(config.ledger_bursts, _pick(rng, 1, 2, 6)),
        think_seconds=min(config.think_seconds, MAX_THINK_SECONDS),
    )
