"""Latency of adds before and during a fault, in one load on the same ledgers.

In a turn of a case, a load starts at a fixed rate. Its latencies in the time before the fault are the healthy ones;
those during the fault are divided by them. Both times are next to each other, so disturbances of minutes affect both.
The control case has no fault: its ratios are the noise of the others. The bookie that fails is the one with most of the
ledgers.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from tallybook.cli.measure.latency import Latencies, median

from ..equipment.bookies import RestartableBookie, bookies
from ..gates import Figures
from ..loads.steady_adds import steady_adds
from ..loads.windows import Window, WindowedLatencies
from .faults import MemberFault, busy_disk, interrupted, killed, no_fault

BOOKIES: Final = 4
CHANGE_SECONDS: Final = 8.0
"""Time in which a writer replaces a dead bookie."""
RECOVER_SECONDS: Final = 3.0
"""Time after a fault until the next load: a bookie that was behind catches up."""
QUIET_SECONDS: Final = 0.2
"""Time between the healthy window and the fault, whose first victims would else be healthy entries."""
SLACK_SECONDS: Final = 120.0
"""Time that a load may take for the begin and the end of a fault, beside the windows."""


@dataclass(frozen=True, slots=True)
class LatencyCase:
    """A fault.

    Args:
        lead_seconds: time from the begin of the fault to the measurement.
    """

    name: str
    title: str
    fault: MemberFault
    lead_seconds: float = 0.0


CASES: Final = (
    LatencyCase("control", "control: no fault", no_fault),
    LatencyCase("slow", "a slow member: stopped for 50 ms of every 100 ms", interrupted(0.05, 0.05)),
    LatencyCase("paused", "a paused process: stopped for 2 s of every 5 s", interrupted(2.0, 3.0)),
    LatencyCase("killed", "a member is killed when the measurement begins", killed),
    LatencyCase("dead", "a dead member: killed, and replaced in the ensembles", killed, CHANGE_SECONDS),
    LatencyCase("busy", "a busy disk: 4 MiB writes with fsync beside", busy_disk),
)


@dataclass(frozen=True, slots=True)
class LatencyPlan:
    """Sizes.

    Args:
        rate: entries per second over all ledgers.
        seconds: measured time before a fault, and during it.
        warm_up_seconds: load before that.
        rounds: turns of each case.
    """

    rate: float
    seconds: float
    warm_up_seconds: float
    rounds: int


@dataclass(frozen=True, slots=True)
class LatencyTurn:
    """Latencies before and during the fault of a case."""

    healthy: Latencies
    during: Latencies
    ensemble_changes: int
    refusals: int
    """Times that the byte budget of the client was used up."""


def measure_latency(directory: Path, plan: LatencyPlan, names: Sequence[str]) -> Figures:
    """Run the named cases in turns on one cluster.

    Raises:
        ProgramFailed: a bookie did not start, or an append failed.
    """
    turns: dict[str, list[LatencyTurn]] = {name: [] for name in names}
    with bookies(directory, BOOKIES) as cluster:
        # New bookies are slower for some seconds, in which the first case would be taken for healthy.
        with steady_adds(directory, plan.rate, warm_up_seconds=plan.warm_up_seconds):
            time.sleep(plan.seconds)
        for number in range(plan.rounds):
            for case in CASES:
                if case.name in names:
                    turns[case.name].append(_turn(directory, cluster, plan, case))
                    print(f"round {number + 1}: {case.title}: {turns[case.name][-1]}", flush=True)
                    time.sleep(RECOVER_SECONDS)
    return {"rate_entries_per_s": plan.rate, **figures_of(turns)}


def _turn(directory: Path, cluster: Sequence[RestartableBookie], plan: LatencyPlan, case: LatencyCase) -> LatencyTurn:
    longest = 2 * plan.seconds + case.lead_seconds + SLACK_SECONDS
    with steady_adds(directory, plan.rate, warm_up_seconds=plan.warm_up_seconds, max_seconds=longest) as load:
        [(chosen, _)] = Counter(name for ensemble in load.ensembles for name in ensemble).most_common(1)
        [victim] = [bookie for bookie in cluster if bookie.name == chosen]
        before = Window.of_next(plan.seconds)
        time.sleep(QUIET_SECONDS)
        with case.fault(victim) as began_ns:
            time.sleep(case.lead_seconds)
            during = Window.of_next(plan.seconds, began_ns + int(case.lead_seconds * 1e9))
    latencies = WindowedLatencies.load(load.samples)
    return LatencyTurn(latencies.within(before), latencies.within(during), load.ensemble_changes, load.refusals)


def figures_of(turns: dict[str, list[LatencyTurn]]) -> Figures:
    """Medians of the turns by case, and for each turn the ratio of the 99th percentiles."""
    figures: Figures = {}
    for name, found in turns.items():
        for side in ("healthy", "during"):
            each = [asdict(getattr(turn, side)) for turn in found]
            figures |= {
                f"{name}_{side}_{figure}": round(median([latencies[figure] for latencies in each]), 3)
                for figure in each[0]
            }
        ratios = [turn.during.p99_ms / turn.healthy.p99_ms for turn in found]
        figures |= {f"{name}_p99_ratio_{number}": round(ratio, 3) for number, ratio in enumerate(ratios)}
        figures[f"{name}_p99_ratio"] = round(median(ratios), 3)
        figures[f"{name}_ensemble_changes"] = median([turn.ensemble_changes for turn in found])
        figures[f"{name}_refusals"] = median([turn.refusals for turn in found])
    return figures
