"""Space freed by garbage collection after most ledgers are deleted, its speed, and its effect on adds.

In each turn, a cluster is filled and all data are flushed to entry logs. Then entries are added at a steady rate, first
alone, then while 90 % of the ledgers, chosen at random, are deleted: the latency of adds before is compared with that
from the deletion until every bookie has completed two garbage collection passes.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tallybook.cli.measure.latency import median

from ..equipment.bookies import RestartableBookie, bookies, metadata_in
from ..equipment.programs import ProgramFailed, module, run_json_lines
from ..gates import Figures
from ..loads.steady_adds import steady_adds
from ..loads.windows import Window, WindowedLatencies

DELETED_PERCENT: Final = 90
ROUNDS: Final = 2
COPIES: Final = 3
LOGS_PER_FILL: Final = 20
"""Entry logs per fill: many, since the one being written is not collected."""
COLLECTION_MS: Final = 10_000
PROGRAM_SECONDS: Final = 1_800.0
_MIN_LOG_MIB: Final = 4
_MAX_LOG_MIB: Final = 1024
_POLL_SECONDS: Final = 0.1
_SECONDS_PER_LEDGER: Final = 0.05
_ROUNDS_METRIC: Final = "tallybook_bookie_collector_rounds_total"
_FLUSHED_METRIC: Final = "tallybook_bookie_flushed_bytes_total"


@dataclass(frozen=True, slots=True)
class SpacePlan:
    """Sizes and durations.

    Args:
        mib: payload of a fill, a copy of which is on every bookie.
        quiet_seconds: time with adds only, in each turn.
        settle_seconds: time after a fill until the data are in entry logs.
    """

    mib: int
    turns: int
    quiet_seconds: float
    settle_seconds: float
    rate: float


@dataclass(frozen=True, slots=True)
class _Turn:
    quiet_p99_ms: float
    beside_p99_ms: float
    regained_part: float
    seconds: float


def measure_space(directory: Path, plan: SpacePlan) -> Figures:
    """Fill and delete in turns.

    Raises:
        ProgramFailed: a program failed, or the garbage collection passes did not end in time.
    """
    log_mib = min(_MAX_LOG_MIB, max(_MIN_LOG_MIB, plan.mib // LOGS_PER_FILL))
    settings = [f"storage.entry_log_bytes={log_mib}MiB", f"collection.interval_ms={COLLECTION_MS}"]
    settings += ["collection.deleted_delay_s=0", "collection.max_deleted_percent=100"]
    with bookies(directory, COPIES, settings) as cluster:
        return _figures([_turn(directory, cluster, plan, number) for number in range(plan.turns)])


def _turn(directory: Path, cluster: Sequence[RestartableBookie], plan: SpacePlan, number: int) -> _Turn:
    ledgers = ["--metadata", metadata_in(directory), "--ledgers", str(directory / f"ledgers-{number}.json")]
    filled = _load("fill", *ledgers, "--mib", str(plan.mib), "--seed", str(number + 1))
    time.sleep(plan.settle_seconds)
    with steady_adds(directory, plan.rate) as load:
        quiet = Window.of_next(plan.quiet_seconds)
        before = [_DiskUse.of(bookie) for bookie in cluster]
        began = time.monotonic_ns()
        deleted = _load("delete", *ledgers, "--percent", str(DELETED_PERCENT))
        _wait_for_rounds(cluster, deadline_seconds=_deadline_seconds(filled["ledgers"] * (number + 1)))
        busy = Window(began, time.monotonic_ns())
        now_used = [_DiskUse.of(bookie) for bookie in cluster]
    regained = min(now.regained_since(then) for now, then in zip(now_used, before, strict=True))
    latencies = WindowedLatencies.load(load.samples)
    quiet_ms, beside_ms = (latencies.within(each).p99_ms for each in (quiet, busy))
    return _Turn(quiet_ms, beside_ms, regained / deleted["deleted_bytes"], busy.seconds)


def _load(name: str, *arguments: str) -> dict[str, Any]:
    command = module("tallybook.bench.storage.loads", name, *arguments)
    [found] = run_json_lines(command, timeout_seconds=PROGRAM_SECONDS)
    return found


def _wait_for_rounds(cluster: Sequence[RestartableBookie], *, deadline_seconds: float) -> None:
    """Wait until every bookie has started and ended two passes; the pass running now does not count."""
    wanted = [bookie.metrics()[_ROUNDS_METRIC] + 1 + ROUNDS for bookie in cluster]
    deadline = time.monotonic() + deadline_seconds
    while any(bookie.metrics()[_ROUNDS_METRIC] < number for bookie, number in zip(cluster, wanted, strict=True)):
        if time.monotonic() > deadline:
            raise ProgramFailed(f"two garbage collection passes did not end within {deadline_seconds:.0f} s")
        time.sleep(_POLL_SECONDS)


def _deadline_seconds(ledgers: float) -> float:
    """A generous timeout for three passes with their pauses, each of which looks up every ledger."""
    return 300.0 + _SECONDS_PER_LEDGER * ledgers + 3 * COLLECTION_MS / 1000


@dataclass(frozen=True, slots=True)
class _DiskUse:
    """Disk use of a bookie, and the bytes that it has flushed since its start."""

    disk_bytes: int
    flushed_bytes: float

    @classmethod
    def of(cls, bookie: RestartableBookie) -> _DiskUse:
        flushed = bookie.metrics()[_FLUSHED_METRIC]
        return cls(bytes_on_disk(bookie.directory / "ledgers"), flushed)

    def regained_since(self, before: _DiskUse) -> float:
        """Space freed since ``before``, without the space used by adds since then."""
        return before.disk_bytes + (self.flushed_bytes - before.flushed_bytes) - self.disk_bytes


def bytes_on_disk(directory: Path) -> int:
    """Disk use of the files in a directory."""
    total = 0
    for path in directory.iterdir():
        try:
            total += path.stat().st_blocks * 512
        except FileNotFoundError:
            # Removed concurrently.
            continue
    return total


def _figures(turns: Sequence[_Turn]) -> Figures:
    return {
        "room_regained_part": round(min(turn.regained_part for turn in turns), 3),
        "room_seconds": round(median([turn.seconds for turn in turns]), 1),
        "room_quiet_p99_ms": round(median([turn.quiet_p99_ms for turn in turns]), 3),
        "room_beside_p99_ms": round(median([turn.beside_p99_ms for turn in turns]), 3),
        "room_p99_ratio": round(median([turn.beside_p99_ms / turn.quiet_p99_ms for turn in turns]), 3),
    }
