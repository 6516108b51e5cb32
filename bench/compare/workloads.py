"""The workloads of the comparison.

Each group of workloads runs on clusters started empty and warmed up for that group, so that disk use and remaining data
of earlier loads do not grow during a long comparison.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from enum import Enum
from typing import Final

from tallybook.core.errors import InvalidArgument


class WorkloadKind(Enum):
    """How a workload is measured."""

    ADDS = "adds"
    READS = "reads"
    WRITTEN = "written"
    """Adds on Tallybook alone, for the bytes that its bookies write to the disk."""
    JOURNAL = "journal"
    """Adds on a single Tallybook bookie, for the speed of its journal."""
    CHANGE = "change"
    """A steady writer on Tallybook, one of whose bookies is killed or stopped."""
    RECOVERY = "recovery"
    """An open ledger of Tallybook whose writer is killed."""


@dataclass(frozen=True, slots=True)
class BenchWorkload:
    """One load.

    Args:
        title: title in tables.
        share: an open loop at this share of the peer's rate with ``PEAK`` in the same round; 0: a closed loop.
        entries: entries of the ledger, for workloads that read one.
        again: repeat the second pass over that ledger for as long as other loads are measured.
        bookies: number of Tallybook bookies.
        ack_quorum: ack quorum; 0: a majority.
        stopped: the failing bookie is stopped and later continued, instead of killed.
        hung: number of replacement candidates that are stopped at the same moment.
    """

    name: str
    title: str
    kind: WorkloadKind
    entry_bytes: int
    ledgers: int = 4
    window: int = 0
    share: float = 0.0
    entries: int = 0
    again: bool = False
    bookies: int = 3
    ack_quorum: int = 0
    stopped: bool = False
    hung: int = 0

    @property
    def compared(self) -> bool:
        """Whether both systems run it."""
        return self.kind in (WorkloadKind.ADDS, WorkloadKind.READS)


@dataclass(frozen=True, slots=True)
class Pace:
    """Durations of a comparison.

    Args:
        seconds: measured time of a load of adds.
        warm_up_seconds: warm-up before it, on Tallybook; the peer's program has a warm-up of eight seconds.
        flush_seconds: time after which a bookie of either system has flushed its data.
        settle_seconds: pause between two loads, for background work of the system loaded last.
        read_share: part of the entries that a workload of reads uses.
    """

    seconds: float = 10.0
    warm_up_seconds: float = 5.0
    flush_seconds: float = 15.0
    settle_seconds: float = 6.0
    read_share: float = 1.0

    def entries(self, workload: BenchWorkload) -> int:
        """Number of entries of a workload that reads."""
        return round(workload.entries * self.read_share)


QUICK: Final = Pace(2.0, 2.0, 12.0, 2.0, 0.1)
"""A smoke run: every workload once, too short for conclusions."""

PEAK: Final = BenchWorkload("adds-1KiB", "1 KiB entries, 5,000 unconfirmed", WorkloadKind.ADDS, 1024, window=5000)

ORDINARY_RATE: Final = 12_000.0
"""Entries per second of an open loop well below the peak, with the entries and ledgers of ``PEAK``."""


def _open_loop(share: float) -> BenchWorkload:
    percent = round(share * 100)
    title = f"1 KiB entries, {percent} % of the peer's peak rate"
    return BenchWorkload(f"open-{percent}", title, WorkloadKind.ADDS, 1024, window=PEAK.window, share=share)


GROUPS: Final[tuple[tuple[BenchWorkload, ...], ...]] = (
    (
        BenchWorkload("adds-100B", "100 B entries, 5,000 unconfirmed", WorkloadKind.ADDS, 100, window=5000),
        PEAK,
        BenchWorkload("adds-1KiB-w1000", "1 KiB entries, 1,000 unconfirmed", WorkloadKind.ADDS, 1024, window=1000),
        BenchWorkload("alone", "1 KiB entries, one at a time", WorkloadKind.ADDS, 1024, ledgers=1, window=1),
        *map(_open_loop, (0.25, 0.5, 0.75)),
    ),
    (
        BenchWorkload("adds-4KiB", "4 KiB entries, 2,000 unconfirmed", WorkloadKind.ADDS, 4096, window=2000),
        BenchWorkload("adds-64KiB", "64 KiB entries, 200 unconfirmed", WorkloadKind.ADDS, 65536, window=200),
        BenchWorkload(
            "written", "64 KiB entries, 200 unconfirmed, then a flush", WorkloadKind.WRITTEN, 65536, window=200
        ),
    ),
    (BenchWorkload("reads", "1 KiB entries of a closed ledger", WorkloadKind.READS, 1024, entries=400_000),),
    (BenchWorkload("journal", "16 KiB entries, 500 unconfirmed, one bookie", WorkloadKind.JOURNAL, 16384, window=500),),
)

FAILURES: Final = (
    BenchWorkload(
        "change-qa2", "a bookie is killed, Qa = 2 of 3", WorkloadKind.CHANGE, 1024, 1, bookies=4, ack_quorum=2
    ),
    BenchWorkload(
        "change-qa3", "a bookie is killed, Qa = 3 of 3", WorkloadKind.CHANGE, 1024, 1, bookies=4, ack_quorum=3
    ),
    BenchWorkload(
        "change-stopped",
        "a bookie is stopped, Qa = 2 of 3",
        WorkloadKind.CHANGE,
        1024,
        1,
        bookies=4,
        ack_quorum=2,
        stopped=True,
    ),
    BenchWorkload(
        "change-hung",
        "a bookie is killed, and three of four candidates are stopped, Qa = 3 of 3",
        WorkloadKind.CHANGE,
        1024,
        1,
        bookies=7,
        ack_quorum=3,
        hung=3,
    ),
    BenchWorkload(
        "recovery",
        "an open ledger of 100 B entries whose writer is killed",
        WorkloadKind.RECOVERY,
        100,
        1,
        entries=10**6,
    ),
)
"""Failures of Tallybook alone, each on a cluster of its own."""

WORKLOADS: Final = {workload.name: workload for group in (*GROUPS, FAILURES) for workload in group}


def chosen(names: Collection[str]) -> list[BenchWorkload]:
    """The workloads with these names, or with a name as prefix before a hyphen.

    Raises:
        InvalidArgument: a name matches no workload.
    """
    found: list[BenchWorkload] = []
    for name in names:
        begun = [workload for each, workload in WORKLOADS.items() if each.startswith(f"{name}-")]
        wanted = [WORKLOADS[name]] if name in WORKLOADS else begun
        if not wanted:
            raise InvalidArgument(f"no such workload: {name}")
        found += wanted
    return found
