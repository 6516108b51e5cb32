"""Draws the configuration of a run from its seed: sizes, limits, and the faults with their rates.

Most runs have only some of the faults, each at its own rate (swarm testing): a cluster in which everything fails all
the time reaches fewer unusual states than one in which a single thing does. All limits are tiny, so that their edges
are reached often.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Final, TypeVar

from tallybook.bookie.directories.storage_directories import JOURNAL, LEDGERS
from tallybook.bookie.storage.write_cache import BATCH_OVERHEAD_BYTES
from tallybook.core.limits import KIB, MAX_ENTRY_BYTES, MIB
from tallybook.core.quorum import Quorum
from tallybook.core.settings import (
    AdmissionSettings,
    BackgroundSettings,
    BookieSettings,
    ClientSettings,
    CollectionSettings,
    JournalSettings,
    ScrubSettings,
    StorageSettings,
)
from tallybook.runtime.rng import Rng, SeededRng

from ..deterministic import Latency
from .archive_configuration import ArchiveConfiguration, with_archive
from .mixes import draw_fault_mix
from .repair_configuration import OVER_REPLICATION_DELAY_S, RepairConfiguration, with_repair
from .stream_configuration import MAX_ENVELOPE_BYTES, StreamConfiguration, with_streams

T = TypeVar("T")

MAX_FRAME_BYTES: Final = 200
"""Overhead of a batch with one entry, with its dedup fields."""

ADDS_IN_FLIGHT: Final = 6
"""Full-size batches that a bookie admits at the same time; fewer than some runs have in flight."""

COLLECT_MS: Final = 1_500
DELETED_SECONDS: Final = 3
MISSING_SECONDS: Final = 15
"""Garbage collection: interval, and delays before deleted and missing ledgers are dropped. Several passes fit a run."""

LOOKUPS_PER_SECOND: Final = 40
COMPACT_ALL_MS: Final = 4_000
BACKGROUND_BYTES_PER_SECOND: Final = 256 * KIB

TRIM_BYTES: Final = 4 * KIB
"""Piece size of incremental truncation: even the smallest removed entry log takes several pieces."""

UNEQUAL_SHARE: Final = 0.25
UNEQUAL_COMMIT_BYTES: Final = (8 * KIB, 12 * KIB, 16 * KIB)
"""Maximum group commit sizes of the bookies of an unequal run, in turn; they limit the batch size of each bookie."""

ROOT: Final = "/data/bookie"

FAULTS: Final = {
    "kill": 6.0,
    "power": 5.0,
    "kill_at": 2.0,
    "power_at": 4.0,
    "absence": 1.0,
    "freeze": 5.0,
    "stumble": 3.0,
    "slow_disk": 2.0,
    "sync_error": 2.0,
    "write_error": 2.0,
    "read_error": 2.0,
    "disk_full": 2.0,
    "rot": 2.5,
    "bad_memory": 2.0,
    "wipe": 1.5,
    "cut": 4.0,
    "one_way_cut": 3.0,
    "partition": 3.0,
    "swizzle": 2.0,
    "reset": 4.0,
    "metadata_cut": 3.0,
    "metadata_away": 2.0,
    "expire": 3.0,
    "clock_jump": 1.0,
    "kill_client": 3.0,
    "freeze_client": 4.0,
    "contradict": 3.0,
}
"""Every kind of fault, with its weight in runs that have it."""

LOSSES_OF_METADATA: Final = {"rows_away": 15.0}
"""Faults of the metadata store's contents, for runs without a mix and an archive, with their weights."""
ROWS_AWAY_SHARE: Final = 0.5
RESTORED_SHARE: Final = 0.5


