"""Cost of archive encryption: archives and reads ledgers, alternating without and with keys.

python -m tallybook.bench.archive.sealed_load --scratch DIRECTORY --mib 200 --rounds 5

It starts three bookies of its own. Payloads are incompressible. A ratio is the median over all turns of encrypted to
plain. Processor time is that of this process, which reads, packs, encrypts and checks; on a machine shared with other
processes it is more reliable than the rates.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import aclosing
from pathlib import Path
from typing import Annotated

import typer

from tallybook.cli.measure.latency import median
from tallybook.client.client import Client
from tallybook.core.limits import MIB
from tallybook.core.settings import ClientSettings, OffloadSettings
from tallybook.offload.open_archive import open_archive
from tallybook.offload.policy import planned_of
from tallybook.runtime.security.archive_keys import add_key
from tallybook.runtime.tuning import tune_process

from ..equipment.programs import Server, module, print_json_line
from ..gates import Figures
from .cluster_load import written

START_SECONDS = 60.0


def main(
    scratch: Annotated[Path, typer.Option(help="An empty directory.")],
    mib: Annotated[int, typer.Option(help="Payload of each ledger.")] = 200,
    rounds: Annotated[int, typer.Option(help="Turns of each kind.")] = 5,
) -> None:
    """Archive and read ledgers, alternating plain and encrypted, and print the figures."""
    tune_process()
    (scratch / "archive").mkdir(parents=True)
    keys = scratch / "keys.json"
    add_key(keys)
    command = [*module("tallybook.cli"), "up", "--data", str(scratch / "data"), "--no-offload", "--no-gateway"]
    server = Server([*command, "--json"], scratch / "up.json")
    try:
        metadata = server.ready(START_SECONDS)["ready"]
        print_json_line(asyncio.run(_figures(metadata, f"file://{scratch}/archive", str(keys), mib, rounds)))
    finally:
        server.stop()


async def _figures(metadata: str, archive: str, keys: str, mib: int, rounds: int) -> Figures:
    async with Client(metadata) as client, open_archive(client, archive, record=True):
        pass
    found: dict[str, list[float]] = {}
    for number in range(rounds + 1):
        for name, with_keys in (("plain", ""), ("sealed", keys)):
            figures = await _turn(metadata, with_keys, mib if number else 1)
            # The first turn warms up code and connections.
            for figure, value in figures.items() if number else ():
                found.setdefault(f"{name}_{figure}", []).append(value)
    reported = {name: round(median(each), 2) for name, each in found.items()}
    for figure in ("offload_mb_per_s", "read_mb_per_s", "offload_cpu_s_per_gb", "read_cpu_s_per_gb"):
        pairs = zip(found[f"sealed_{figure}"], found[f"plain_{figure}"], strict=True)
        reported[f"{figure}_ratio"] = round(median([sealed / plain for sealed, plain in pairs]), 3)
    return reported


async def _turn(metadata: str, keys: str, mib: int) -> Figures:
    """Write a ledger, archive it, and read it from the archive; returns the times of the last two."""
    async with (
        Client(metadata, ClientSettings(archive_keys=keys)) as client,
        open_archive(client, None, archive_keys=keys) as place,
    ):
        ledger_id = await written(client, mib * MIB, 1024)
        mover = place.mover(client, OffloadSettings(max_set_wait_s=0))
        ledger = await client.ledger_metadata(ledger_id)
        began = _Times()
        await mover.move(planned_of([ledger]))
        moved = _Times()
        reader = client.copying_reader(await client.ledger_metadata(ledger_id), archive_first=True)
        async with aclosing(reader.read_sealed(0, ledger.last_entry_id)) as batches:
            async for _ in batches:
                pass
        read = _Times()
        return {
            "offload_mb_per_s": ledger.length / 1e6 / (moved.wall - began.wall),
            "offload_cpu_s_per_gb": (moved.cpu - began.cpu) / ledger.length * 1e9,
            "read_mb_per_s": ledger.length / 1e6 / (read.wall - moved.wall),
            "read_cpu_s_per_gb": (read.cpu - moved.cpu) / ledger.length * 1e9,
        }


class _Times:
    """Wall-clock and processor time at a moment."""

    def __init__(self) -> None:
        self.wall, self.cpu = time.monotonic(), time.process_time()


if __name__ == "__main__":
    typer.run(main)
