"""Effect of catch-up readers on the latency of adds, compared with the peer.

Both systems have cold ledgers: the page cache of their files is dropped before each read. Readers read at half of the
rate that they reach on an idle system. Adds are timed in turns: Tallybook alone, with readers, the peer alone, with
readers.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from tallybook.cli.measure.latency import median
from tallybook.core.limits import KIB, MIB

from ..compare.bookkeeper import BookKeeper
from ..compare.comparison import running
from ..equipment.bookies import bookies, forget_pages, metadata_in
from ..equipment.programs import ProgramFailed, Server, module, run_json_lines
from ..gates import BOOKKEEPER, TALLYBOOK, Figures

COPIES: Final = 3
ENTRY_BYTES: Final = KIB
ADD_LEDGERS: Final = 4
LEDGERS: Final = 8
SETTINGS: Final = ("collection.interval_ms=0", "scrub.period_s=0")
FIRST_SECONDS: Final = 60.0
"""Timeout until readers have started: a JVM takes some seconds."""
PROGRAM_SECONDS: Final = 1_800.0
WARM_UP_SECONDS: Final = 8.0
"""Warm-up of the adds of both systems."""
_SLACK_SECONDS: Final = 60.0


@dataclass(frozen=True, slots=True)
class CatchUpPlan:
    """Sizes and durations.

    Args:
        mib: payload to read.
        seconds: measured time of adds, and of reading alone.
        settle_seconds: time after writing until the data are in entry logs.
        rate: added entries of 1 KiB per second.
    """

    mib: int
    turns: int
    seconds: float
    settle_seconds: float
    rate: float


class _System(Protocol):
    name: str

    def p99_ms(self, plan: CatchUpPlan) -> float:
        """99th percentile of adds at the rate of the plan."""

    def reader(self, bytes_per_second: float, seconds: float) -> Server:
        """Start to read the cold ledgers."""


class _Ours:
    """Tallybook bookies with cold ledgers."""

    name = TALLYBOOK

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._metadata = ["--metadata", metadata_in(directory)]
        self._ledgers = ["--ledgers", str(directory / "ledgers.json")]

    def fill(self, mib: int) -> None:
        options = [*self._metadata, *self._ledgers, "--mib", str(mib), "--count", str(LEDGERS), "--beside", "1"]
        _run(module("tallybook.bench.storage.loads", "fill", *options))

    def p99_ms(self, plan: CatchUpPlan) -> float:
        options = {"--entry-bytes": ENTRY_BYTES, "--ledgers": ADD_LEDGERS, "--rate": plan.rate}
        options |= {"--seconds": plan.seconds, "--warm-up-seconds": WARM_UP_SECONDS, "--window": 20_000}
        words = [text for name, value in options.items() for text in (name, str(value))]
        return _run(module("tallybook.cli", "bench", "write", *self._metadata, *words, "--json"))["p99_ms"]

    def reader(self, bytes_per_second: float, seconds: float) -> Server:
        forget_pages(self._directory)
        rate = ["--bytes-per-second", str(bytes_per_second), "--seconds", str(seconds)]
        command = module("tallybook.bench.storage.loads", "catch-up", *self._metadata, *self._ledgers, *rate)
        return Server(command, self._directory / "reader.json")


class _Peer:
    """BookKeeper with cold ledgers."""

    name = BOOKKEEPER

    def __init__(self, directory: Path, peer: BookKeeper, ledgers: Sequence[int]) -> None:
        self._directory = directory
        self._peer = peer
        self._ledgers = ledgers

    def p99_ms(self, plan: CatchUpPlan) -> float:
        return self._peer.write_at(ENTRY_BYTES, ADD_LEDGERS, plan.rate, plan.seconds)["p99_ms"]

    def reader(self, bytes_per_second: float, seconds: float) -> Server:
        forget_pages(self._directory / "data")
        return self._peer.catch_up(self._ledgers, bytes_per_second, seconds, self._directory / "reader.json")


def measure_catch_up(directory: Path, plan: CatchUpPlan, peer_directory: Path | None, port: int) -> Figures:
    """Read and add in turns.

    Args:
        peer_directory: directory of the peer; ``None``: measure Tallybook alone.

    Raises:
        ProgramFailed: a program failed, or readers did not start.
    """
    with ExitStack() as stack:
        stack.enter_context(bookies(directory, COPIES, SETTINGS))
        ours = _Ours(directory)
        ours.fill(plan.mib)
        systems: list[_System] = [ours]
        if peer_directory is not None:
            peer = BookKeeper(peer_directory, port)
            stack.enter_context(running(peer))
            ledgers = peer.fill(ENTRY_BYTES, plan.mib * MIB // ENTRY_BYTES // LEDGERS, LEDGERS)
            systems.append(_Peer(peer_directory, peer, ledgers))
        time.sleep(plan.settle_seconds)
        rates = {system.name: _idle_rate(system, plan.seconds) / 2 for system in systems}
        turns = [
            {system.name: _turn(system, plan, rates[system.name]) for system in systems} for _ in range(plan.turns)
        ]
    return figures_of(turns, rates)


@dataclass(frozen=True, slots=True)
class CatchUpTurn:
    """Figures of one system: adds alone, adds with readers, and the rate of the readers."""

    alone_ms: float
    beside_ms: float
    read_bytes_per_second: float

    @property
    def ratio(self) -> float:
        """Latency of adds with readers relative to adds alone."""
        return self.beside_ms / self.alone_ms


def _turn(system: _System, plan: CatchUpPlan, bytes_per_second: float) -> CatchUpTurn:
    alone = system.p99_ms(plan)
    with _reading(system, bytes_per_second, plan.seconds + WARM_UP_SECONDS + _SLACK_SECONDS) as reader:
        beside = system.p99_ms(plan)
        if reader.ended is not None:
            raise ProgramFailed(f"the readers of {system.name} ended with {reader.ended} before the adds did")
    return CatchUpTurn(alone, beside, rate_of(reader.said()))


def _idle_rate(system: _System, seconds: float) -> float:
    with _reading(system, 0.0, seconds + _SLACK_SECONDS) as reader:
        time.sleep(seconds)
    return rate_of(reader.said())


@contextmanager
def _reading(system: _System, bytes_per_second: float, seconds: float) -> Iterator[Server]:
    reader = system.reader(bytes_per_second, seconds)
    try:
        reader.ready(FIRST_SECONDS)
        yield reader
    finally:
        reader.stop()


def rate_of(samples: Sequence[Figures]) -> float:
    """Bytes per second between the first and the last progress report of the readers.

    Raises:
        ProgramFailed: there are fewer than two reports.
    """
    if len(samples) < 2:
        raise ProgramFailed("the readers did not report their progress")
    first, last = samples[0], samples[-1]
    return (last["bytes"] - first["bytes"]) / (last["seconds"] - first["seconds"])


def figures_of(turns: Sequence[dict[str, CatchUpTurn]], rates: dict[str, float]) -> Figures:
    """Medians of the turns by system, and ratios of Tallybook to the peer per turn.

    Args:
        rates: target rates of the readers in bytes per second.
    """
    figures: Figures = {}
    for name, prefix in ((TALLYBOOK, "catch_up"), (BOOKKEEPER, "peer_catch_up")):
        found = [turn[name] for turn in turns if name in turn]
        if found:
            figures |= {
                f"{prefix}_wanted_mb_per_s": round(rates[name] / 1e6, 1),
                f"{prefix}_mb_per_s": round(median([turn.read_bytes_per_second for turn in found]) / 1e6, 1),
                f"{prefix}_rate_part": round(min(turn.read_bytes_per_second for turn in found) / rates[name], 3),
                f"{prefix}_alone_p99_ms": round(median([turn.alone_ms for turn in found]), 3),
                f"{prefix}_beside_p99_ms": round(median([turn.beside_ms for turn in found]), 3),
                f"{prefix}_p99_ratio": round(median([turn.ratio for turn in found]), 3),
            }
    both = [turn[TALLYBOOK].ratio / turn[BOOKKEEPER].ratio for turn in turns if len(turn) == 2]
    if both:
        figures["catch_up_to_peer"] = round(median(both), 3)
    return figures


def _run(command: Sequence[str]) -> Figures:
    [found] = run_json_lines(command, timeout_seconds=PROGRAM_SECONDS)
    return found
