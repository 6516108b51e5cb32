"""Appends to a ledger at a steady rate, and follows it with a reader that has a client of its own.

    python -m tallybook.bench.loads.tail_reads --metadata URI --rate 1000 --seconds S

It prints a line of JSON when the reader follows, and one with the time from the planned append of an entry until the
reader has it.
"""

from __future__ import annotations

import asyncio
import time
from array import array
from typing import Annotated, Final

import typer

from tallybook.cli.cluster_client import cluster
from tallybook.cli.measure.latency import Latencies
from tallybook.cli.measure.pacing import Pacer
from tallybook.cli.options import Metadata
from tallybook.cli.running import run
from tallybook.client.reader.handle import LedgerReader
from tallybook.client.writer.handle import LedgerWriter

from ..equipment.programs import print_json_line
from ..gates import Figures

_TIME_BYTES: Final = 8


async def _write(writer: LedgerWriter, entry_bytes: int, rate: float, seconds: float) -> None:
    """Append entries that begin with their planned time, then close the ledger, which ends the reader."""
    rest, start = bytes(entry_bytes - _TIME_BYTES), time.monotonic_ns()
    with Pacer() as pacer:
        for number in range(int(seconds * rate)):
            planned = start + int(number * 1e9 / rate)
            await pacer.until(planned)
            writer.append_nowait(planned.to_bytes(_TIME_BYTES) + rest)
    await writer.close()


async def _follow(reader: LedgerReader) -> array[int]:
    samples = array("q")
    async for group in reader.tail_batches():
        now = time.monotonic_ns()
        samples.extend([now - int.from_bytes(entry.payload[:_TIME_BYTES]) for entry in group])
    return samples


def main(
    metadata: Metadata,
    seconds: Annotated[float, typer.Option(help="How long to append.")],
    rate: Annotated[float, typer.Option(help="Entries per second.")] = 1_000.0,
    entry_bytes: Annotated[int, typer.Option(min=_TIME_BYTES, help="Size of an entry.")] = 1024,
) -> None:
    """Append and follow, and print the figures in one line of JSON."""

    async def work() -> Figures:
        async with cluster(metadata) as writing, cluster(metadata) as reading:
            writer = await writing.create_ledger()
            reader = await reading.open_ledger(writer.id, recover=False)
            print_json_line({"ready": True})
            samples, _ = await asyncio.gather(_follow(reader), _write(writer, entry_bytes, rate, seconds))
            await writing.delete_ledger(writer.id)
        return {"entries": len(samples), "seconds": seconds, **Latencies.of_nanoseconds(samples).as_record()}

    print_json_line(run(work()))


if __name__ == "__main__":
    typer.run(main)