@dataclass(frozen=True, slots=True)
class RunConfiguration:
    """Configuration of one run, drawn before it begins. ``str`` gives it on one line."""

    fault_mix: str
    """Name of the fault mix (``mixes``), or empty."""
    bookies: int
    quorums: tuple[tuple[int, int, int, int], ...]
    """Choices for a ledger: ensemble, write quorum, ack quorum, stripe entries."""
    writers: int
    recoverers: int
    readers: int
    faults: tuple[tuple[str, float], ...]
    """Kinds of faults of this run, with their weights."""
    fault_seconds: float
    """Mean time between two faults."""
    safety_seconds: float
    burst: int
    """Maximum number of entries in a burst."""
    entry_bytes: int
    think_seconds: float
    """Mean pause of a writer between bursts."""
    ledger_bursts: int
    """Maximum number of bursts per ledger."""
    write_cache_bytes: int
    segment_bytes: int
    commit_bytes: int
    flush_ms: int
    batch_bytes: int
    in_flight: int
    pending_bytes: int
    add_timeout_ms: int
    away_timeout_ms: int
    request_timeout_ms: int
    quarantine_ms: int
    explicit_lac_ms: int
    net_delay_ms: float
    window_bytes: int
    keepalive_seconds: float
    disk_ms: float
    session_seconds: float
    metadata_ms: float
    """Maximum one-way delay of a message to or from the metadata store."""
    metadata_faults: float
    stale_reads: float
    passwords: bool
    hmac: bool
    write_mode_share: float
    """Share of ledgers written with deferred sync, under chosen ids, or adopted."""
    deletions: float
    """Share of recoveries after which the ledger is deleted."""
    entry_log_bytes: int = 64 * KIB
    compact_below_percent: int = 0
    scrub_period_s: int = 0
    journals: int = 1
    ledger_directories: int = 1
    unequal: bool = False
    """Bookies have different maximum batch sizes, and clients are configured for larger ones than some bookies take."""
    archive: ArchiveConfiguration | None = None
    """Offloaders and an object store, if the run has them."""
    streams: StreamConfiguration | None = None
    """Stream clients, if the run has them."""
    repair: RepairConfiguration | None = None
    """Repairers, if the run has them."""
    restored_after: float | None = None
    """Fraction of the safety phase after which the metadata store is copied, to be restored in the end; None: never."""

    def __str__(self) -> str:
        return " ".join(f"{name}={_short(value)}" for name, value in asdict(self).items())

    @property
    def max_damaged(self) -> int:
        """Maximum number of bookies whose durable data may be damaged, so that every acked entry keeps a good copy."""
        return min(ack for _, _, ack, _ in self.quorums) - 1

    @property
    def add_bytes(self) -> int:
        """Bytes that a bookie counts for the largest batch; a large entry is alone in its batch."""
        largest = max(self.entry_bytes, MAX_ENVELOPE_BYTES if self.streams is not None else 0)
        return max(self.batch_bytes, largest + MAX_FRAME_BYTES) + BATCH_OVERHEAD_BYTES

    def quorum(self, rng: Rng) -> Quorum:
        """Draw the quorum of the next ledger."""
        return Quorum(*pick(rng, self.quorums))

    def latency(self) -> Latency:
        """Latency of disks."""
        return Latency(self.disk_ms / 1000)

    def bookie_settings(self, number: int = 0) -> BookieSettings:
        """Settings of the bookie with this number."""
        commits = UNEQUAL_COMMIT_BYTES if self.unequal else (self.commit_bytes,)
        return BookieSettings(
            bookie_id="b0",
            data_directory=ROOT,
            metadata="memory:",
            journal_directories=_directories(JOURNAL, self.journals),
            ledger_directories=_directories(LEDGERS, self.ledger_directories),
            journal=JournalSettings(
                segment_bytes=self.segment_bytes, segment_count=4, max_commit_bytes=commits[number % len(commits)]
            ),
            storage=StorageSettings(
                write_cache_bytes=self.write_cache_bytes,
                read_cache_bytes=16 * KIB,
                entry_log_bytes=self.entry_log_bytes,
                give_back_bytes=TRIM_BYTES,
                min_free_bytes=0,
                flush_interval_ms=self.flush_ms,
            ),
            admission=AdmissionSettings(
                max_inflight_bytes=ADDS_IN_FLIGHT * self.add_bytes,
                max_cache_wait_ms=500,
                stream_credit_bytes=64 * KIB,
            ),
            collection=CollectionSettings(
                interval_ms=COLLECT_MS,
                deleted_delay_s=DELETED_SECONDS,
                missing_delay_s=MISSING_SECONDS,
                unnamed_delay_s=OVER_REPLICATION_DELAY_S,
                lookups_per_second=LOOKUPS_PER_SECOND,
                compact_below_percent=self.compact_below_percent,
                compact_all_interval_ms=COMPACT_ALL_MS,
            ),
            scrub=ScrubSettings(period_s=self.scrub_period_s),
            background=BackgroundSettings(
                min_bytes_per_second=BACKGROUND_BYTES_PER_SECOND, max_bytes_per_second=4 * BACKGROUND_BYTES_PER_SECOND
            ),
        )

    def client_settings(self) -> ClientSettings:
        """Settings of every client."""
        return ClientSettings(
            max_entry_bytes=MAX_ENTRY_BYTES if self.streams is None else MAX_ENVELOPE_BYTES,
            max_batch_bytes=self.batch_bytes,
            max_in_flight_batches=self.in_flight,
            max_pending_bytes=self.pending_bytes,
            add_timeout_ms=self.add_timeout_ms,
            away_timeout_ms=self.away_timeout_ms,
            request_timeout_ms=self.request_timeout_ms,
            connect_timeout_ms=500,
            reconnect_ms=100,
            metadata_timeout_ms=1000,
            explicit_lac_ms=self.explicit_lac_ms,
            read_bytes=8 * KIB,
            tail_wait_ms=1000,
            quarantine_ms=self.quarantine_ms,
        )


