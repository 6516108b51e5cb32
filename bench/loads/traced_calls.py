"""Appends or reads, of which some are traced from the caller on; ``bench/profile/waterfall.py`` evaluates their spans.

    python -m tallybook.bench.loads.traced_calls open|alone|cold|warm --metadata URI --traces URL --seconds S

A traced call has a span of its own around the spans of the client, so the ways from and to the caller are seen, too.
"""

from __future__ import annotations

import asyncio
import time
from enum import Enum
from pathlib import Path
from typing import Annotated, Final

import typer

from tallybook.cli.cluster_client import cluster
from tallybook.cli.measure.adds import MIN_PAUSE_NS
from tallybook.cli.measure.pacing import Pacer
from tallybook.cli.measure.reads import ReadPlan, write_ledger
from tallybook.cli.options import Metadata
from tallybook.cli.running import run
from tallybook.client.background import client_tasks
from tallybook.client.client import Client
from tallybook.client.writer.appends import PendingAppend
from tallybook.client.writer.handle import LedgerWriter
from tallybook.core.limits import KIB
from tallybook.core.settings import ClientSettings
from tallybook.runtime.rng import SeededRng
from tallybook.runtime.tracing.opening import open_tracer
from tallybook.runtime.tracing.port import Span, Tracer, begin, under

from .steady_reads import drop_from_page_cache

CALLER: Final = "caller"
"""Name of the span around a traced call."""
NO_OTHERS: Final = ",share=0.000000001"
"""After the endpoint, in the option of clients and bookies: traces begin only here."""
LEDGERS: Final = 4
TRACED_PER_S: Final = 100
"""More spans would disturb the load that they describe."""
ALONE_EVERY: Final = 10
"""One of so many single calls is traced."""
WARM_ENTRIES: Final = 32
WARM_READS: Final = 10


class Calls(Enum):
    """Kinds of calls."""

    OPEN = "open"
    ALONE = "alone"
    COLD = "cold"
    WARM = "warm"


async def _open_loop(client: Client, caller: Tracer, rate: float, seconds: float) -> None:
    writers = [await client.create_ledger() for _ in range(LEDGERS)]
    payload, every, tasks = SeededRng(1).token(KIB), max(1, int(rate / TRACED_PER_S)), client_tasks("traced calls")
    sent, count, start, gap = 0, int(seconds * rate), time.monotonic_ns(), 1e9 / rate
    traced = []
    with Pacer() as pacer:
        while sent < count:
            now = time.monotonic_ns()
            for number in range(sent, min(count, int((now - start) / gap) + 1)):
                sent, writer = number + 1, writers[number % LEDGERS]
                span = None if number % every else caller.root(CALLER)
                if span is None:
                    writer.append_nowait(payload)
                else:
                    with under(span):
                        pending = writer.append_nowait(payload)
                    traced.append(tasks.spawn(_end_with(span, pending), name=f"entry {number}"))
            await pacer.until(max(int(start + sent * gap), now + MIN_PAUSE_NS))
    await asyncio.gather(*traced)
    await tasks.close()
    await _remove(client, writers)


async def _end_with(span: Span, pending: PendingAppend) -> None:
    await pending
    span.end()


async def _alone(client: Client, caller: Tracer, seconds: float) -> None:
    writer, payload = await client.create_ledger(), SeededRng(1).token(KIB)
    end, number = time.monotonic() + seconds, 0
    while time.monotonic() < end:
        if number % ALONE_EVERY:
            await writer.append(payload)
        else:
            with begin(caller, CALLER):
                await writer.append(payload)
        number += 1
    await _remove(client, [writer])


async def _remove(client: Client, writers: list[LedgerWriter]) -> None:
    for writer in writers:
        await writer.close()
        await client.delete_ledger(writer.id)


async def _reads(client: Client, caller: Tracer, plan: ReadPlan, seconds: float, cold: Path | None) -> None:
    """Read single entries: any, with the page cache dropped before each traced one, or few again and again."""
    ledger_id = await write_ledger(client, plan)
    await asyncio.sleep(plan.flush_seconds)
    reader, rng = await client.open_ledger(ledger_id), SeededRng(2)
    ids = range(plan.entries) if cold else [rng.randint(0, plan.entries - 1) for _ in range(WARM_ENTRIES)]
    for entry_id in [] if cold else [*ids] * WARM_READS:
        await reader.read_entry(entry_id)
    end, number = time.monotonic() + seconds, 0
    while time.monotonic() < end:
        entry_id = ids[rng.randint(0, len(ids) - 1)]
        if number % ALONE_EVERY:
            await reader.read_entry(entry_id)
        else:
            if cold:
                drop_from_page_cache(cold)
            with begin(caller, CALLER):
                await reader.read_entry(entry_id)
        number += 1
    await client.delete_ledger(ledger_id)


def main(
    calls: Annotated[Calls, typer.Argument(help="Which calls.")],
    metadata: Metadata,
    traces: Annotated[str, typer.Option(help="Endpoint for spans, http://HOST:PORT.")],
    seconds: Annotated[float, typer.Option(help="How long.")],
    rate: Annotated[float, typer.Option(help="Appends per second of the open loop.")] = 12_000.0,
    entries: Annotated[int, typer.Option(help="Entries of the ledger that is read.")] = 400_000,
    flush_seconds: Annotated[float, typer.Option(help="Pause before it is read.")] = 15.0,
    directory: Annotated[Path, typer.Option(help="Directory of the bookies, for cold reads.")] = Path("out"),
) -> None:
    """Call for some time; spans go to the endpoint."""
    plan = ReadPlan(KIB, entries, flush_seconds)

    async def work() -> None:
        caller = open_tracer(f"{traces},share=1", "caller")
        try:
            async with cluster(metadata, ClientSettings(traces=traces + NO_OTHERS)) as client:
                if calls is Calls.OPEN:
                    await _open_loop(client, caller, rate, seconds)
                elif calls is Calls.ALONE:
                    await _alone(client, caller, seconds)
                else:
                    await _reads(client, caller, plan, seconds, directory if calls is Calls.COLD else None)
        finally:
            await caller.close()

    run(work())


if __name__ == "__main__":
    typer.run(main)
