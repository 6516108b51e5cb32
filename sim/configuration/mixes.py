"""Fault mixes: a few faults and sizes that together make a rare situation frequent.

Some bugs appear only in a situation that takes several steps to reach, such as a bookie that fails while the ensemble
change that replaces another one is on its way to a slow metadata store. Most runs draw faults and sizes independently;
``SHARE`` of them use one of these mixes, which spend their time in such situations.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from tallybook.runtime.rng import Rng

SHARE: Final = 0.4
"""Share of runs that have a fault mix."""


@dataclass(frozen=True, slots=True)
class FaultMix:
    """A fault mix.

    Attributes:
        faults: the kinds of faults that strike; no others do.
        fixed: fields of the run configuration that are not drawn.
    """

    name: str
    faults: tuple[str, ...]
    fixed: dict[str, Any] = field(default_factory=dict)


FAULT_MIXES: Final = (
    # Ensemble members fail again and again while writers have much in flight, and each ensemble change is slow.
    FaultMix(
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
            "write_mode_share": 0.0,
        },
    ),
    # Metadata updates with unknown outcome: sessions are cut during ensemble changes.
    FaultMix(
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
            "write_mode_share": 0.2,
        },
    ),
    # Recoveries race with writers, while bookies die and some are slow to ack the last entries.
    FaultMix(
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
            "write_mode_share": 0.0,
        },
    ),
    # Failing syncs and power losses.
    FaultMix(
        "syncs",
        ("sync_error", "sync_error", "write_error", "power", "power_at", "slow_disk"),
        {
            "recoverers": 1,
            "readers": 0,
            "fault_seconds": 0.3,
            "think_seconds": 0.15,
            "flush_ms": 500,
            "write_cache_bytes": 8192,
            "write_mode_share": 0.7,
        },
    ),
    # Bookies that have lost data, or come back with a new directory.
    FaultMix(
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


def draw_fault_mix(rng: Rng) -> FaultMix | None:
    """Draw the fault mix of a run; ``None`` for most runs."""
    if rng.random() >= SHARE:
        return None
    return FAULT_MIXES[rng.randint(0, len(FAULT_MIXES) - 1)]
