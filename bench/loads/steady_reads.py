"""Reads a closed ledger for a given time, in order or at random.

    python -m tallybook.bench.loads.steady_reads --metadata URI --seconds S [--at-random | --cold DIR]

It writes the ledger first, waits until the bookies have flushed it, and reads it once. Then it prints a line of JSON
and reads for ``--seconds``; the second line has the figures. Unlike ``tallybook bench read`` it has one kind of read at
a time, so that another program can profile it.
"""

from __future__ import annotations

import asyncio
import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from tallybook.cli.cluster_client import cluster
from tallybook.cli.measure.reads import FLUSH_SECONDS, ReadPlan, write_ledger
from tallybook.cli.options import Metadata
from tallybook.cli.running import run
from tallybook.client.client import Client
from tallybook.client.reader.handle import LedgerReader
from tallybook.runtime.rng import SeededRng

from ..equipment.programs import print_json_line
from ..gates import Figures


async def read_steadily(
    client: Client, plan: ReadPlan, seconds: float, *, at_random: bool, cold: Path | None = None
) -> Figures:
    """Write a ledger, read it for ``seconds``, and delete it; returns the entries and the time.

    Args:
        cold: directory of the bookies; before each pass in order, its files are dropped from the page cache. Caches of
            bookies are cold, too, if the ledger is larger.

    Raises:
        TallybookError: a write or a read failed.
    """
    ledger_id = await write_ledger(client, plan)
    try:
        await asyncio.sleep(plan.flush_seconds)
        reader = await client.open_ledger(ledger_id)
        await _in_order(reader, 0.0, None)
        print_json_line({"ready": True})
        began = time.monotonic()
        count = await (_at_random(reader, seconds) if at_random else _in_order(reader, seconds, cold))
        return {"entries": count, "seconds": round(time.monotonic() - began, 3)}
    finally:
        await client.delete_ledger(ledger_id)


async def _in_order(reader: LedgerReader, seconds: float, cold: Path | None) -> int:
    """Read the ledger once, and again until ``seconds`` have passed; returns the number of entries."""
    end, count = time.monotonic() + seconds, 0
    while True:
        if cold is not None:
            drop_from_page_cache(cold)
        async for group in reader.read_batches(0, reader.last_add_confirmed):
            count += len(group)
            if count and seconds and time.monotonic() > end:
                return count
        if time.monotonic() > end:
            return count


def drop_from_page_cache(directory: Path) -> None:
    """Drop the pages of the files below a directory from the page cache, except those not yet written to the disk."""
    for path in directory.rglob("*"):
        with suppress(FileNotFoundError):
            if path.is_file() and not path.is_symlink():
                with path.open("rb") as file:
                    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


async def _at_random(reader: LedgerReader, seconds: float) -> int:
    rng = SeededRng(2)
    end, count = time.monotonic() + seconds, 0
    while time.monotonic() < end:
        await reader.read_entry(rng.randint(0, reader.last_add_confirmed))
        count += 1
    return count


def main(
    metadata: Metadata,
    seconds: Annotated[float, typer.Option(help="How long to read.")],
    entry_bytes: Annotated[int, typer.Option(help="Size of an entry.")] = 1024,
    entries: Annotated[int, typer.Option(help="Entries of the ledger.")] = 400_000,
    flush_seconds: Annotated[float, typer.Option(help="Pause after the ledger is closed.")] = FLUSH_SECONDS,
    at_random: Annotated[bool, typer.Option("--at-random", help="Read single entries, one at a time.")] = False,
    cold: Annotated[
        Path | None, typer.Option(help="Directory of the bookies: read from the disk, not from the page cache.")
    ] = None,
) -> None:
    """Write a ledger, read it, and print the figures in one line of JSON."""
    plan = ReadPlan(entry_bytes, entries, flush_seconds)

    async def work() -> Figures:
        async with cluster(metadata) as client:
            return await read_steadily(client, plan, seconds, at_random=at_random, cold=cold)

    print_json_line(run(work()))


if __name__ == "__main__":
    typer.run(main)
