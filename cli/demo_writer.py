"""The writer of the demo: a process of its own, so that it can be killed.

It appends flights to a ledger and reports on standard output, one line of JSON at a time,
what is acknowledged. A report is made after the acknowledgement, so whoever reads it may
rely on it, whatever happens to this process afterwards.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Final

from pydantic import ByteSize

from tallybook.client.client import Client
from tallybook.core.config import ClientSettings
from tallybook.core.errors import TallybookError
from tallybook.core.limits import MIB
from tallybook.runtime.clock import Clock, RealClock

from .appending import Feeder
from .demo_source import FLIGHTS, flights
from .exits import Exit, exit_code, sentence
from .output import complain
from .parent import die_with_parent
from .running import run

MODULE: Final = "tallybook.cli.demo_writer"
"""What ``python -m`` runs."""

_REPORT_SECONDS: Final = 0.02
_WINDOW_BYTES: Final = 2 * MIB
_SETTINGS: Final = ClientSettings(max_pending_bytes=ByteSize(16 * MIB))
"""A bookie that falls behind by half of this is no longer waited for: what it misses goes on record."""


class Reports:
    """Says on standard output what is acknowledged, some times a second."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._next = 0.0

    def update(self, entries: int, size: int, seconds: float) -> None:
        """So many entries and bytes are acknowledged."""
        if self._clock.monotonic() >= self._next:
            self._next = self._clock.monotonic() + _REPORT_SECONDS
            report(entries, size, seconds)

    def end(self) -> None:
        """The last word is ``report``'s."""


def report(entries: int, size: int, seconds: float, *, closed: bool = False) -> None:
    """One line for the process that watches."""
    print(json.dumps({"entries": entries, "bytes": size, "seconds": seconds, "closed": closed}), flush=True)


async def _source(file: Path, count: int, skip: int) -> AsyncGenerator[list[bytes], None]:
    for lines in flights(file, count):
        kept, skip = lines[skip:], max(0, skip - len(lines))
        if kept:
            yield kept


async def _write(metadata: str, ledger: int, file: Path, count: int, skip: int, parent_pipe: int) -> None:
    die_with_parent(parent_pipe)
    clock = RealClock()
    async with Client(metadata, _SETTINGS) as client:
        writer = await client.adopt_ledger(ledger)
        feeder = Feeder(writer, clock, Reports(clock), _WINDOW_BYTES)
        await feeder.feed(_source(file, count, skip))
        await writer.close()
        report(feeder.entries, feeder.size_bytes, feeder.seconds, closed=True)


def main() -> int:
    """Write, and return an exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--metadata", required=True)
    parser.add_argument("--ledger", type=int, required=True)
    parser.add_argument("--flights", type=Path, required=True)
    parser.add_argument("--count", type=int, default=FLIGHTS)
    parser.add_argument("--skip", type=int, default=0)
    parser.add_argument("--parent-pipe", type=int, required=True)
    options = parser.parse_args()
    try:
        run(_write(options.metadata, options.ledger, options.flights, options.count, options.skip, options.parent_pipe))
    except TallybookError as error:
        complain(sentence(error))
        return exit_code(error)
    return Exit.OK


if __name__ == "__main__":
    sys.exit(main())
