"""Costs of very many small ledgers on a bookie: memory, index size, time to start, and time of garbage collection.

    python -m tallybook.bench.loads.many_ledgers --dir out/many --ledgers 1000000

The ledgers, each with one small entry, are added through the ordinary add path of a bookie in this process
(local_bookie.py). Each step runs in a process of its own, so that its memory is measured separately:

1. *fill*: add all ledgers, and stop;
2. *look*: start; one pass of the garbage collector, which lists all ledgers and keeps all;
3. *drop*: start; a pass that drops 99 of 100 ledgers, and another one that compacts the entry logs.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Annotated, Final

import typer

from tallybook.bookie.bookie import Bookie
from tallybook.core.batch import encode_batch
from tallybook.core.limits import MIB
from tallybook.core.settings import BookieSettings, CollectionSettings, JournalSettings, ScrubSettings, StorageSettings
from tallybook.runtime.tuning import keep_freed_memory

from ..equipment.local_bookie import LocalMetadata, add, local_bookie
from ..equipment.proc import memory_bytes, peak_memory_bytes
from ..gates import Figures

ENTRY: Final = b"an entry of a small ledger, as there are many of them"
ADD_CONCURRENCY: Final = 500
KEPT_ONE_IN: Final = 100
"""One in so many ledgers is kept when the others are dropped."""

MAX_LOOKUPS: Final = 1_000_000
"""Lookups per second: the largest value that a bookie accepts."""

COOKIE_NAME: Final = "cookie-in-metadata"

_STATS: Final = (
    "ledgers_in_memory",
    "ledgers_dropped_total",
    "entry_logs_removed_total",
    "compacted_bytes_total",
    "index_compactions_total",
)


def settings_of(directory: Path) -> BookieSettings:
    """Default settings, but garbage collection only on demand and without a rate limit."""
    return BookieSettings(
        bookie_id="many",
        data_directory=str(directory / "bookie"),
        metadata="memory:",
        journal=JournalSettings(),
        storage=StorageSettings(min_free_bytes=0),
        collection=CollectionSettings(
            interval_ms=0,
            deleted_delay_s=0,
            max_deleted_percent=100,
            lookups_per_second=MAX_LOOKUPS,
        ),
        scrub=ScrubSettings(period_s=0),
    )


async def fill(bookie: Bookie, ledgers: int) -> Figures:
    """Add ledgers of one entry each, with limited concurrency."""
    for first in range(0, ledgers, ADD_CONCURRENCY):
        await asyncio.gather(
            *(add(bookie, _batch(ledger_id)) for ledger_id in range(first, min(first + ADD_CONCURRENCY, ledgers)))
        )
    return {}


async def look(bookie: Bookie, _ledgers: int) -> Figures:
    """A garbage collection pass that drops nothing."""
    began = time.monotonic()
    await bookie.collect()
    return {"round_seconds": time.monotonic() - began}


async def drop(bookie: Bookie, _ledgers: int) -> Figures:
    """A garbage collection pass that drops nearly all ledgers, and one more."""
    began = time.monotonic()
    await bookie.collect()
    first_round = time.monotonic() - began
    await bookie.collect()
    return {"round_seconds": first_round, "next_round_seconds": time.monotonic() - began - first_round}


STEPS: Final[dict[str, Callable[[Bookie, int], Awaitable[Figures]]]] = {"fill": fill, "look": look, "drop": drop}


async def run_step(step: str, directory: Path, ledgers: int, settings: BookieSettings | None = None) -> Figures:
    """Run one step in this process."""
    cookie = directory / COOKIE_NAME
    metadata = LocalMetadata(cookies={"many": cookie.read_bytes()} if cookie.exists() else {})
    if step == "drop":
        metadata.deleted = frozenset(each for each in range(ledgers) if each % KEPT_ONE_IN)
    before = memory_bytes_now()
    began = time.monotonic()
    async with local_bookie(settings or settings_of(directory), metadata) as bookie:
        started = time.monotonic() - began
        at_start = memory_bytes_now()
        figures = await STEPS[step](bookie, ledgers)
        await bookie.flush()
        running = time.monotonic() - began - started
        stats = bookie.stats()
        memory = {"start": at_start - before, "now": memory_bytes_now() - before, "peak": _peak_bytes() - before}
    mib = {f"memory_{name}_mib": value / MIB for name, value in memory.items()}
    cookie.write_bytes(metadata.cookies["many"])
    stopped = time.monotonic() - began - started - running
    seconds = {"start_seconds": started, "step_seconds": running, "stop_seconds": stopped}
    sizes = {f"{name}_mib": _size_bytes(directory / "bookie" / name) / MIB for name in ("index", "ledgers")}
    logs = {"entry_logs": len(list((directory / "bookie" / "ledgers").glob("entrylog-*.log")))}
    return {**seconds, **mib, **sizes, **logs, **figures, **{name: stats[name] for name in _STATS}}


def memory_bytes_now() -> int:
    """Physical memory of this process."""
    return memory_bytes("self")


def _peak_bytes() -> int:
    return peak_memory_bytes("self")


def _batch(ledger_id: int) -> bytes:
    return encode_batch(ledger_id, 0, [ENTRY], lac=-1, ledger_length=len(ENTRY), written_at_us=1)


def _size_bytes(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())


def main(
    directory: Annotated[Path, typer.Option("--dir", help="Where the bookie keeps its data.")],
    ledgers: Annotated[int, typer.Option(min=1, help="How many.")] = 1_000_000,
    step: Annotated[str, typer.Option(help="One step alone, in this process.")] = "",
) -> None:
    """Run every step in a process of its own, and print a line of figures for each."""
    directory.mkdir(parents=True, exist_ok=True)
    if step:
        keep_freed_memory()
        print(json.dumps(asyncio.run(run_step(step, directory, ledgers))), flush=True)
        return
    for name in STEPS:
        command = [sys.executable, "-m", __spec__.name, "--dir", str(directory), "--ledgers", str(ledgers)]
        answer = subprocess.run([*command, "--step", name], check=True, stdout=subprocess.PIPE, text=True).stdout
        figures = ", ".join(f"{what} {value:,.2f}" for what, value in json.loads(answer).items())
        print(f"{name}: {figures}", flush=True)


if __name__ == "__main__":
    typer.run(main)
