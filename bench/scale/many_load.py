"""Opens many ledgers or streams in one client, and appends to all of them; prints one line of JSON.

python -m tallybook.bench.scale.many_load ledgers --metadata URI --count 1000 --pid PID --pid PID
python -m tallybook.bench.scale.many_load streams --metadata URI --count 1000 --pid PID --pid PID
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Annotated, Any, Final, TypeVar

import typer
import uvloop

from tallybook.cli.measure.latency import Latencies
from tallybook.cli.options import Metadata
from tallybook.client.client import Client
from tallybook.client.writer.handle import LedgerWriter
from tallybook.core.limits import KIB
from tallybook.runtime.tuning import settle_memory, tune_process
from tallybook.stream import StreamStore

from ..equipment.proc import memory_bytes
from ..equipment.processor_time import processor_seconds
from ..equipment.programs import print_json_line
from ..gates import Figures
from ..loads.spread_appends import AppendTarget, spread_appends

CONCURRENCY: Final = 60
"""Ledgers or streams that are created, opened or closed at a time."""
SAMPLE: Final = 2_000
"""Ledgers that are closed and opened, at most."""
WARM_UP: Final = 20

app = typer.Typer(help=__doc__)

ItemCount = Annotated[int, typer.Option(help="How many.")]
Pids = Annotated[list[int], typer.Option("--pid", help="Process ids of the bookies.")]
Rate = Annotated[float, typer.Option(help="Entries of 1 KiB per second, each to one of them at random.")]
LoadSeconds = Annotated[float, typer.Option(help="How long to append.")]
CreateSeconds = Annotated[float, typer.Option(help="How long to create, at most; then there are fewer.")]

_Item = TypeVar("_Item")
_Made = TypeVar("_Made")


@app.command()
def ledgers(
    metadata: Metadata, count: ItemCount, pid: Pids, rate: Rate = 1_000.0, seconds: LoadSeconds = 5.0,
    create_seconds: CreateSeconds = 300.0,
) -> None:  # fmt: skip
    """Create ledgers, append to them, and close and open some of them again."""

    async def work() -> Figures:
        async with Client(metadata) as client:

            async def create(_: int) -> LedgerWriter:
                return await client.create_ledger()

            await _first_entries(await _each(range(WARM_UP), create))
            memory, began = _Memory(pid), time.monotonic()
            writers = await _each(range(count), create, began + create_seconds)
            figures = {"count": len(writers), "create_us": _us_each(began, writers)}
            figures |= await _appends(writers, memory, rate, seconds)
            sample, began = writers[:SAMPLE], time.monotonic()
            await _each(sample, lambda writer: writer.close())
            figures["close_us"] = _us_each(began, sample)
            began = time.monotonic()
            await _each(sample, lambda writer: client.open_ledger(writer.id))
            figures["open_us"] = _us_each(began, sample)
            for writer in writers[SAMPLE:]:
                writer.abandon()
            return figures

    _print(work())


@app.command()
def streams(
    metadata: Metadata, count: ItemCount, pid: Pids, rate: Rate = 1_000.0, seconds: LoadSeconds = 5.0,
    create_seconds: CreateSeconds = 300.0,
) -> None:  # fmt: skip
    """Create streams with a writer each, and append to them."""

    async def work() -> Figures:
        async with Client(metadata) as client, StreamStore(client) as store:

            async def create(name: str) -> Any:
                await store.create(name)
                return await store.writer(name)

            warm = await _each([f"warm-{number}" for number in range(WARM_UP)], create)
            await _first_entries(warm)
            memory, began = _Memory(pid), time.monotonic()
            names = [f"scale-{number}" for number in range(count)]
            writers = await _each(names, create, began + create_seconds)
            figures = {"count": len(writers), "create_us": _us_each(began, writers)}
            figures |= await _appends(writers, memory, rate, seconds)
            await _each([*warm, *writers], lambda writer: writer.close())
            return figures

    _print(work())


class _Memory:
    """Physical memory of this process and of the bookies, since the start of the measurement."""

    def __init__(self, pids: Sequence[int]) -> None:
        self.pids = pids
        self._client, self._bookies = self._now()

    def kib_each(self, count: int) -> Figures:
        """Growth divided by ``count``; that of a bookie is the mean of all."""
        client, of_bookies = self._now()
        return {
            "client_kib": round((client - self._client) / count / KIB, 2),
            "bookie_kib": round((of_bookies - self._bookies) / count / len(self.pids) / KIB, 2),
        }

    def _now(self) -> tuple[int, int]:
        return memory_bytes(os.getpid()), sum(map(memory_bytes, self.pids))


async def _appends(appenders: Sequence[AppendTarget], memory: _Memory, rate: float, seconds: float) -> Figures:
    """One entry to each, which uses memory; then entries at a steady rate, spread over all at random."""
    await _first_entries(appenders)
    figures = memory.kib_each(len(appenders))
    settle_memory()
    of_client, of_bookies = time.process_time(), processor_seconds(memory.pids)
    found = await spread_appends(appenders, rate, seconds)
    of_client, of_bookies = time.process_time() - of_client, processor_seconds(memory.pids) - of_bookies
    latencies = Latencies.of_nanoseconds(found)
    return {
        **figures,
        "client_us": round(of_client / len(found) * 1e6, 1),
        "bookie_us": round(of_bookies / len(found) * 1e6, 1),
        "p50_ms": round(latencies.p50_ms, 3),
        "p99_ms": round(latencies.p99_ms, 3),
    }


async def _first_entries(appenders: Sequence[AppendTarget]) -> None:
    await _each(appenders, lambda appender: appender.append(b"first"))


async def _each(
    items: Sequence[_Item], call: Callable[[_Item], Awaitable[_Made]], deadline: float | None = None
) -> list[_Made]:
    """Call for each item, some at a time; after ``deadline`` for no further ones."""
    found: list[_Made] = []
    while len(found) < len(items) and (deadline is None or time.monotonic() < deadline):
        found += await asyncio.gather(*map(call, items[len(found) : len(found) + CONCURRENCY]))
    return found


def _us_each(began: float, items: Sequence[object]) -> float:
    return round((time.monotonic() - began) / len(items) * 1e6, 1)


def _print(work: Coroutine[Any, Any, Figures]) -> None:
    tune_process()
    settle_memory()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        print_json_line(runner.run(work))


if __name__ == "__main__":
    app()
