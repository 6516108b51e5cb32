"""The part of a run's shape that is about streams: who writes and reads them, and how small everything is.

A third of the runs have some. It is drawn by itself, so that the other runs are what they would be without. In such a
run fewer clients work on ledgers of their own. Limits that are constants of the product are lowered for its time, or no
run would come to a second chapter, or see a session end.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from tallybook.core.limits import KIB
from tallybook.runtime.rng import Rng
from tallybook.stream import head, keeping, sessions, streams
from tallybook.stream.subscription import handle as subscription

if TYPE_CHECKING:
    from .swarm import Swarm

SHARE: Final = 0.33
"""Of all runs."""

MORE_FAULTS: Final = {"kill_client": 6.0, "freeze_client": 8.0}
"""Faults that are more frequent in such runs, unless they dwell on others: streams change hands with them."""
LIES: Final = "bad_memory"
LONGER_SECONDS: Final = 2.0
"""Such runs go on for longer: streams have to be made first."""

MAX_ENVELOPE_BYTES: Final = KIB
"""Largest entry of a segment: about what a large entry of a ledger has."""


@dataclass(frozen=True, slots=True)
class StreamSwarm:
    """What there is of streams in one run. Durations in seconds."""

    streams: int
    producers: int
    followers: int
    subscribers: int
    keepers: int
    meddlers: int
    """Who rename, delete and change streams, and recover segments behind the backs of those who write them."""
    roll_bytes: int
    roll_after_s: int
    retention_s: int | None
    offload_after_s: int | None
    dedup_records: int
    compression: str
    record_bytes: int
    burst: int
    think_seconds: float
    identified: float
    """Share of records that have an id, and are appended again until they are confirmed."""
    head_segments: int
    """How many segments a head has room for."""
    lease_s: float
    advances: int
    """How many advances a cursor ledger takes."""

    def policy(self) -> dict[str, Any]:
        """What every stream is made with, but for its quorums."""
        return {
            "roll_bytes": self.roll_bytes,
            "roll_after": self.roll_after_s,
            "retention": self.retention_s,
            "offload_after": self.offload_after_s,
            "dedup_records": self.dedup_records,
            "compression": self.compression,
        }


def _pick(rng: Rng, *choices: Any) -> Any:
    return choices[rng.randint(0, len(choices) - 1)]


def _streams(rng: Rng) -> StreamSwarm:
    return StreamSwarm(
        streams=_pick(rng, 1, 1, 2),
        producers=_pick(rng, 1, 2, 3, 3),
        followers=_pick(rng, 1, 2),
        subscribers=_pick(rng, 0, 1, 2),
        keepers=_pick(rng, 0, 1, 1, 2),
        meddlers=_pick(rng, 0, 1),
        roll_bytes=_pick(rng, KIB, 2 * KIB, 8 * KIB),
        roll_after_s=_pick(rng, 1, 4, 7_200),
        retention_s=_pick(rng, None, None, 2, 4),
        offload_after_s=_pick(rng, None, 0, 2),
        dedup_records=_pick(rng, 8, 100, 10_000),
        compression=_pick(rng, "none", "none", "zstd", "lz4"),
        record_bytes=_pick(rng, 20, 100),
        burst=_pick(rng, 2, 6, 12),
        think_seconds=0.02 * 10 ** rng.random(),
        identified=_pick(rng, 0.3, 0.8),
        head_segments=_pick(rng, 6, 6, 200),
        lease_s=_pick(rng, 1.0, 3.0),
        advances=_pick(rng, 4, 10_000),
    )


def with_streams(swarm: Swarm, rng: Rng) -> Swarm:
    """The same run, which for some has streams."""
    if rng.random() >= SHARE:
        return swarm
    return replace(
        swarm,
        streams=_streams(rng),
        faults=_faults(swarm, rng),
        writers=1,
        recoverers=min(swarm.recoverers, 1),
        readers=min(swarm.readers, 1),
        safety_seconds=swarm.safety_seconds + LONGER_SECONDS,
    )


def _faults(swarm: Swarm, rng: Rng) -> tuple[tuple[str, float], ...]:
    more = {name: weight for name, weight in MORE_FAULTS.items() if rng.random() < 0.6}
    if swarm.theme or not swarm.faults:
        return swarm.faults
    faults = {**dict(swarm.faults), **more}
    if rng.random() < 0.8:
        # While copies fail their digests that are good, readers are told that records are lost.
        faults.pop(LIES, None)
    return tuple(faults.items())


@contextmanager
def small_limits(swarm: StreamSwarm | None) -> Iterator[None]:
    """Lower some limits of the product for as long as the block runs."""
    if swarm is None:
        yield
        return
    wanted: list[tuple[Any, str, Any]] = [
        (head, "MAX_SEGMENTS", swarm.head_segments),
        (head, "CHAPTER_SEGMENTS", swarm.head_segments * 2 // 3),
        (sessions, "LEASE_SECONDS", swarm.lease_s),
        (keeping, "LEASE_SECONDS", swarm.lease_s),
        (streams, "WRITERS_LOOK_SECONDS", 1.0),
        (subscription, "ADVANCES", swarm.advances),
    ]
    before = [(module, name, getattr(module, name)) for module, name, _ in wanted]
    for module, name, value in wanted:
        setattr(module, name, value)
    try:
        yield
    finally:
        for module, name, value in before:
            setattr(module, name, value)
