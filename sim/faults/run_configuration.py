"""From a seed to the shape of a run: sizes, limits, and how often each fault strikes.

Most runs have only some of the faults, and each at a rate of its own: a cluster in which
everything fails all the time meets fewer strange situations than one in which a single thing
does. All limits are tiny, so that their edges are near.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Final, TypeVar

from tallybook.bookie.places import JOURNAL, LEDGERS
from tallybook.bookie.storage.write_cache import BATCH_OVERHEAD_BYTES
from tallybook.core.config import (
    AdmissionSettings,
    BookieSettings,
    ClientSettings,
    CollectionSettings,
    JournalSettings,
    ScrubSettings,
    StorageSettings,
)
from tallybook.core.limits import KIB, MAX_ENTRY_BYTES, MIB
from tallybook.core.quorum import Quorum
from tallybook.runtime.deterministic import Latency
from tallybook.runtime.rng import Rng, SeededRng

from .archive_swarm import ArchiveSwarm, with_archive
from .repair_swarm import LEFTOVERS_SECONDS, RepairSwarm, with_repair
from .stream_swarm import MAX_ENVELOPE_BYTES, StreamSwarm, with_streams
from .themes import theme_of

T = TypeVar("T")

MAX_FRAME_BYTES: Final = 200
"""What is around an entry that is alone in its batch, with the name that makes it one of its own."""

ADDS_IN_FLIGHT: Final = 6
"""Batches of full size that a bookie takes at once: less than some runs have under way."""

COLLECT_MS: Final = 1_500
DELETED_SECONDS: Final = 3
MISSING_SECONDS: Final = 15
"""Pause between two rounds of a bookie that drops what was deleted: several fit into every run."""

LOOKUPS_PER_SECOND: Final = 40
COMPACT_ALL_MS: Final = 4_000
COMPACT_BYTES_PER_SECOND: Final = 256 * KIB

GIVE_BACK_BYTES: Final = 4 * KIB
"""The smallest entry logs that are removed go in several pieces, too."""

UNEQUAL_SHARE: Final = 0.25
UNEQUAL_COMMIT_BYTES: Final = (8 * KIB, 12 * KIB, 16 * KIB)
"""Largest group commits of the bookies of an unequal run, in turn: the largest batch of each is a little less."""

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
"""Every kind of fault, with the weight it has where it takes part in a run."""

LOSSES_OF_METADATA: Final = {"rows_away": 15.0}
"""Faults that strike the store itself in some of the runs without a theme and an archive, with their weights."""
ROWS_AWAY_SHARE: Final = 0.5
RESTORED_SHARE: Final = 0.5


@dataclass(frozen=True, slots=True)
class Swarm:
    """One run, decided before it begins. ``str`` gives it on one line."""

    theme: str
    """What the run dwells on; see ``themes``. Empty: nothing in particular."""
    bookies: int
    quorums: tuple[tuple[int, int, int, int], ...]
    """E, Qw, Qa and stripe entries, one of which is drawn for each ledger."""
    writers: int
    recoverers: int
    readers: int
    faults: tuple[tuple[str, float], ...]
    """Kinds of faults that strike, with their weights."""
    fault_seconds: float
    """Mean time between two faults."""
    safety_seconds: float
    burst: int
    """Most entries appended at once."""
    entry_bytes: int
    think_seconds: float
    """Mean pause of a writer between bursts."""
    ledger_bursts: int
    """Most bursts into one ledger."""
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
    """Longest way of a message to the metadata store, or from it."""
    metadata_faults: float
    stale_reads: float
    passwords: bool
    hmac: bool
    unlike: float
    """Share of ledgers written with deferred sync, under chosen ids, or adopted."""
    deletions: float
    """Share of recoveries after which the ledger is deleted."""
    entry_log_bytes: int = 64 * KIB
    compact_below_percent: int = 0
    scrub_period_s: int = 0
    journals: int = 1
    ledger_directories: int = 1
    unequal: bool = False
    """Clients would make larger batches than some bookies take, and bookies take unequal ones."""
    archive: ArchiveSwarm | None = None
    """Offloaders and an object store, where there are any."""
    streams: StreamSwarm | None = None
    """Clients that work with streams, where there are any."""
    repair: RepairSwarm | None = None
    """Who gives bookies back what they lost, where there is anybody."""
    restored_after: float | None = None
    """After which part of the run the metadata store is copied, which goes back to that copy in the end; never."""

    def __str__(self) -> str:
        return " ".join(f"{name}={_short(value)}" for name, value in asdict(self).items())

    @property
    def most_damaged(self) -> int:
        """How many bookies may lose durable data: every acked entry keeps a clean copy."""
        return min(ack for _, _, ack, _ in self.quorums) - 1

    @property
    def add_bytes(self) -> int:
        """What a bookie counts for the largest batch; a large entry has one of its own."""
        largest = max(self.entry_bytes, MAX_ENVELOPE_BYTES if self.streams is not None else 0)
        return max(self.batch_bytes, largest + MAX_FRAME_BYTES) + BATCH_OVERHEAD_BYTES

    def quorum(self, rng: Rng) -> Quorum:
        """The replication of the next ledger."""
        return Quorum(*pick(rng, self.quorums))

    def latency(self) -> Latency:
        """How slow disks are."""
        return Latency(self.disk_ms / 1000)

    def bookie_settings(self, number: int = 0) -> BookieSettings:
        """What the bookie of this number runs with."""
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
                read_cache_bytes=8 * KIB,
                entry_log_bytes=self.entry_log_bytes,
                give_back_bytes=GIVE_BACK_BYTES,
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
                unnamed_delay_s=LEFTOVERS_SECONDS,
                lookups_per_second=LOOKUPS_PER_SECOND,
                compact_below_percent=self.compact_below_percent,
                compact_all_interval_ms=COMPACT_ALL_MS,
                compact_bytes_per_second=COMPACT_BYTES_PER_SECOND,
            ),
            scrub=ScrubSettings(period_s=self.scrub_period_s),
        )

    def client_settings(self) -> ClientSettings:
        """What every client runs with."""
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
    """The first of these is a part of the data directory; where it is the only one, the settings name none."""
    others = tuple(f"/data/disk{number}/{kind}" for number in range(2, count + 1))
    return (f"{ROOT}/{kind}", *others) if others else ()


def _short(value: object) -> str:
    if isinstance(value, dict):
        return "[" + " ".join(f"{name}={_short(each)}" for name, each in value.items()) + "]"
    if isinstance(value, tuple):
        return "[" + ",".join(map(_short, value)) + "]"
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def pick(rng: Rng, choices: Sequence[T]) -> T:
    """One of ``choices``."""
    return choices[rng.randint(0, len(choices) - 1)]


def _quorum(rng: Rng, bookies: int) -> tuple[int, int, int, int]:
    ensemble = rng.randint(1, bookies) if rng.random() < 0.3 else min(bookies, 3)
    write = rng.randint(max(1, ensemble - 2), ensemble)
    ack = rng.randint(max(1, write // 2), write) if rng.random() < 0.5 else write // 2 + 1
    return ensemble, write, ack, pick(rng, (1, 2, 4, 16))


def _log_uniform(rng: Rng, low: float, high: float) -> float:
    return float(low * (high / low) ** rng.random())


def _faults(rng: Rng) -> tuple[tuple[str, float], ...]:
    """Some of the faults, or all of them, or none."""
    draw = rng.random()
    if draw < 0.05:
        return ()
    if draw < 0.2:
        return tuple(FAULTS.items())
    share = rng.random()
    return tuple((name, weight) for name, weight in FAULTS.items() if rng.random() < share)


def swarm_of(rng: Rng) -> Swarm:
    """The shape of one run."""
    archive, streams, storage, repair = (rng.fork(part) for part in ("archive", "streams", "storage", "repair"))
    swarm = _with_disks(_with_storage(_any_swarm(rng), storage), rng.fork("disks"))
    theme = theme_of(rng)
    if theme is not None:
        faults = tuple((name, FAULTS[name]) for name in theme.faults)
        swarm = replace(swarm, theme=theme.name, faults=faults, **theme.fixed)
    swarm = with_repair(with_streams(with_archive(swarm, archive), streams), repair)
    return _with_losses_of_metadata(_with_unequal_bookies(swarm, rng.fork("unequal")), rng.fork("metadata losses"))


def _with_losses_of_metadata(swarm: Swarm, rng: Rng) -> Swarm:
    """With a store that loses rows for a while, or goes back to an older copy, in some of the runs."""
    if swarm.theme or swarm.archive is not None:
        return swarm
    if swarm.faults and rng.random() < ROWS_AWAY_SHARE:
        swarm = replace(swarm, faults=(*swarm.faults, *LOSSES_OF_METADATA.items()))
    if swarm.streams is None and rng.random() < RESTORED_SHARE:
        swarm = replace(swarm, restored_after=rng.random())
    return swarm


def _with_unequal_bookies(swarm: Swarm, rng: Rng) -> Swarm:
    """With entries and batches about as large as what bookies take, in some of the runs without theme and streams."""
    if swarm.theme or swarm.streams is not None or rng.random() >= UNEQUAL_SHARE:
        return swarm
    return replace(
        swarm,
        unequal=True,
        burst=12,
        entry_bytes=6 * KIB,
        batch_bytes=max(UNEQUAL_COMMIT_BYTES),
        pending_bytes=1 * MIB,
        write_cache_bytes=96 * KIB,
        segment_bytes=64 * KIB,
        entry_log_bytes=64 * KIB,
    )


def swarm_of_seed(seed: int) -> Swarm:
    """The shape of the run of this seed."""
    return swarm_of(SeededRng(seed).fork("world").fork("swarm"))


def _with_storage(swarm: Swarm, rng: Rng) -> Swarm:
    """With what bookies do by themselves about what they hold."""
    return replace(
        swarm,
        entry_log_bytes=pick(rng, (12 * KIB, 24 * KIB, 64 * KIB)),
        compact_below_percent=pick(rng, (0, 20, 70, 100)),
        scrub_period_s=pick(rng, (0, 5, 20)),
    )


def _with_disks(swarm: Swarm, rng: Rng) -> Swarm:
    """With bookies that have more than one journal, or more than one directory of entry logs."""
    return replace(swarm, journals=pick(rng, (1, 1, 2)), ledger_directories=pick(rng, (1, 1, 2)))


def _any_swarm(rng: Rng) -> Swarm:
    bookies = rng.randint(3, 7)
    batch_bytes = pick(rng, (256, 512, 1 * KIB, 2 * KIB))
    commit_bytes = pick(rng, (8 * KIB, 12 * KIB))
    calm = rng.random() < 0.4
    return Swarm(
        theme="",
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
        unlike=pick(rng, (0.0, 0.3, 0.7)),
        deletions=pick(rng, (0.0, 0.0, 0.3)),
    )
