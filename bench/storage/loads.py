"""Single loads on a cluster, programs that print their figures as lines of JSON.

python -m tallybook.bench.storage.loads fill --metadata URI --mib 5120 --ledgers FILE
python -m tallybook.bench.storage.loads delete --metadata URI --ledgers FILE --percent 90
python -m tallybook.bench.storage.loads catch-up --metadata URI --ledgers FILE --bytes-per-second 0 --seconds 10
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Coroutine, Sequence
from contextlib import aclosing
from itertools import cycle
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from tallybook.cli.options import Metadata
from tallybook.client.background import client_tasks
from tallybook.client.client import Client
from tallybook.client.writer.handle import LedgerWriter
from tallybook.core.limits import KIB, MIB
from tallybook.runtime.rng import SeededRng
from tallybook.runtime.tuning import settle_memory, tune_process

from ..equipment.programs import print_json_line
from ..gates import Figures
from .mixture import WrittenLedger, sizes, some_of

MARK: Final = b"tallybook storage benchmark entry"
"""First bytes of every payload of ``fill``, to find payloads in an entry log."""

FILL_WRITERS: Final = 16
"""Ledgers written concurrently, so that their entries are interleaved in entry logs."""

READERS: Final = 2
_APPEND_BYTES: Final = MIB
_DELETE_CONCURRENCY: Final = 8
_TELL_SECONDS: Final = 0.5

app = typer.Typer(help=__doc__)

Ledgers = Annotated[Path, typer.Option(help="File with the ledgers that were written.")]


@app.command()
def fill(
    metadata: Metadata,
    mib: Annotated[int, typer.Option(help="Payload of all of them.")],
    ledgers: Ledgers,
    seed: Annotated[int, typer.Option(help="Decides on their sizes.")] = 1,
    copies: Annotated[int, typer.Option(help="E and Qw.")] = 3,
    count: Annotated[int, typer.Option(help="So many of one size; 0: of mixed sizes.")] = 0,
    beside: Annotated[int, typer.Option(help="How many are written at a time.")] = FILL_WRITERS,
) -> None:
    """Write ledgers concurrently, close them, and write their list to a file."""

    async def work() -> Figures:
        alike = [(mib * MIB // count // KIB * KIB, KIB)] * count if count else []
        wanted, block = iter(alike or sizes(seed, mib * MIB)), SeededRng(seed).token(2 * _APPEND_BYTES)
        made: list[WrittenLedger] = []

        async def write() -> None:
            for size, entry_bytes in wanted:
                writer = await client.create_ledger(ensemble=copies, write_quorum=copies, ack_quorum=copies // 2 + 1)
                async with writer as ledger:
                    await _append(ledger, size, entry_bytes, block)
                made.append(WrittenLedger(ledger.id, size))

        async with Client(metadata) as client:
            await asyncio.gather(*(write() for _ in range(beside)))
        ledgers.write_text(json.dumps(made))
        return {"ledgers": len(made), "payload_bytes": sum(each.size for each in made)}

    _print(work())


async def _append(ledger: LedgerWriter, size: int, entry_bytes: int, block: bytes) -> None:
    entries_per_append = max(1, _APPEND_BYTES // entry_bytes)
    for number in range(0, size // entry_bytes, entries_per_append):
        # From a different offset each time, so that no two entries are equal.
        source = block[(number + ledger.id) % 4096 :]
        count = min(entries_per_append, size // entry_bytes - number)
        rest = entry_bytes - len(MARK)
        await ledger.append_many([MARK + source[at * rest : (at + 1) * rest] for at in range(count)])


@app.command()
def delete(
    metadata: Metadata,
    ledgers: Ledgers,
    percent: Annotated[int, typer.Option(help="How many of them, drawn at random.")] = 90,
) -> None:
    """Delete ledgers, and print their size."""

    async def work() -> Figures:
        chosen = some_of([WrittenLedger(*each) for each in json.loads(ledgers.read_text())], percent)
        async with Client(metadata) as client:
            left = iter(chosen)

            async def some() -> None:
                for each in left:
                    await client.delete_ledger(each.ledger_id)

            await asyncio.gather(*(some() for _ in range(_DELETE_CONCURRENCY)))
        return {"deleted_ledgers": len(chosen), "deleted_bytes": sum(each.size for each in chosen)}

    _print(work())


@app.command()
def catch_up(
    metadata: Metadata,
    ledgers: Ledgers,
    seconds: Annotated[float, typer.Option(help="How long, at most.")],
    bytes_per_second: Annotated[float, typer.Option(help="At most; 0 is as fast as goes.")] = 0.0,
    readers: Annotated[int, typer.Option(help="How many read at a time.")] = READERS,
) -> None:
    """Read whole ledgers one after the other, and report the progress periodically."""

    async def work() -> Figures:
        async with Client(metadata) as client:
            known = [WrittenLedger(*each) for each in json.loads(ledgers.read_text())]
            return await _CatchUp(client, known, bytes_per_second).run(seconds, readers)

    _print(work())


class _CatchUp:
    """Catch-up readers with a common rate limit."""

    def __init__(self, client: Client, known: Sequence[WrittenLedger], bytes_per_second: float) -> None:
        self._client = client
        self._next = cycle(known)
        self._rate = bytes_per_second
        self._bytes = 0
        self._began = self._reported = time.monotonic()

    async def run(self, seconds: float, count: int) -> Figures:
        tasks = client_tasks("catch-up")
        readers = [tasks.spawn(self._read(), name=f"reader-{number}") for number in range(count)]
        try:
            async with asyncio.timeout(seconds):
                await asyncio.gather(*readers)
        except TimeoutError:
            # The end of the measured time: readers never end by themselves.
            await tasks.close()
        return self._figures()

    async def _read(self) -> None:
        for ledger in self._next:
            reader = await self._client.open_ledger(ledger.ledger_id)
            async with aclosing(reader.read_batches(0, reader.last_add_confirmed)) as batches:
                async for batch in batches:
                    self._bytes += sum(len(entry.payload) for entry in batch)
                    await self._keep_to_the_rate()

    async def _keep_to_the_rate(self) -> None:
        now = time.monotonic()
        if now - self._reported >= _TELL_SECONDS:
            self._reported = now
            print_json_line(self._figures())
        if self._rate:
            await asyncio.sleep(self._began + self._bytes / self._rate - now)

    def _figures(self) -> Figures:
        return {"bytes": self._bytes, "seconds": time.monotonic() - self._began}


def _print(work: Coroutine[Any, Any, Figures]) -> None:
    tune_process()
    settle_memory()
    print_json_line(asyncio.run(work))


if __name__ == "__main__":
    app()
