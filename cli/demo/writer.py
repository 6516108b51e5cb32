"""The writer of the demo: a separate process, so that it can be killed.

It appends flights to a ledger and reports on standard output what is acknowledged, as lines of JSON. Each report is
made after the acknowledgement, so it stays true if the process is killed.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Final

from tallybook.client.client import Client
from tallybook.client.writer.handle import LedgerWriter
from tallybook.core.errors import TallybookError
from tallybook.core.limits import MIB
from tallybook.core.settings import ClientSettings
from tallybook.runtime.clock import Clock, RealClock

from ..exits import Exit, exit_code, sentence
from ..lines.ledger_append import LedgerFeeder
from ..local.parent import die_with_parent
from ..output import complain
from ..running import run
from .source import FLIGHTS, flights

MODULE: Final = "tallybook.cli.demo.writer"
"""The name of this module, for ``python -m``."""

_REPORT_SECONDS: Final = 0.02
_WINDOW_BYTES: Final = 2 * MIB
_SETTINGS: Final = ClientSettings(max_pending_bytes=16 * MIB, away_timeout_ms=1_500, reconnect_ms=100)
"""Client settings that replace a bookie soon, because the demo is short."""
_REPLACED_SECONDS: Final = 20.0
"""Time-out for the replacement of a bookie."""
_POLL_SECONDS: Final = 0.02


class Reports:
    """Prints what is acknowledged, several times a second."""

    def __init__(self, clock: Clock, writer: LedgerWriter) -> None:
        self._clock = clock
        self._writer = writer
        self._next = 0.0

    def update(self, entries: int, size: int, seconds: float) -> None:
        """Report the acknowledged entries and bytes."""
        if self._clock.monotonic() >= self._next:
            self._next = self._clock.monotonic() + _REPORT_SECONDS
            report(self._writer, entries, size, seconds)

    def end(self) -> None:
        """Nothing: the last report is printed by ``report``."""


def report(writer: LedgerWriter, entries: int, size: int, seconds: float, *, closed: bool = False) -> None:
    """Print one line for the demo's main process."""
    fragment = writer.metadata.last_fragment
    where = {"fragment_from": fragment.first_entry_id, "bookies": fragment.bookies}
    print(json.dumps({"entries": entries, "bytes": size, "seconds": seconds, "closed": closed, **where}), flush=True)


class _Source:
    """The flights to append. At one position it waits until a bookie was replaced.

    So the demo shows an ensemble change on a machine of any speed.
    """

    def __init__(self, file: Path, count: int, skip: int, linger_at: int, writer: LedgerWriter, clock: Clock) -> None:
        self._file = file
        self._count = count
        self._skip = skip
        self._linger_at = linger_at
        self._writer = writer
        self._clock = clock

    async def lines(self) -> AsyncGenerator[list[bytes], None]:
        """The flights, in pieces."""
        skip, given = self._skip, 0
        for lines in flights(self._file, self._count):
            kept, skip = lines[skip:], max(0, skip - len(lines))
            if kept:
                yield kept
            given += len(kept)
            if self._linger_at and given >= self._linger_at:
                await self._replaced()

    async def _replaced(self) -> None:
        """Wait until a replacement bookie has joined, the writer has ended, or the time-out has passed."""
        self._linger_at = 0
        deadline = self._clock.monotonic() + _REPLACED_SECONDS
        while self._writer.metadata.last_fragment.first_entry_id == 0 and not self._writer.ended:
            if self._clock.monotonic() >= deadline:
                return
            await self._clock.sleep(_POLL_SECONDS)


async def _write(options: argparse.Namespace) -> None:
    die_with_parent(options.parent_pipe)
    clock = RealClock()
    async with Client(options.metadata, _SETTINGS) as client:
        writer = await client.adopt_ledger(options.ledger)
        feeder = LedgerFeeder(writer, clock, Reports(clock, writer), _WINDOW_BYTES)
        source = _Source(options.flights, options.count, options.skip, options.linger_at, writer, clock)
        await feeder.feed(source.lines())
        await writer.close()
        report(writer, feeder.entries, feeder.size_bytes, feeder.seconds, closed=True)


def main() -> int:
    """Run the writer; returns an exit code."""
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
