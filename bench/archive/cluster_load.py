"""Single loads on a cluster and its archive, each a program that prints one line of JSON.

python -m tallybook.bench.archive.cluster_load write --metadata URI --mib 100 --count 3
python -m tallybook.bench.archive.cluster_load entries --metadata URI --archive DIRECTORY --ledger N
python -m tallybook.bench.archive.cluster_load merge --metadata URI --archive DIRECTORY --count 10000
python -m tallybook.bench.archive.cluster_load read --metadata URI --ledger N
python -m tallybook.bench.archive.cluster_load adds --metadata URI --seconds 6
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Final

import typer

from tallybook.cli.measure.adds import AddPlan, measure_adds
from tallybook.cli.measure.latency import median
from tallybook.cli.options import Metadata
from tallybook.client.client import Client
from tallybook.core.limits import MIB
from tallybook.core.settings import OffloadSettings
from tallybook.metadata.ledger.model import LedgerMetadata
from tallybook.offload.open_archive import open_archive
from tallybook.offload.service import OffloadService
from tallybook.runtime.rng import SeededRng
from tallybook.runtime.tuning import tune_process

from ..equipment.programs import print_json_line
from ..gates import Figures
from .offload_turns import read_seconds
from .read_load import measure_reads

ENTRIES_PER_S: Final = 5_000.0
"""Rate of 1 KiB entries for latency measurements, far below the peak of the cluster."""
SMALL_LEDGER_BYTES: Final = 10_000
_SMALL_ENTRY_BYTES: Final = 1_000
_APPEND_BYTES: Final = 4 * MIB
_WRITERS: Final = 16
_ADD_LEDGERS: Final = 10
_ADD_WINDOW: Final = 10_000

app = typer.Typer(help=__doc__)

ArchiveDirectory = Annotated[Path, typer.Option(help="Directory of the archive.")]


@app.command()
def write(
    metadata: Metadata,
    mib: Annotated[int, typer.Option(help="Payload of each ledger.")],
    count: Annotated[int, typer.Option(help="How many ledgers.")] = 1,
    entry_bytes: Annotated[int, typer.Option(help="Size of an entry.")] = 1024,
) -> None:
    """Write ledgers of random bytes, close them, and print their ids."""

    async def work() -> dict[str, list[int]]:
        async with Client(metadata) as client:
            return {"ledgers": [await written(client, mib * MIB, entry_bytes) for _ in range(count)]}

    tune_process()
    print_json_line(asyncio.run(work()))


@app.command()
def read(
    metadata: Metadata, ledger: Annotated[list[int], typer.Option(help="A closed ledger; several times for several.")]
) -> None:
    """Read ledgers from their bookies, and print the rate in bytes a second."""

    async def work() -> Figures:
        async with Client(metadata) as client:
            known = [await client.ledger_metadata(ledger_id) for ledger_id in ledger]
            return {"bytes_per_s": median([one.length / await read_seconds(client, one) for one in known])}

    tune_process()
    print_json_line(asyncio.run(work()))


@app.command()
def entries(
    metadata: Metadata,
    archive: ArchiveDirectory,
    ledger: Annotated[int, typer.Option(help="An archived ledger.")],
    count: Annotated[int, typer.Option(help="How many entries.")] = 1_000,
) -> None:
    """Read random entries of an archived ledger, and print requests, bytes and times."""

    async def work() -> Figures:
        async with Client(metadata) as client, open_archive(client, f"file://{archive}") as place:
            known = await client.ledger_metadata(ledger)
            return await measure_reads(place.store, place.workers, place.tasks, known, count)

    print_json_line(asyncio.run(work()))


@app.command()
def merge(
    metadata: Metadata,
    archive: ArchiveDirectory,
    count: Annotated[int, typer.Option(help="How many ledgers of 10 KB.")] = 10_000,
) -> None:
    """Write many small ledgers and archive them; print the number of objects that contain them."""

    async def work() -> Figures:
        settings = OffloadSettings(max_set_wait_s=0)
        async with Client(metadata) as client, open_archive(client, f"file://{archive}") as place:
            ledger_ids = await _small_ledgers(client, count)
            await OffloadService(place, place.offloader(client, settings), settings).work_off()
            return {"small_ledgers": float(count), "small_objects": await _objects_of(client, ledger_ids)}

    tune_process()
    print_json_line(asyncio.run(work()))


@app.command()
def adds(metadata: Metadata, seconds: Annotated[float, typer.Option(help="Measured time.")] = 6.0) -> None:
    """Append at a steady rate, and print the 99th percentile of the latency."""

    async def work() -> Figures:
        plan = AddPlan(1024, _ADD_LEDGERS, _ADD_WINDOW, seconds, rate=ENTRIES_PER_S, warm_up_seconds=1.0)
        async with Client(metadata) as client:
            result = await measure_adds(client, plan)
        if result.failure is not None:
            raise result.failure
        return {"p99_ms": result.latencies.p99_ms}

    tune_process()
    print_json_line(asyncio.run(work()))


async def written(client: Client, payload_bytes: int, entry_bytes: int) -> int:
    """A closed ledger of random bytes."""
    block = SeededRng(1).token(_APPEND_BYTES + entry_bytes)
    async with await client.create_ledger() as ledger:
        for written in range(0, payload_bytes, _APPEND_BYTES):
            # From a different offset each time, so that no two entries in a compressor's window are equal.
            source = block[written // _APPEND_BYTES % entry_bytes :]
            size = min(_APPEND_BYTES, payload_bytes - written)
            await ledger.append_many([source[at : at + entry_bytes] for at in range(0, size, entry_bytes)])
    return ledger.id


async def _small_ledgers(client: Client, count: int) -> list[int]:
    block = SeededRng(4).token(SMALL_LEDGER_BYTES)
    payloads = [block[at : at + _SMALL_ENTRY_BYTES] for at in range(0, len(block), _SMALL_ENTRY_BYTES)]

    async def some(share: int) -> list[int]:
        ledger_ids = []
        for _ in range(share):
            async with await client.create_ledger() as ledger:
                await ledger.append_many(payloads)
            ledger_ids.append(ledger.id)
        return ledger_ids

    shares = [count // _WRITERS + (number < count % _WRITERS) for number in range(_WRITERS)]
    return [ledger_id for found in await asyncio.gather(*map(some, shares)) for ledger_id in found]


async def _objects_of(client: Client, ledger_ids: Sequence[int]) -> float:
    """Number of objects that contain the ledgers; a ledger in no object counts as one."""
    found = set()
    for ledger_id in ledger_ids:
        known: LedgerMetadata = await client.ledger_metadata(ledger_id)
        found.add(known.archived.key if known.archived else f"ledger {ledger_id} in none")
    return float(len(found))


if __name__ == "__main__":
    app()