def _directories(kind: str, count: int) -> tuple[str, ...]:
    """Directories of one kind, the first one below the data directory; empty if that is the only one."""
    others = tuple(f"/data/disk{number}/{kind}" for number in range(2, count + 1))
    return (f"{ROOT}/{kind}", *others) if others else ()


def _short(value: object) -> str:
    if isinstance(value, dict):
        return "[" + " ".join(f"{name}={_short(each)}" for name, each in value.items()) + "]"
    if isinstance(value, tuple):
        return "[" + ",".join(map(_short, value)) + "]"
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def pick(rng: Rng, choices: Sequence[T]) -> T:
    """Draw one of ``choices``."""
    return choices[rng.randint(0, len(choices) - 1)]


def _quorum(rng: Rng, bookies: int) -> tuple[int, int, int, int]:
    ensemble = rng.randint(1, bookies) if rng.random() < 0.3 else min(bookies, 3)
    write = rng.randint(max(1, ensemble - 2), ensemble)
    ack = rng.randint(max(1, write // 2), write) if rng.random() < 0.5 else write // 2 + 1
    return ensemble, write, ack, pick(rng, (1, 2, 4, 16))


def _log_uniform(rng: Rng, low: float, high: float) -> float:
    return float(low * (high / low) ** rng.random())


def _faults(rng: Rng) -> tuple[tuple[str, float], ...]:
    """Draw the faults of a run: none, all, or a random subset."""
    draw = rng.random()
    if draw < 0.05:
        return ()
    if draw < 0.2:
        return tuple(FAULTS.items())
    share = rng.random()
    return tuple((name, weight) for name, weight in FAULTS.items() if rng.random() < share)


def draw_configuration(rng: Rng) -> RunConfiguration:
    """Draw the configuration of one run."""
    archive, streams, storage, repair = (rng.fork(part) for part in ("archive", "streams", "storage", "repair"))
    config = _with_disks(_with_storage(_draw_base(rng), storage), rng.fork("disks"))
    fault_mix = draw_fault_mix(rng)
    if fault_mix is not None:
        faults = tuple((name, FAULTS[name]) for name in fault_mix.faults)
        config = replace(config, fault_mix=fault_mix.name, faults=faults, **fault_mix.fixed)
    config = with_repair(with_streams(with_archive(config, archive), streams), repair)
    return _with_losses_of_metadata(_with_unequal_bookies(config, rng.fork("unequal")), rng.fork("metadata losses"))


def _with_losses_of_metadata(config: RunConfiguration, rng: Rng) -> RunConfiguration:
    """Add metadata losses to some runs: missing rows, or a restore from an older copy."""
    if config.fault_mix or config.archive is not None:
        return config
    if config.faults and rng.random() < ROWS_AWAY_SHARE:
        config = replace(config, faults=(*config.faults, *LOSSES_OF_METADATA.items()))
    if config.streams is None and rng.random() < RESTORED_SHARE:
        config = replace(config, restored_after=rng.random())
    return config


def _with_unequal_bookies(config: RunConfiguration, rng: Rng) -> RunConfiguration:
    """In some runs, give bookies different batch limits and let clients send batches up to them."""
    if config.fault_mix or config.streams is not None or rng.random() >= UNEQUAL_SHARE:
        return config
    return replace(
        config,
        unequal=True,
        burst=12,
        entry_bytes=6 * KIB,
        batch_bytes=max(UNEQUAL_COMMIT_BYTES),
        pending_bytes=1 * MIB,
        write_cache_bytes=96 * KIB,
        segment_bytes=64 * KIB,
        entry_log_bytes=64 * KIB,
    )


def configuration_of_seed(seed: int) -> RunConfiguration:
    """The configuration of the run of this seed."""
    return draw_configuration(SeededRng(seed).fork("world").fork("swarm"))


def _with_storage(config: RunConfiguration, rng: Rng) -> RunConfiguration:
    """Draw entry log size, compaction and scrub settings."""
    return replace(
        config,
        entry_log_bytes=pick(rng, (12 * KIB, 24 * KIB, 64 * KIB)),
        compact_below_percent=pick(rng, (0, 20, 70, 100)),
        scrub_period_s=pick(rng, (0, 5, 20)),
    )


def _with_disks(config: RunConfiguration, rng: Rng) -> RunConfiguration:
    """Draw the number of journals and of ledger directories."""
    return replace(config, journals=pick(rng, (1, 1, 2)), ledger_directories=pick(rng, (1, 1, 2)))


def _draw_base(rng: Rng) -> RunConfiguration:
    bookies = rng.randint(3, 7)
    batch_bytes = pick(rng, (256, 512, 1 * KIB, 2 * KIB))
    commit_bytes = pick(rng, (8 * KIB, 12 * KIB))
    calm = rng.random() < 0.4
    return RunConfiguration(
        fault_mix="",
        bookies=bookies,
        quorums=tuple(_quorum(rng, bookies) for _ in range(rng.randint(1, 2))),
        writers=rng.randint(1, 3),
        recoverers=rng.randint(0, 3),
        readers=rng.randint(0, 2),
        faults=_faults(rng),
        fault_seconds=_log_uniform(rng, 0.2, 2.0),
        safety_seconds=4.0 + 6.0 * rng.random(),
        burst=pick(rng, (1, 4, 12)),
        entry_bytes=pick(rng, (20, 100, 600)),
        think_seconds=_log_uniform(rng, 0.1, 0.8),
        ledger_bursts=pick(rng, (2, 8, 30)),
        write_cache_bytes=pick(rng, (8 * KIB, 16 * KIB, 32 * KIB)),
        segment_bytes=pick(rng, (24 * KIB, 32 * KIB, 64 * KIB)),
        commit_bytes=commit_bytes,
        flush_ms=pick(rng, (500, 2000, 5000)),
        batch_bytes=batch_bytes,
        in_flight=pick(rng, (1, 2, 4, 8)),
        pending_bytes=pick(rng, (4 * KIB, 16 * KIB, 1 * MIB)),
        add_timeout_ms=pick(rng, (500, 1000, 2000)),
        away_timeout_ms=pick(rng, (400, 1000, 4000)),
        request_timeout_ms=pick(rng, (500, 1000)),
        quarantine_ms=pick(rng, (0, 1000, 60_000)),
        explicit_lac_ms=pick(rng, (50, 300, 2000)),
        net_delay_ms=_log_uniform(rng, 0.2, 20.0),
        window_bytes=pick(rng, (16 * KIB, 1 * MIB)),
        keepalive_seconds=pick(rng, (1.0, 3.0, 10.0)),
        disk_ms=_log_uniform(rng, 0.1, 5.0),
        session_seconds=pick(rng, (1.0, 3.0, 6.0)),
        metadata_ms=_log_uniform(rng, 1.0, 300.0),
        metadata_faults=0.0 if calm else 0.15 * rng.random(),
        stale_reads=0.0 if calm else 0.5 * rng.random(),
        passwords=rng.random() < 0.3,
        hmac=rng.random() < 0.2,
        write_mode_share=pick(rng, (0.0, 0.3, 0.7)),
        deletions=pick(rng, (0.0, 0.0, 0.3)),
    )
