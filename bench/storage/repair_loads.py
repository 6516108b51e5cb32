"""Loads during a repair, programs that print their figures as lines of JSON.

python -m tallybook.bench.storage.repair_loads reads --metadata URI --ledgers FILE --samples FILE
python -m tallybook.bench.storage.repair_loads check --metadata URI
python -m tallybook.bench.storage.repair_loads until-unnamed --metadata URI --ledgers FILE --bookie ID --seconds 600
"""

from __future__ import annotations

import asyncio
import json
import signal
import time
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Final

import typer

from tallybook.cli.measure.adds import TimedAdds
from tallybook.cli.measure.pacing import Pacer
from tallybook.cli.options import Metadata
from tallybook.client.background import client_tasks
from tallybook.client.client import Client
from tallybook.core.errors import BookieUnavailable, MetadataUnavailable
from tallybook.repair.ledger_walk import WalkFindings, all_ledgers
from tallybook.repair.status.check import CopyCheck
from tallybook.runtime.rng import SeededRng
from tallybook.runtime.tuning import settle_memory, tune_process

from ..equipment.programs import print_json_line
from ..gates import Figures
from ..loads.windows import save
from .loads import Ledgers
from .mixture import WrittenLedger

READS_PER_S: Final = 100.0
OPEN_LEDGERS: Final = 200
POLL_SECONDS: Final = 0.05
_NS_PER_S: Final = 1_000_000_000

app = typer.Typer(help=__doc__)


@app.command()
def reads(
    metadata: Metadata,
    ledgers: Ledgers,
    samples: Annotated[Path, typer.Option(help="Where the latency of every read goes in the end.")],
) -> None:
    """Read entries at random, at a steady rate, until SIGTERM."""

    async def work() -> Figures:
        over = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, over.set)
        async with Client(metadata) as client:
            found = await _read_until(client, _known(ledgers), over)
        save(found, samples)
        return {"reads": len(found.planned_ns)}

    tune_process()
    settle_memory()
    print_json_line(asyncio.run(work()))


@app.command()
def check(metadata: Metadata) -> None:
    """Read every copy of every ledger completely, and count the ledgers that lack one."""

    async def work() -> Figures:
        async with Client(metadata) as client:
            copies, findings = CopyCheck(client.world.store, client.world.connections, read=True), WalkFindings()
            lacking = [
                each.ledger_id
                async for each in copies.check_all(all_ledgers(client.world.store, findings))
                if each.lacks
            ]
        if not findings.complete or findings.unreadable:
            raise MetadataUnavailable("the listing of ledgers is incomplete, or metadata are unreadable")
        return {"ledgers": copies.totals.ledgers, "lacking": len(lacking), "read_bytes": copies.totals.read_bytes}

    print_json_line(asyncio.run(work()))


@app.command()
def until_unnamed(
    metadata: Metadata,
    ledgers: Ledgers,
    bookie: Annotated[str, typer.Option(help="The bookie that is gone.")],
    seconds: Annotated[float, typer.Option(help="How long to wait, at most.")],
) -> None:
    """Print the number of ledgers that name a bookie, wait until none does, and print the time."""

    async def work() -> Figures:
        async with Client(metadata) as client, asyncio.timeout(seconds):
            await _until_unnamed(client, _known(ledgers), bookie)
        return {"ended_ns": time.monotonic_ns()}

    try:
        print_json_line(asyncio.run(work()))
    except TimeoutError as error:
        raise BookieUnavailable(f"ledgers still name {bookie} after {seconds:.0f} s") from error


async def _read_until(client: Client, known: Sequence[WrittenLedger], over: asyncio.Event) -> TimedAdds:
    rng, found = SeededRng(1), TimedAdds(array("q"), array("q"))
    chosen = sorted(known, key=lambda _: rng.random())[:OPEN_LEDGERS]
    readers = [await client.open_ledger(each.ledger_id) for each in chosen]
    tasks = client_tasks("reads")
    begun: list[asyncio.Task[None]] = []

    async def one(due_ns: int) -> None:
        reader = readers[rng.randint(0, len(readers) - 1)]
        await reader.read_entry(rng.randint(0, reader.last_add_confirmed))
        found.planned_ns.append(due_ns)
        found.latencies_ns.append(time.monotonic_ns() - due_ns)

    with Pacer() as pacer:
        due_ns = time.monotonic_ns()
        print_json_line({"began_ns": due_ns})
        while not over.is_set():
            due_ns += round(_NS_PER_S / READS_PER_S)
            await pacer.until(due_ns)
            begun.append(tasks.spawn(one(due_ns), name="read"))
    try:
        await asyncio.gather(*begun)
    finally:
        await tasks.close()
    return found


async def _until_unnamed(client: Client, known: Sequence[WrittenLedger], bookie: str) -> None:
    """Wait until no ledger names ``bookie``, with few lookups, so as not to disturb the measurement."""
    naming = [each for each in known if await _names(client, each, bookie)]
    print_json_line({"ledgers": len(naming)})
    for each in naming:
        # A change is final, so each ledger is waited for once.
        while True:
            if not await _names(client, each, bookie):
                break
            await asyncio.sleep(POLL_SECONDS)


async def _names(client: Client, ledger: WrittenLedger, bookie: str) -> bool:
    found = await client.ledger_metadata(ledger.ledger_id)
    return any(bookie in fragment.bookies for fragment in found.fragments)


def _known(path: Path) -> list[WrittenLedger]:
    return [WrittenLedger(*each) for each in json.loads(path.read_text())]


if __name__ == "__main__":
    app()
