"""Bit rot: time until the scrub finds a flipped byte, and time until it is repaired.

Three bookies with a scrub period of seconds, and the repair. A byte of a payload is flipped at a random position in an
entry log of one bookie; its metrics are polled until it has found a damaged batch, and until it has none any more. At
the end every copy is read completely.
"""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tallybook.runtime.rng import SeededRng

from ..equipment.bookies import RestartableBookie, bookies, metadata_in
from ..equipment.programs import ProgramFailed, Server, module, run_json_lines
from ..gates import Figures
from .loads import MARK
from .repair import REPAIR, lacking

COPIES: Final = 3
TIMEOUT_PERIODS: Final = 5
PROGRAM_SECONDS: Final = 600.0
_SETTINGS: Final = (
    "storage.entry_log_bytes=16MiB",
    "storage.flush_interval_ms=500",
    "scrub.max_bytes_per_second=1GiB",
)
_SETTLE_SECONDS: Final = 3.0
_POLL_SECONDS: Final = 0.02
_MET: Final = "tallybook_bookie_damage_met_total"
_KNOWN: Final = "tallybook_bookie_damaged_batches"


def measure_rot(directory: Path, *, mib: int, period_seconds: int, flips: int) -> Figures:
    """Flip ``flips`` bytes, one after the other.

    Raises:
        ProgramFailed: a flipped byte was not found or not repaired in time.
    """
    found, mended = [], []
    with bookies(directory, COPIES, [*_SETTINGS, f"scrub.period_s={period_seconds}"]) as cluster, _repair(directory):
        options = ["--metadata", metadata_in(directory), "--ledgers", str(directory / "ledgers.json")]
        options += ["--mib", str(mib), "--copies", str(COPIES)]
        run_json_lines(module("tallybook.bench.storage.loads", "fill", *options), timeout_seconds=PROGRAM_SECONDS)
        time.sleep(_SETTLE_SECONDS)
        rng, bookie = SeededRng(flips), cluster[0]
        for number in range(flips):
            # At a random point of the scrub pass.
            time.sleep(period_seconds * rng.random())
            log, part = _settled_logs(bookie.directory / "ledgers")[number], rng.random()
            took = _flip_and_watch(bookie, log, part, period_seconds * TIMEOUT_PERIODS)
            found.append(took[0])
            mended.append(took[1])
        left = lacking(directory)
    return {
        "rot_seconds": round(max(found), 2),
        "rot_periods": round(max(found) / period_seconds, 3),
        "rot_repaired_seconds": round(max(mended), 2),
        "rot_lacking": left,
    }


@contextmanager
def _repair(directory: Path) -> Iterator[None]:
    """Run the repair service, as an operator would."""
    words = [word for each in REPAIR for word in ("--set", each)]
    command = module("tallybook.cli", "repair", "run", "--metadata", metadata_in(directory), *words)
    server = Server(command, directory / "repair.json")
    try:
        yield
    finally:
        server.stop()


def _settled_logs(directory: Path) -> Sequence[Path]:
    """Entry logs that are complete: all but the newest."""
    logs = sorted(directory.glob("entrylog-*.log"))[:-1]
    if not logs:
        raise ProgramFailed("there is no complete entry log: write more")
    return logs


def flip(log: Path, part: float) -> None:
    """Flip a bit in a payload at about the given part of an entry log, 0 to 1.

    Raises:
        ProgramFailed: the log has no payload of this benchmark.
    """
    descriptor = os.open(log, os.O_RDWR)
    try:
        with mmap.mmap(descriptor, 0, prot=mmap.PROT_READ) as data:
            at = data.find(MARK, int(part * len(data)))
            if at < 0:
                at = data.rfind(MARK)
            if at < 0:
                raise ProgramFailed(f"{log} has no payload of this benchmark")
            byte = data[at]
        os.pwrite(descriptor, bytes([byte ^ 1]), at)
    finally:
        os.close(descriptor)


def _flip_and_watch(bookie: RestartableBookie, log: Path, part: float, timeout_seconds: float) -> tuple[float, float]:
    """Times until a damaged batch was found, and until none was known any more."""
    met, began = bookie.metrics()[_MET], time.monotonic()
    flip(log, part)
    found = _when(bookie, lambda now: now[_MET] > met, "found", began + timeout_seconds)
    mended = _when(bookie, lambda now: not now[_KNOWN], "repaired", began + timeout_seconds)
    return found - began, mended - began


def _when(bookie: RestartableBookie, condition: Callable[[Figures], bool], what: str, deadline: float) -> float:
    """The time at which the metrics of a bookie first met a condition."""
    while not condition(bookie.metrics()):
        if time.monotonic() > deadline:
            raise ProgramFailed(f"a flipped byte was not {what} within {TIMEOUT_PERIODS} periods")
        time.sleep(_POLL_SECONDS)
    return time.monotonic()
