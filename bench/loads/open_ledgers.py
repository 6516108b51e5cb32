"""Very many open ledgers in one client, each of which appends one entry at the same moment.

    python -m tallybook.bench.open_ledgers --dir out/open --ledgers 20000

A thousand ledgers and as many as asked for, each lot in a cluster of its own of three bookies, which are processes of
this machine. All ledgers of a lot append at once, one lot after the other, three times, so that both measure the same
machine; then a bookie of the lot's cluster is killed, and all append at once again. The time for each of the many
ledgers is to be at most three times that for each of the thousand.
"""

from __future__ import annotations

import asyncio
import shutil
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Final

import typer

from tallybook.client.client import Client
from tallybook.client.writer.handle import LedgerWriter
from tallybook.core.config import ClientSettings
from tallybook.core.errors import TallybookError

from .bookies import Bookie, bookies, metadata_in
from .programs import print_json_line

FEW: Final = 1_000
CREATED_AT_ONCE: Final = 60
ROUNDS: Final = 3
QUIET_SECONDS: Final = 2.0
"""After the ledgers were made, and between two rounds: explicit LACs are told meanwhile."""
MOST_TIMES: Final = 3.0
"""What the time for each of the many ledgers may be, against that for each of the few."""


async def open_ledgers(client: Client, count: int) -> list[LedgerWriter]:
    """So many ledgers with one entry each."""
    writers: list[LedgerWriter] = []
    while len(writers) < count:
        more = min(CREATED_AT_ONCE, count - len(writers))
        made = await asyncio.gather(*(client.create_ledger() for _ in range(more)))
        await asyncio.gather(*(writer.append(b"first") for writer in made))
        writers += made
    return writers


async def append_to_all(writers: Sequence[LedgerWriter]) -> dict[str, float]:
    """One entry to each at the same moment: seconds until the last one is confirmed, and how many are not."""
    failed: Counter[str] = Counter()

    async def append(writer: LedgerWriter) -> None:
        try:
            await writer.append(b"an entry of a ledger, as there are many of them")
        except TallybookError as error:
            failed[type(error).__name__] += 1

    began, cpu = time.monotonic(), time.process_time()
    await asyncio.gather(*map(append, writers))
    seconds = time.monotonic() - began
    return {"seconds": seconds, "us_a_ledger": seconds / len(writers) * 1e6, "failed": failed.total(),
            "client_cpu_s": time.process_time() - cpu}  # fmt: skip


@dataclass
class Lot:
    """Open ledgers of one client, and what was measured of them."""

    bookies: list[Bookie]
    client: Client
    writers: list[LedgerWriter]
    figures: dict[str, float]
    rounds: list[dict[str, float]] = field(default_factory=list)

    async def append(self) -> dict[str, float]:
        """To all of them at once, after a while of quiet."""
        await asyncio.sleep(QUIET_SECONDS)
        return await append_to_all(self.writers)

    async def append_with_one_killed(self) -> None:
        """The same at the moment at which a bookie dies; add up what was measured, and abandon the ledgers."""
        best = min(self.rounds, key=lambda each: each["seconds"])
        self.figures |= best | {"failed": sum(each["failed"] for each in self.rounds)}
        await asyncio.sleep(QUIET_SECONDS)
        self.bookies[0].kill()
        self.figures |= {f"killed_{name}": value for name, value in (await append_to_all(self.writers)).items()}
        for writer in self.writers:
            writer.abandon()


@asynccontextmanager
async def lot_of(directory: Path, count: int) -> AsyncIterator[Lot]:
    """So many open ledgers in a new cluster."""
    shutil.rmtree(directory, ignore_errors=True)
    with bookies(directory, 3) as running:
        async with Client(metadata_in(directory), ClientSettings()) as client:
            began = time.monotonic()
            writers = await open_ledgers(client, count)
            yield Lot(running, client, writers, {"ledgers": count, "made_in_s": time.monotonic() - began})


async def measure(directory: Path, counts: Sequence[int]) -> list[dict[str, float]]:
    """The best round of each lot in a whole cluster, and the one in which a bookie was killed."""
    async with AsyncExitStack() as open_lots:
        lots = [await open_lots.enter_async_context(lot_of(directory / str(count), count)) for count in counts]
        for _ in range(ROUNDS):
            for lot in lots:
                lot.rounds.append(await lot.append())
        for lot in lots:
            await lot.append_with_one_killed()
        return [lot.figures for lot in lots]


def main(
    directory: Annotated[Path, typer.Option("--dir", help="Where the bookies keep their data; emptied.")],
    ledgers: Annotated[int, typer.Option(min=1, help="How many.")] = 20_000,
) -> None:
    """Print the figures, a line of JSON for each lot; exit 1 unless all is confirmed, soon enough."""
    few, many = asyncio.run(measure(directory, (FEW, ledgers)))
    times = {name: many[name] / few[name] for name in ("us_a_ledger", "killed_us_a_ledger")}
    for line in (few, many, {"times": times}):
        print_json_line(line)
    kept = not any(each["failed"] or each["killed_failed"] for each in (few, many))
    raise typer.Exit(0 if kept and max(times.values()) <= MOST_TIMES else 1)


if __name__ == "__main__":
    typer.run(main)
