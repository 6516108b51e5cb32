"""Draws the stream part of a run configuration: stream clients and tiny stream limits.

A third of the runs have streams. This part has its own random generator, so that other runs do not depend on it. Runs
with streams have fewer clients that work on plain ledgers. ``small_limits`` lowers constants of the product during such
a run; otherwise no run would reach a second chapter or the end of a session lease.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from tallybook.core.limits import KIB
from tallybook.runtime.rng import Rng
from tallybook.stream import sessions
from tallybook.stream.catalog import head
from tallybook.stream.retention import janitor as keeping
from tallybook.stream.subscription import handle as subscription
from tallybook.stream.writer import opening

if TYPE_CHECKING:
    from .run_configuration import RunConfiguration

SHARE: Final = 0.33
"""Share of all runs that have streams."""

MORE_FAULTS: Final = {"kill_client": 6.0, "freeze_client": 8.0}
"""Weights of faults that are more frequent in runs with streams and without a mix: they force stream takeovers."""
LIES: Final = "bad_memory"
LONGER_SECONDS: Final = 2.0
"""Extra length of runs with streams, which have to be created first."""

MAX_ENVELOPE_BYTES: Final = KIB
"""Maximum entry size of a segment: about the size of a large ledger entry."""


@dataclass(frozen=True, slots=True)
class StreamConfiguration:
    """Stream clients and stream settings of one run. Durations in seconds."""

    streams: int
    producers: int
    followers: int
    subscribers: int
    janitors: int
    meddlers: int
    """Clients that rename, delete and change streams, and recover segments that are being written."""
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
    """Share of records that have a dedup id and are retried until they are confirmed."""
    head_segments: int
    """Maximum number of segments in a head."""
    lease_s: float
    advances: int
    """Maximum number of advances in a cursor ledger."""

    def policy(self) -> dict[str, Any]:
        """Policy of every stream, without quorums."""
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


def _streams(rng: Rng) -> StreamConfiguration:
    return StreamConfiguration(
        streams=_pick(rng, 1, 1, 2),
        producers=_pick(rng, 1, 2, 3, 3),
        followers=_pick(rng, 1, 2),
        subscribers=_pick(rng, 0, 1, 2),
        janitors=_pick(rng, 0, 1, 1, 2),
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


def with_streams(config: RunConfiguration, rng: Rng) -> RunConfiguration:
    """Add streams to a share of the runs."""
    if rng.random() >= SHARE:
        return config
    return replace(
        config,
        streams=_streams(rng),
        faults=_faults(config, rng),
        writers=1,
        recoverers=min(config.recoverers, 1),
        readers=min(config.readers, 1),
        safety_seconds=config.safety_seconds + LONGER_SECONDS,
    )


def _faults(config: RunConfiguration, rng: Rng) -> tuple[tuple[str, float], ...]:
    more = {name: weight for name, weight in MORE_FAULTS.items() if rng.random() < 0.6}
    if config.fault_mix or not config.faults:
        return config.faults
    faults = {**dict(config.faults), **more}
    if rng.random() < 0.8:
        # Bookies with bad memory return good copies corrupted, so readers would report lost records.
        faults.pop(LIES, None)
    return tuple(faults.items())


@contextmanager
def small_limits(config: StreamConfiguration | None) -> Iterator[None]:
    """Lower some limits of the product inside the block."""
    if config is None:
        yield
        return
    wanted: list[tuple[Any, str, Any]] = [
        (head, "MAX_SEGMENTS", config.head_segments),
        (head, "CHAPTER_SEGMENTS", config.head_segments * 2 // 3),
        (sessions, "LEASE_SECONDS", config.lease_s),
        (keeping, "LEASE_SECONDS", config.lease_s),
        (opening, "WRITER_SWEEP_SECONDS", 1.0),
        (subscription, "ADVANCES", config.advances),
    ]
    before = [(module, name, getattr(module, name)) for module, name, _ in wanted]
    for module, name, value in wanted:
        setattr(module, name, value)
    try:
        yield
    finally:
        for module, name, value in before:
            setattr(module, name, value)
