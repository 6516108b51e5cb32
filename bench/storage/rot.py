"""How soon a scrub finds a byte that flipped on the disk, which nobody reads.

One bookie with a period of seconds. A byte of a payload is flipped in its entry log, at a random place, and then its
metrics are watched until they tell of one more damaged batch.
"""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tallybook.bench.bookies import Bookie, bookies, metadata_in
from tallybook.bench.gates import Figures
from tallybook.bench.programs import ProgramFailed, module, run_json_lines
from tallybook.runtime.rng import SeededRng

from .loads import MARK

PATIENCE_PERIODS: Final = 5
PROGRAM_SECONDS: Final = 600.0
_SETTINGS: Final = (
    "storage.entry_log_bytes=16MiB",
    "storage.flush_interval_ms=500",
    "scrub.max_bytes_per_second=1GiB",
)
_SETTLE_SECONDS: Final = 3.0
_POLL_SECONDS: Final = 0.02
_METRIC: Final = "tallybook_bookie_damaged_batches"


def measure_rot(directory: Path, *, mib: int, period_seconds: int, flips: int) -> Figures:
    """Flip so many bytes, one after the other.

    Raises:
        ProgramFailed: a flipped byte was not found for a long time.
    """
    with bookies(directory, 1, [*_SETTINGS, f"scrub.period_s={period_seconds}"]) as [bookie]:
        options = ["--metadata", metadata_in(directory), "--ledgers", str(directory / "ledgers.json")]
        options += ["--mib", str(mib), "--copies", "1"]
        run_json_lines(module("tallybook.bench.storage.loads", "fill", *options), timeout_seconds=PROGRAM_SECONDS)
        time.sleep(_SETTLE_SECONDS)
        rng, found = SeededRng(flips), []
        for number in range(flips):
            # Wherever in its round the scrub is.
            time.sleep(period_seconds * rng.random())
            log, part = _settled_logs(bookie.directory / "ledgers")[number], rng.random()
            flip(log, part)
            found.append(_seconds_until_known(bookie, number + 1, period_seconds * PATIENCE_PERIODS))
    return {"rot_seconds": round(max(found), 2), "rot_periods": round(max(found) / period_seconds, 3)}


def _settled_logs(directory: Path) -> Sequence[Path]:
    """Entry logs that are not written any more; the youngest is."""
    logs = sorted(directory.glob("entrylog-*.log"))[:-1]
    if not logs:
        raise ProgramFailed("there is no finished entry log: write more")
    return logs


def flip(log: Path, part: float) -> None:
    """Flip a bit in a payload that lies about so far into an entry log, 0 to 1.

    Raises:
        ProgramFailed: there is no payload.
    """
    descriptor = os.open(log, os.O_RDWR)
    try:
        with mmap.mmap(descriptor, 0, prot=mmap.PROT_READ) as data:
            at = data.find(MARK, int(part * len(data)))
            if at < 0:
                at = data.rfind(MARK)
            if at < 0:
                raise ProgramFailed(f"{log} holds no payload of ours")
            byte = data[at]
        os.pwrite(descriptor, bytes([byte ^ 1]), at)
    finally:
        os.close(descriptor)


def _seconds_until_known(bookie: Bookie, count: int, patience_seconds: float) -> float:
    began = time.monotonic()
    while bookie.metrics()[_METRIC] < count:
        if time.monotonic() - began > patience_seconds:
            raise ProgramFailed(f"a flipped byte was not found within {patience_seconds:.0f} s")
        time.sleep(_POLL_SECONDS)
    return time.monotonic() - began
