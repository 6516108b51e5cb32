"""The loads that are profiled: workloads of the comparison, and the same reads separated by kind."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ..compare.workloads import ORDINARY_RATE, PEAK, WORKLOADS, BenchWorkload


@dataclass(frozen=True, slots=True)
class ProfiledLoad:
    """One load.

    Args:
        rate: entries per second of an open loop; 0: a closed loop.
        reads: reads a closed ledger instead of adding.
        at_random: reads single entries.
    """

    name: str
    title: str
    workload: BenchWorkload
    rate: float = 0.0
    reads: bool = False
    at_random: bool = False


_CLOSED: Final = ("adds-100B", "adds-1KiB", "adds-1KiB-w1000", "adds-4KiB", "adds-64KiB")

LOADS: Final = (
    *(ProfiledLoad(name, WORKLOADS[name].title, WORKLOADS[name]) for name in _CLOSED),
    ProfiledLoad("open-loop", f"1 KiB entries, {ORDINARY_RATE:,.0f} per second (open loop)", PEAK, ORDINARY_RATE),
    ProfiledLoad("alone", WORKLOADS["alone"].title, WORKLOADS["alone"]),
    ProfiledLoad("reads", "1 KiB entries of a closed ledger, in order", WORKLOADS["reads"], reads=True),
    ProfiledLoad(
        "reads-random",
        "1 KiB entries of a closed ledger, single reads at random",
        WORKLOADS["reads"],
        reads=True,
        at_random=True,
    ),
)
