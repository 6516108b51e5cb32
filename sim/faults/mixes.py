"""What a run may dwell on: a few faults and sizes that go together, where all of them at random seldom meet.

Some bugs show only in the middle of a situation that takes several steps to reach: a bookie that
fails while the change that replaces another one is on its way to a slow metadata store. Most
runs draw everything by itself; the others take one of these themes on top, and so spend their
time where such situations are common.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from tallybook.runtime.rng import Rng

SHARE: Final = 0.4
"""Of the runs that have a theme."""


@dataclass(frozen=True, slots=True)
class Theme:
    """One of them.

    Attributes:
        faults: those that strike, and no others.
        fixed: fields of the swarm that are not drawn.
    """

    name: str
    faults: tuple[str, ...]
    fixed: dict[str, Any] = field(default_factory=dict)


THEMES: Final = (
    # Members fail, again and again, under writers with much in flight, and each change takes its time.
    Theme(
        "changes",
        ("kill", "absence", "stumble", "stumble", "one_way_cut", "kill_client"),
        {
            "bookies": 6,
            "quorums": ((3, 3, 2, 1), (2, 2, 2, 1)),
            "writers": 3,
            "recoverers": 1,
            "readers": 1,
            "fault_seconds": 0.5,
            "burst": 4,
            "entry_bytes": 20,
            "think_seconds": 0.1,
            "ledger_bursts": 30,
            "batch_bytes": 256,
            "in_flight": 8,
            "add_timeout_ms": 500,
            "away_timeout_ms": 400,
            "quarantine_ms": 0,
            "metadata_ms": 450.0,
            "unlike": 0.0,
        },
    ),
    # Nobody knows what became of a change: the store is lost in the middle of it.
    Theme(
        "doubts",
        ("stumble", "stumble", "stumble", "metadata_cut"),
        {
            "bookies": 6,
            "quorums": ((2, 2, 2, 1), (3, 3, 2, 1)),
            "writers": 3,
            "recoverers": 0,
            "readers": 0,
            "fault_seconds": 0.3,
            "entry_bytes": 20,
            "think_seconds": 0.1,
            "ledger_bursts": 30,
            "add_timeout_ms": 1000,
            "away_timeout_ms": 400,
            "quarantine_ms": 0,
            "explicit_lac_ms": 300,
            "metadata_ms": 300.0,
            "metadata_faults": 0.25,
            "unlike": 0.2,
        },
    ),
    # Recoveries of what is still written, while bookies die and some are slow: who has the last entries?
    Theme(
        "races",
        ("kill", "slow_disk", "one_way_cut", "cut", "freeze", "kill_client"),
        {
            "bookies": 5,
            "quorums": ((3, 3, 3, 1), (2, 2, 2, 1), (4, 2, 2, 1)),
            "writers": 3,
            "recoverers": 3,
            "readers": 0,
            "fault_seconds": 0.25,
            "burst": 4,
            "entry_bytes": 20,
            "think_seconds": 0.1,
            "batch_bytes": 256,
            "in_flight": 8,
            "add_timeout_ms": 1000,
            "explicit_lac_ms": 2000,
            "disk_ms": 5.0,
            "net_delay_ms": 20.0,
            "unlike": 0.0,
        },
    ),
    # Disks that lie about what is durable, and lose power.
    Theme(
        "syncs",
        ("sync_error", "sync_error", "write_error", "power", "power_at", "slow_disk"),
        {
            "recoverers": 1,
            "readers": 0,
            "fault_seconds": 0.3,
            "think_seconds": 0.15,
            "flush_ms": 500,
            "write_cache_bytes": 8192,
            "unlike": 0.7,
        },
    ),
    # Bookies that have lost something, or come back as another one.
    Theme(
        "losses",
        ("rot", "rot", "rot", "wipe", "wipe", "bad_memory", "contradict", "kill", "cut"),
        {
            "bookies": 5,
            "quorums": ((3, 3, 2, 1), (4, 3, 3, 2)),
            "fault_seconds": 0.4,
            "flush_ms": 2000,
            "add_timeout_ms": 2000,
            "away_timeout_ms": 4000,
            "quarantine_ms": 0,
            "passwords": True,
            "deletions": 0.0,
        },
    ),
)


def theme_of(rng: Rng) -> Theme | None:
    """What the run of this generator dwells on; for most runs nothing in particular."""
    if rng.random() >= SHARE:
        return None
    return THEMES[rng.randint(0, len(THEMES) - 1)]
