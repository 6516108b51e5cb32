"""Draws the archive part of a run configuration: offloaders, their settings, and faults of the object store.

Two runs in nine have an archive. This part has its own random generator, so that other runs do not depend on it. Such
runs have short ledgers that are closed early; otherwise nothing would be archived before the end.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from tallybook.core.limits import KIB
from tallybook.core.settings import OffloadSettings
from tallybook.runtime.rng import Rng

from ..cluster.bucket import BucketFaults
from ..cluster.faulty_objects import ObjectFault

if TYPE_CHECKING:
    from .run_configuration import RunConfiguration

SHARE: Final = 0.36
"""Share of runs with an archive, among those without a mix."""

ARCHIVE_FAULTS: Final = {
    "offloader_kill_at": 12.0,
    "offloader_freeze_at": 12.0,
    "offloader_clock": 4.0,
    "bucket_away": 3.0,
    "bucket_storm": 3.0,
}
"""Additional faults of runs with an archive, with their weights."""

LONGER_SECONDS: Final = 2.0
"""Extra length of such runs: ledgers are archived after they are closed."""
MAX_THINK_SECONDS: Final = 0.3
MAX_WRITERS: Final = 2

MAX_LAG_S: Final = 3
"""With at most this deletion lag, bookies drop released ledgers within the run; with a longer one they keep them."""


@dataclass(frozen=True, slots=True)
class ArchiveConfiguration:
    """Offloaders, readers and object store of one run. Durations in seconds, sizes in payload bytes."""

    offloaders: int
    rivals: bool
    """All offloaders lead at the same time. The lead saves work only, so this must be safe."""
    tiering_readers: int
    """Number of clients that read archived ledgers."""
    own_object_bytes: int
    set_objects: int
    """Size of a set object, as a multiple of ``own_object_bytes``."""
    set_object_ledgers: int
    compact_below_bytes: int
    set_wait_s: int
    lag_s: int
    keep_copies: bool
    ttl_s: int
    orphan_s: int
    lease_s: int
    concurrent_objects: int
    store_ms: float
    """Maximum one-way delay of a message to or from the object store."""
    trouble: float
    """Probability of a fault of one request."""
    torn: float
    """Share of uploads that the store corrupts."""
    skew_s: float
    """Maximum initial skew of the wall clocks of clients and offloaders."""
    behind_s: float
    """How far the clock of the object store is behind."""

    @property
    def releases(self) -> bool:
        """Whether bookies are to drop archived ledgers before the run ends."""
        return not self.keep_copies and self.lag_s <= MAX_LAG_S

    def settings(self) -> OffloadSettings:
        """Settings of every offloader."""
        return OffloadSettings(
            own_object_bytes=self.own_object_bytes,
            set_object_bytes=self.own_object_bytes * self.set_objects,
            set_object_ledgers=self.set_object_ledgers,
            max_set_wait_s=self.set_wait_s,
            compact_below_bytes=self.compact_below_bytes,
            row_group_bytes=4 * KIB,
            deletion_lag_s=self.lag_s,
            keep_copies=self.keep_copies,
            attempt_ttl_s=self.ttl_s,
            orphan_delay_s=self.orphan_s,
            interval_s=1,
            tidy_interval_s=0,
            retry_s=1,
            concurrent_objects=self.concurrent_objects,
            lease_s=self.lease_s,
        )

    def faults(self) -> BucketFaults:
        """Faults of the object store and of the network to it."""
        share = self.trouble / 8
        odds: Mapping[ObjectFault, float] = {fault: share for fault in ObjectFault if fault is not ObjectFault.DENIED}
        return BucketFaults(
            odds={**odds, ObjectFault.DENIED: share / 10, ObjectFault.LEFT_BEHIND: self.trouble},
            storm=share / 20,
            lost=share,
            late=share,
            slow=share,
            torn=self.torn,
            delay_seconds=(self.store_ms / 10_000, self.store_ms / 1000),
            behind=self.behind_s,
        )


def _pick(rng: Rng, *choices: int) -> int:
    return choices[rng.randint(0, len(choices) - 1)]


def _log_uniform(rng: Rng, low: float, high: float) -> float:
    return float(low * (high / low) ** rng.random())


def _archive(rng: Rng) -> ArchiveConfiguration:
    own = _pick(rng, 200, 800, 3_000)
    calm, rivals = rng.random() < 0.3, rng.random() < 0.4
    # With rivals there is no orphan delay: only its announcement protects an object that is being written.
    orphan_s, behind_s = (0, _pick(rng, 0, 3_600)) if rivals else (_pick(rng, 0, 1), _pick(rng, 0, 0, 5, 3_600))
    return ArchiveConfiguration(
        offloaders=2 if rivals else _pick(rng, 1, 2, 2),
        rivals=rivals,
        tiering_readers=_pick(rng, 1, 2),
        own_object_bytes=own,
        set_objects=_pick(rng, 2, 4),
        set_object_ledgers=_pick(rng, 2, 4, 8),
        compact_below_bytes=_pick(rng, 0, own, 2 * own),
        set_wait_s=_pick(rng, 0, 1),
        lag_s=_pick(rng, 0, 1, MAX_LAG_S, 600),
        keep_copies=rng.random() < 0.1,
        ttl_s=_pick(rng, 1, 2, 4),
        orphan_s=orphan_s,
        lease_s=_pick(rng, 1, 2),
        concurrent_objects=_pick(rng, 1, 2, 3),
        store_ms=_log_uniform(rng, 1.0, 200.0),
        trouble=0.0 if calm else 0.15 * rng.random() ** 2,
        torn=_pick(rng, 0, 1, 2) * 0.3,
        skew_s=_pick(rng, 0, 0, 3),
        behind_s=behind_s,
    )


def with_archive(config: RunConfiguration, rng: Rng) -> RunConfiguration:
    """Add an archive to a share of the runs without a mix."""
    if config.fault_mix or rng.random() >= SHARE:
        return config
    archive = _archive(rng)
    share = 0.3 + 0.7 * rng.random()
    faults = tuple((name, weight) for name, weight in ARCHIVE_FAULTS.items() if rng.random() < share)
    changed: dict[str, Any] = {
        "archive": archive,
        "faults": (*config.faults, *faults) if config.faults else (),
        "writers": min(config.writers, MAX_WRITERS),
        "recoverers": max(1, config.recoverers),
        "safety_seconds": config.safety_seconds + LONGER_SECONDS,
        "ledger_bursts": min(config.ledger_bursts, _pick(rng, 1, 3, 6)),
        "think_seconds": min(config.think_seconds, MAX_THINK_SECONDS),
        "deletions": (0.0, 0.1, 0.3)[_pick(rng, 0, 1, 2)],
    }
    return replace(config, **changed)
