"""A producer of the demo's stream: a separate process, so that it can be stopped with a signal.

It takes the stream over, appends flights at a steady rate, each with its own dedup id, and reports on standard output
what is acknowledged, as lines of JSON. If another producer fences it, it reports that and ends.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tallybook.client.client import Client
from tallybook.core.errors import StreamFenced, TallybookError
from tallybook.runtime.clock import Clock, RealClock
from tallybook.stream import Outgoing, StreamStore, StreamWriter

from ..exits import Exit, exit_code, sentence
from ..local.parent import die_with_parent
from ..output import complain
from ..running import run
from .source import FLIGHTS, flights

MODULE: Final = "tallybook.cli.demo.producer"
"""The name of this module, for ``python -m``."""

_PIECE: Final = 500
"""Flights that are appended together."""


def _report(**facts: object) -> None:
    print(json.dumps(facts), flush=True)


def _pieces(file: Path, count: int, skip: int) -> Iterator[tuple[int, list[bytes]]]:
    """Flights from number ``skip`` on, in pieces, each with the number of its first flight."""
    first = 0
    for lines in flights(file, count):
        for start in range(0, len(lines), _PIECE):
            piece = lines[start : start + _PIECE]
            kept = piece[max(0, skip - first) :]
            if kept:
                yield first + len(piece) - len(kept), kept
            first += len(piece)


def with_ids(lines: list[bytes], first: int) -> list[Outgoing]:
    """Flights as records, each with its number as the dedup id."""
    return [Outgoing(line, dedup_id=b"flight %d" % number) for number, line in enumerate(lines, start=first)]


async def _append_all(writer: StreamWriter, options: argparse.Namespace, clock: Clock) -> None:
    began, sent = clock.monotonic(), 0
    for first, lines in _pieces(options.flights, options.count, options.skip):
        await clock.sleep(max(0.0, began + sent / options.rate - clock.monotonic()))
        await writer.append_many(with_ids(lines, first))
        sent += len(lines)
        _report(said="acked", flights=first + len(lines), records=writer.next_sequence)


async def _produce(options: argparse.Namespace) -> None:
    die_with_parent(options.parent_pipe)
    clock = RealClock()
    async with Client(options.metadata) as client, StreamStore(client, name=options.name) as streams:
        began = clock.monotonic()
        writer = await streams.writer(options.stream)
        _report(said="owner", ms=round(1000 * (clock.monotonic() - began)), records=writer.next_sequence)
        try:
            await _append_all(writer, options, clock)
        except StreamFenced as error:
            writer.abandon()
            _report(said="fenced", error=error.message)
            return
        await writer.seal()
        _report(said="ended", segments=(await streams.info(options.stream)).segments)


def main() -> int:
    """Run the producer; returns an exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--metadata", required=True)
    parser.add_argument("--stream", required=True)
    parser.add_argument("--name", required=True)
    parser.add_argument("--flights", type=Path, required=True)
    parser.add_argument("--count", type=int, default=FLIGHTS)
    parser.add_argument("--skip", type=int, default=0)
    parser.add_argument("--rate", type=float, required=True)
    parser.add_argument("--parent-pipe", type=int, required=True)
    options = parser.parse_args()
    try:
        run(_produce(options))
    except TallybookError as error:
        complain(sentence(error))
        return exit_code(error)
    return Exit.OK


if __name__ == "__main__":
    sys.exit(main())
