"""The loads that are profiled: workloads of the comparison, parts of them, and what goes on beside them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from typing import Final

from ..compare.workloads import ORDINARY_RATE, PEAK, WORKLOADS, BenchWorkload


class LoadKind(Enum):
    """Kind of a load."""

    ADDS = "adds"
    MANY = "adds by append_many"
    OVERLOAD = "adds of many clients above the peak"
    TAIL = "adds, and a reader that follows them"
    READS = "reads in order"
    COLD_READS = "reads in order from the disk"
    RANDOM_READS = "single reads at random"

    @property
    def reads(self) -> bool:
        """Whether it only reads, from a closed ledger."""
        return self in (LoadKind.READS, LoadKind.COLD_READS, LoadKind.RANDOM_READS)


@dataclass(frozen=True, slots=True)
class ProfiledLoad:
    """One load.

    Args:
        rate: entries per second of an open loop; 0: a closed loop.
    """

    name: str
    title: str
    workload: BenchWorkload
    rate: float = 0.0
    kind: LoadKind = LoadKind.ADDS


TAIL_RATE: Final = 1_000.0
"""Entries per second: nearly each wakes the reader up."""


def _adds(name: str) -> ProfiledLoad:
    return ProfiledLoad(name, WORKLOADS[name].title, WORKLOADS[name])


def _many(name: str, like: str, ledgers: int) -> ProfiledLoad:
    """Calls of ``append_many`` with the entries and the window of another workload."""
    workload = replace(WORKLOADS[like], ledgers=ledgers)
    calls = "one call at a time" if ledgers == 1 else f"{ledgers} calls"
    return ProfiledLoad(name, f"{workload.title}, append_many, {calls}", workload, kind=LoadKind.MANY)


def _reads(name: str, how: str, kind: LoadKind) -> ProfiledLoad:
    return ProfiledLoad(name, f"1 KiB entries of a closed ledger, {how}", WORKLOADS["reads"], kind=kind)


CALLS: Final = (
    _adds("adds-100B"),
    _many("many-100B", "adds-100B", 4),
    _adds("adds-1KiB"),
    _many("many-1KiB", "adds-1KiB", 4),
    _many("many-1KiB-one", "adds-1KiB", 1),
    _adds("adds-1KiB-w1000"),
    _many("many-1KiB-w1000", "adds-1KiB-w1000", 4),
)
"""Loads by ``append_nowait`` and by ``append_many``, which the page compares."""

LOADS: Final = (
    *CALLS,
    _adds("adds-4KiB"),
    _adds("adds-64KiB"),
    ProfiledLoad("open-loop", f"1 KiB entries, {ORDINARY_RATE:,.0f} per second (open loop)", PEAK, ORDINARY_RATE),
    _adds("alone"),
    ProfiledLoad(
        "tail",
        f"1 KiB entries, {TAIL_RATE:,.0f} per second, and a reader that follows",
        PEAK,
        TAIL_RATE,
        LoadKind.TAIL,
    ),
    _reads("reads", "in order", LoadKind.READS),
    _reads("reads-cold", "in order, from the disk", LoadKind.COLD_READS),
    _reads("reads-random", "single reads at random", LoadKind.RANDOM_READS),
    ProfiledLoad("overload", "1 KiB entries, ten times the peak offered by 200 clients", PEAK, kind=LoadKind.OVERLOAD),
)
