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
from tallybook.client.writer.handle import LedgerWriter
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
_SETTINGS: Final = ClientSettings(max_pending_bytes=ByteSize(16 * MIB), away_timeout_ms=1_500, reconnect_ms=100)
"""A bookie that is away for a moment is replaced already, because the demo does not last long."""
_REPLACED_SECONDS: Final = 20.0
"""Longest wait for a replacement to join."""
_LOOK_SECONDS: Final = 0.02


class Reports:
    """Says on standard output what is acknowledged, some times a second."""

    def __init__(self, clock: Clock, writer: LedgerWriter) -> None:
        self._clock = clock
        self._writer = writer
        self._next = 0.0

    def update(self, entries: int, size: int, seconds: float) -> None:
        """So many entries and bytes are acknowledged."""
        if self._clock.monotonic() >= self._next:
            self._next = self._clock.monotonic() + _REPORT_SECONDS
            report(self._writer, entries, size, seconds)

    def end(self) -> None:
        """The last word is ``report``'s."""


def report(writer: LedgerWriter, entries: int, size: int, seconds: float, *, closed: bool = False) -> None:
    """One line for the process that watches."""
    fragment = writer.metadata.last_fragment
    where = {"fragment_from": fragment.first_entry_id, "bookies": fragment.bookies}
    print(json.dumps({"entries": entries, "bytes": size, "seconds": seconds, "closed": closed, **where}), flush=True)


class _Source:
    """The flights that are to be appended; at one place it lingers until a bookie was replaced.

    However fast the machine is, the demo then shows an ensemble change under way.
    """

    def __init__(self, file: Path, count: int, skip: int, linger_at: int, writer: LedgerWriter, clock: Clock) -> None:
        self._file = file
        self._count = count
        self._skip = skip
        self._linger_at = linger_at
        self._writer = writer
        self._clock = clock

    async def lines(self) -> AsyncGenerator[list[bytes], None]:
        """The flights, some at a time."""
        skip, given = self._skip, 0
        for lines in flights(self._file, self._count):
            kept, skip = lines[skip:], max(0, skip - len(lines))
            if kept:
                yield kept
            given += len(kept)
            if self._linger_at and given >= self._linger_at:
                await self._replaced()

    async def _replaced(self) -> None:
        """Wait until another bookie has joined, or the writer has ended, or for long enough."""
        self._linger_at = 0
        deadline = self._clock.monotonic() + _REPLACED_SECONDS
        while self._writer.metadata.last_fragment.first_entry_id == 0 and not self._writer.ended:
            if self._clock.monotonic() >= deadline:
                return
            await self._clock.sleep(_LOOK_SECONDS)


async def _write(options: argparse.Namespace) -> None:
    die_with_parent(options.parent_pipe)
    clock = RealClock()
    async with Client(options.metadata, _SETTINGS) as client:
        writer = await client.adopt_ledger(options.ledger)
        feeder = Feeder(writer, clock, Reports(clock, writer), _WINDOW_BYTES)
        source = _Source(options.flights, options.count, options.skip, options.linger_at, writer, clock)
        await feeder.feed(source.lines())
        await writer.close()
        report(writer, feeder.entries, feeder.size_bytes, feeder.seconds, closed=True)


def main() -> int:
    """Write, and return an exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--metadata", required=True)
    parser.add_argument("--ledger", type=int, required=True)
    parser.add_argument("--flights", type=Path, required=True)
    parser.add_argument("--count", type=int, default=FLIGHTS)
    parser.add_argument("--skip", type=int, default=0)
    parser.add_argument("--linger-at", type=int, default=0)
    parser.add_argument("--parent-pipe", type=int, required=True)
    options = parser.parse_args()
    try:
        run(_write(options))
    except TallybookError as error:
        complain(sentence(error))
        return exit_code(error)
    return Exit.OK


if __name__ == "__main__":
    sys.exit(main())
