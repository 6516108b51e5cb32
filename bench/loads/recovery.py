"""Measures the recovery of a ledger whose writer died.

    python -m tallybook.bench.loads.recovery write --metadata URI --entries N    writes forever; reports N entries
    python -m tallybook.bench.loads.recovery recover LEDGER --metadata URI       recovers, and prints the figures

The writer is killed from outside during its appends. Recovery starts after the last add confirmed that bookies know, so
it reads only the *tail* after that, independent of the length of the ledger. The tail is read once more afterwards, to
separate the time of reading from the rest.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from typing import Annotated, Final

import typer

from tallybook.cli.options import Metadata
from tallybook.client.client import Client
from tallybook.client.writer.appends import AppendGroup
from tallybook.core.errors import InvalidArgument
from tallybook.runtime.rng import SeededRng

from ..equipment.programs import print_json_line
from ..gates import Figures

WINDOW: Final = 5000
"""Unconfirmed entries of the writer."""

_BURST: Final = 64
_MS_PER_S: Final = 1000

app = typer.Typer()


async def write_for_ever(client: Client, entries: int, entry_bytes: int, tell: Callable[[int, int], None]) -> None:
    """Append to a new ledger forever.

    Args:
        tell: called once with the ledger id and the number of confirmed entries, when it reaches ``entries``.

    Raises:
        InvalidArgument: ``entries`` is 0.
        TallybookError: the ledger cannot be created or written.
    """
    if entries < 1:
        raise InvalidArgument("at least one entry is needed")
    ledger = await client.create_ledger()
    payload = SeededRng(1).token(entry_bytes)
    groups: deque[AppendGroup] = deque()
    appended, notified = 0, False
    while True:
        for _ in range(_BURST):
            group = ledger.append_nowait(payload).group
            appended += 1
            if not groups or groups[-1] is not group:
                groups.append(group)
        await asyncio.sleep(0)
        while appended - (ledger.last_add_confirmed + 1) > WINDOW:
            await groups[0].wait()
            if (error := groups.popleft().error) is not None:
                raise error
        if not notified and ledger.last_add_confirmed + 1 >= entries:
            tell(ledger.id, ledger.last_add_confirmed + 1)
            notified = True


async def measure_recovery(client: Client, other: Client, ledger_id: int) -> Figures:
    """Recover a ledger whose writer is dead, and return the figures.

    Args:
        client: recovers the ledger; has no connections yet.
        other: reads the ledger before and after.

    Raises:
        TallybookError: it cannot be recovered or read.
    """
    known = (await other.open_ledger(ledger_id, recover=False)).last_add_confirmed
    began = time.monotonic()
    closed = await client.recover_ledger(ledger_id)
    recovery_s = time.monotonic() - began
    last = closed.last_entry_id
    reader = await other.open_ledger(ledger_id)
    began = time.monotonic()
    tail = 0
    if last > known:
        async for group in reader.read_batches(known + 1, last):
            tail += len(group)
    tail_s = time.monotonic() - began
    return {
        "ledger_entries": last + 1,
        "tail_entries": tail,
        "recovery_ms": round(recovery_s * _MS_PER_S, 3),
        "tail_read_ms": round(tail_s * _MS_PER_S, 3),
        "beyond_tail_ms": round((recovery_s - tail_s) * _MS_PER_S, 3),
    }


@app.command()
def write(
    metadata: Metadata,
    entries: Annotated[int, typer.Option(help="Confirmed entries after which it says so.")] = 1_000_000,
    entry_bytes: Annotated[int, typer.Option(help="Size of an entry.")] = 100,
) -> None:
    """Write a ledger until this process is killed."""

    def tell(ledger_id: int, confirmed: int) -> None:
        print_json_line({"ledger": ledger_id, "confirmed": confirmed})

    async def work() -> None:
        async with Client(metadata) as client:
            await write_for_ever(client, entries, entry_bytes, tell)

    asyncio.run(work())


@app.command()
def recover(ledger_id: Annotated[int, typer.Argument(metavar="LEDGER")], metadata: Metadata) -> None:
    """Recover a ledger; print the figures in one line of JSON."""

    async def work() -> Figures:
        async with Client(metadata) as client, Client(metadata) as other:
            return await measure_recovery(client, other, ledger_id)

    print_json_line(asyncio.run(work()))


if __name__ == "__main__":
    app()
