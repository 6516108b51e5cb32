"""``python -m tallybook.bench.archive``: the way of ledgers into the archive and out of it, and the gates on it."""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

import typer

from tallybook.bench.gates import Figures
from tallybook.bench.programs import Server, print_json_line, run_json_lines
from tallybook.client.client import Client
from tallybook.core.config import OffloadSettings
from tallybook.core.limits import MIB
from tallybook.metadata.model import LedgerMetadata
from tallybook.offload.offloader import Offloader
from tallybook.offload.process import Archive, opened
from tallybook.offload.service import OffloadService
from tallybook.runtime.rng import SeededRng
from tallybook.runtime.tuning import tune_process

from .offload_load import measure_offload, write_ledger
from .read_load import measure_reads

START_SECONDS: Final = 120.0
SPARK_SECONDS: Final = 1_800.0


@dataclass(frozen=True, slots=True)
class Gate:
    """A bound on one figure."""

    figure: str
    bound: float
    at_least: bool
    title: str

    def line(self, figures: Figures) -> str:
        """The verdict in words; empty where nothing was measured."""
        value = figures.get(self.figure)
        if value is None:
            return ""
        met = value >= self.bound if self.at_least else value <= self.bound
        sign = "≥" if self.at_least else "≤"
        return f"{'met    ' if met else 'NOT MET'}  {value:>10g}  {sign} {self.bound:<8g}  {self.title}"


GATES: Final = (
    Gate("offload_share", 0.7, at_least=True, title="offload, of the slower of a bookie read and an object write"),
    Gate("memory_mib", 200, at_least=False, title="MiB of memory that offloading takes, whatever the ledger's size"),
    Gate("gets_per_read", 1.1, at_least=False, title="requests for one random entry"),
    Gate("largest_get_kib", 128, at_least=False, title="KiB of the largest of them"),
    Gate("small_objects", 20, at_least=False, title="objects of 10,000 ledgers of 10 KB"),
    *(
        Gate(
            f"{size}_{question}_read_ledgers_ratio", 0.9, at_least=True, title=f"read_ledgers, {question}, {size} table"
        )
        for size in ("small", "large")
        for question in ("count", "payload", "range")
    ),
    Gate("small_count_format_ratio", 0.4, at_least=True, title="format('tallybook'), count, small table"),
    Gate("small_payload_format_ratio", 0.4, at_least=True, title="format('tallybook'), payload, small table"),
    Gate("small_range_format_ratio", 0.4, at_least=True, title="format('tallybook'), range, small table"),
    Gate("large_payload_format_ratio", 0.8, at_least=True, title="format('tallybook'), payload, large table"),
)


def main(
    directory: Annotated[Path, typer.Option("--dir", help="Where cluster and archive lie: on a real disk.")] = Path(
        "out/bench"
    ),
    large_mib: Annotated[int, typer.Option(help="Payload of the large ledger.")] = 1024,
    small_mib: Annotated[int, typer.Option(help="Payload of each of three smaller ones.")] = 100,
    entry_bytes: Annotated[int, typer.Option(help="Size of an entry.")] = 1024,
    small_ledgers: Annotated[int, typer.Option(help="How many ledgers of 10 KB; 0 for none.")] = 10_000,
    rounds: Annotated[int, typer.Option(help="How often Spark is asked each question; 0: not at all.")] = 5,
) -> None:
    """Measure, print the figures in one line of JSON, and judge the gates: the exit code is 0 if all are met."""
    tune_process()
    directory.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=directory) as scratch, _cluster(Path(scratch)) as metadata:
        figures, ledgers = asyncio.run(
            _offloaded(metadata, Path(scratch), large_mib * MIB, small_mib * MIB, entry_bytes, small_ledgers)
        )
        for name, ledger in ledgers.items() if rounds else ():
            found = _spark(metadata, _archive(Path(scratch)), ledger.ledger_id, rounds)
            figures |= {f"{name}_{figure}": value for figure, value in found.items()}
    print_json_line(figures)
    lines = [line for gate in GATES if (line := gate.line(figures))]
    print("\n".join(lines))
    raise typer.Exit(0 if all(line.startswith("met") for line in lines) else 1)


@contextmanager
def _cluster(scratch: Path) -> Iterator[str]:
    """Three bookies; gives the URI of their metadata."""
    command = [sys.executable, "-P", "-m", "tallybook.cli", "up", "--data", str(scratch / "data"), "--no-offload"]
    server = Server([*command, "--json"], scratch / "up.json")
    try:
        yield server.ready(START_SECONDS)["ready"]
    finally:
        server.stop()


def _archive(scratch: Path) -> Path:
    return scratch.resolve() / "archive"


async def _offloaded(
    metadata: str, scratch: Path, large_bytes: int, small_bytes: int, entry_bytes: int, small_ledgers: int
) -> tuple[Figures, dict[str, LedgerMetadata]]:
    """Write ledgers and archive them; the figures, and the ledgers for Spark."""
    settings = OffloadSettings(max_set_wait_s=0)
    _archive(scratch).mkdir()
    async with Client(metadata) as client, opened(metadata, f"file://{_archive(scratch)}", settle=True) as archive:
        mover = archive.mover(client, settings)
        small = [await write_ledger(client, small_bytes, entry_bytes) for _ in range(3)]
        figures = await measure_offload(client, mover, archive.store, small, os.getpid())
        large = await write_ledger(client, large_bytes, entry_bytes)
        # The slope: what ten times as much takes besides.
        of_large = await measure_offload(client, mover, archive.store, [large], os.getpid())
        figures |= {f"large_{name}": value for name, value in of_large.items()}
        figures["memory_mib"] = round(figures["memory_mib"] + of_large["memory_mib"], 1)
        known = {
            "small": await client.ledger_metadata(small[0].ledger_id),
            "large": await client.ledger_metadata(large.ledger_id),
        }
        figures |= await measure_reads(archive.store, archive.workers, archive.tasks, known["large"], 1_000)
        if small_ledgers:
            figures["small_objects"] = await _small(client, archive.offloader(client, settings), archive, small_ledgers)
    return figures, known


async def _small(client: Client, offloader: Offloader, archive: Archive, count: int) -> float:
    """The objects that so many ledgers of 10 KB end up in."""
    block = SeededRng(4).token(10_000)
    ledger_ids = []
    for _ in range(count):
        async with await client.create_ledger() as ledger:
            await ledger.append_many([block[at : at + 1_000] for at in range(0, len(block), 1_000)])
        ledger_ids.append(ledger.id)
    await OffloadService(archive, offloader, OffloadSettings(max_set_wait_s=0)).work_off()
    found = set()
    for ledger_id in ledger_ids:
        receipt = (await client.ledger_metadata(ledger_id)).archived
        found.add(receipt.key if receipt else f"ledger {ledger_id} in none")
    return float(len(found))


def _spark(metadata: str, archive: Path, ledger_id: int, rounds: int) -> Figures:
    command = [sys.executable, "-P", "-m", "tallybook.bench.archive.spark_load", "--metadata", metadata]
    command += ["--archive", str(archive), "--ledger", str(ledger_id), "--rounds", str(rounds)]
    [figures] = run_json_lines(command, timeout_seconds=SPARK_SECONDS)
    return figures


if __name__ == "__main__":
    typer.run(main)
