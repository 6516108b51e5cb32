"""The part of a run's shape that is about the archive: offloaders, their settings, and how bad the object store is.

Two runs in nine have one. It is drawn by itself, so that the other runs are what they would be without.
In such a run ledgers are short and are closed early, or nothing would get into the archive before the end.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from tallybook.archive.objects.faulty import Fault
from tallybook.core.config import OffloadSettings
from tallybook.core.limits import KIB
from tallybook.runtime.rng import Rng

from .bucket import BucketFaults

if TYPE_CHECKING:
    from .swarm import Swarm

SHARE: Final = 0.36
"""Of the runs without a theme that have an archive."""

ARCHIVE_FAULTS: Final = {
    "offloader_kill_at": 12.0,
    "offloader_freeze_at": 12.0,
    "offloader_clock": 4.0,
    "bucket_away": 3.0,
    "bucket_storm": 3.0,
}
"""Faults that strike only where there is an archive, with their weights."""

LONGER_SECONDS: Final = 2.0
"""Such runs go on for longer: their work begins when that of others ends."""
MOST_THINKING_SECONDS: Final = 0.3
MOST_WRITERS: Final = 2

LARGEST_LAG_S: Final = 3
"""Bookies have dropped what was released after so long, or are to keep it beyond the end of the run."""


@dataclass(frozen=True, slots=True)
class ArchiveSwarm:
    """What is there of an archive in one run. Durations in seconds, sizes in bytes of payload."""

    offloaders: int
    rivals: bool
    """They all lead, all of the time: leading saves work, and no promise rests on it."""
    historians: int
    """Readers of what is archived."""
    own_object_bytes: int
    set_objects: int
    """A set object holds so many times what an object of its own holds at least."""
    set_object_ledgers: int
    compact_below_bytes: int
    set_wait_s: int
    lag_s: int
    keep_copies: bool
    ttl_s: int
    orphan_s: int
    lease_s: int
    objects_at_once: int
    store_ms: float
    """Longest way of a message to the object store, or from it."""
    trouble: float
    """Chance that something goes wrong with one request."""
    torn: float
    """Share of uploads that are kept as something else."""
    skew_s: float
    """How far wall clocks of clients and offloaders are off from the start, at most."""
    behind_s: float
    """How far the object store's clock is behind."""

    @property
    def releases(self) -> bool:
        """Whether bookies are to drop what is archived before the run ends."""
        return not self.keep_copies and self.lag_s <= LARGEST_LAG_S

    def settings(self) -> OffloadSettings:
        """What every offloader runs with."""
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
            concurrent_objects=self.objects_at_once,
            lease_s=self.lease_s,
        )

    def faults(self) -> BucketFaults:
        """What goes wrong at the object store, and on the way there."""
        share = self.trouble / 8
        odds: Mapping[Fault, float] = {fault: share for fault in Fault if fault is not Fault.DENIED}
        return BucketFaults(
            odds={**odds, Fault.DENIED: share / 10, Fault.LEFT_BEHIND: self.trouble},
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


def _archive(rng: Rng) -> ArchiveSwarm:
    own = _pick(rng, 200, 800, 3_000)
    calm, rivals = rng.random() < 0.3, rng.random() < 0.4
    # Where nothing else keeps an object, all depends on who has announced it.
    orphan_s, behind_s = (0, _pick(rng, 0, 3_600)) if rivals else (_pick(rng, 0, 1), _pick(rng, 0, 0, 5, 3_600))
    return ArchiveSwarm(
        offloaders=2 if rivals else _pick(rng, 1, 2, 2),
        rivals=rivals,
        historians=_pick(rng, 1, 2),
        own_object_bytes=own,
        set_objects=_pick(rng, 2, 4),
        set_object_ledgers=_pick(rng, 2, 4, 8),
        compact_below_bytes=_pick(rng, 0, own, 2 * own),
        set_wait_s=_pick(rng, 0, 1),
        lag_s=_pick(rng, 0, 1, LARGEST_LAG_S, 600),
        keep_copies=rng.random() < 0.1,
        ttl_s=_pick(rng, 1, 2, 4),
        orphan_s=orphan_s,
        lease_s=_pick(rng, 1, 2),
        objects_at_once=_pick(rng, 1, 2, 3),
        store_ms=_log_uniform(rng, 1.0, 200.0),
        trouble=0.0 if calm else 0.15 * rng.random() ** 2,
        torn=_pick(rng, 0, 1, 2) * 0.3,
        skew_s=_pick(rng, 0, 0, 3),
        behind_s=behind_s,
    )


def with_archive(swarm: Swarm, rng: Rng) -> Swarm:
    """The same run, which for some has an archive. What dwells on something else is left as it is."""
    if swarm.theme or rng.random() >= SHARE:
        return swarm
    archive = _archive(rng)
    share = 0.3 + 0.7 * rng.random()
    faults = tuple((name, weight) for name, weight in ARCHIVE_FAULTS.items() if rng.random() < share)
    changed: dict[str, Any] = {
        "archive": archive,
        "faults": (*swarm.faults, *faults) if swarm.faults else (),
        "writers": min(swarm.writers, MOST_WRITERS),
        "recoverers": max(1, swarm.recoverers),
        "safety_seconds": swarm.safety_seconds + LONGER_SECONDS,
        "ledger_bursts": min(swarm.ledger_bursts, _pick(rng, 1, 3, 6)),
        "think_seconds": min(swarm.think_seconds, MOST_THINKING_SECONDS),
        "deletions": (0.0, 0.1, 0.3)[_pick(rng, 0, 1, 2)],
    }
    return replace(swarm, **changed)
