"""Very many open ledgers in one client, which all append one entry at the same moment.

    python -m tallybook.bench.loads.open_ledgers --dir out/open --ledgers 20000

There are two groups, a thousand ledgers and ``--ledgers``, each in its own cluster of three local bookie processes. All
ledgers of a group append at once, alternating between the groups, three times; then a bookie of each cluster is killed
and all append once more. The time per ledger of the large group may be at most three times that of the small one.
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
from tallybook.core.errors import TallybookError
from tallybook.core.settings import ClientSettings

from ..equipment.bookies import RestartableBookie, bookies, metadata_in
from ..equipment.programs import print_json_line

FEW: Final = 1_000
CREATE_CONCURRENCY: Final = 60
ROUNDS: Final = 3
QUIET_SECONDS: Final = 2.0
"""Pause after the ledgers were created, and between two rounds, during which explicit LACs are sent."""
MAX_RATIO: Final = 3.0
"""Maximum ratio of the time per ledger, large group to small group."""


async def open_ledgers(client: Client, count: int) -> list[LedgerWriter]:
    """Create ``count`` open ledgers with one entry each."""
    writers: list[LedgerWriter] = []
    while len(writers) < count:
        more = min(CREATE_CONCURRENCY, count - len(writers))
        made = await asyncio.gather(*(client.create_ledger() for _ in range(more)))
        await asyncio.gather(*(writer.append(b"first") for writer in made))
        writers += made
    return writers


async def append_to_all(writers: Sequence[LedgerWriter]) -> dict[str, float]:
    """Append one entry to each concurrently: seconds until the last confirmation, and number of failures."""
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
class LedgerGroup:
    """Open ledgers of one client, with their figures."""

    bookies: list[RestartableBookie]
    client: Client
    writers: list[LedgerWriter]
    figures: dict[str, float]
    rounds: list[dict[str, float]] = field(default_factory=list)

    async def append(self) -> dict[str, float]:
        """Append to all of them at once, after a pause."""
        await asyncio.sleep(QUIET_SECONDS)
        return await append_to_all(self.writers)

    async def append_with_one_killed(self) -> None:
        """Append while a bookie is killed; sum the figures, and abandon the ledgers."""
        best = min(self.rounds, key=lambda each: each["seconds"])
        self.figures |= best | {"failed": sum(each["failed"] for each in self.rounds)}
        await asyncio.sleep(QUIET_SECONDS)
        self.bookies[0].kill()
        self.figures |= {f"killed_{name}": value for name, value in (await append_to_all(self.writers)).items()}
        for writer in self.writers:
            writer.abandon()


@asynccontextmanager
async def ledger_group(directory: Path, count: int) -> AsyncIterator[LedgerGroup]:
    """``count`` open ledgers in a new cluster."""
    shutil.rmtree(directory, ignore_errors=True)
    with bookies(directory, 3) as running:
        async with Client(metadata_in(directory), ClientSettings()) as client:
            began = time.monotonic()
            writers = await open_ledgers(client, count)
            yield LedgerGroup(running, client, writers, {"ledgers": count, "made_in_s": time.monotonic() - began})


async def measure(directory: Path, counts: Sequence[int]) -> list[dict[str, float]]:
    """For each group, the best round of a healthy cluster, and the round in which a bookie was killed."""
    async with AsyncExitStack() as open_lots:
        lots = [await open_lots.enter_async_context(ledger_group(directory / str(count), count)) for count in counts]
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
    """Print a line of JSON for each group; exit 1 unless all is confirmed and the ratio is met."""
    few, many = asyncio.run(measure(directory, (FEW, ledgers)))
    times = {name: many[name] / few[name] for name in ("us_a_ledger", "killed_us_a_ledger")}
    for line in (few, many, {"times": times}):
        print_json_line(line)
    kept = not any(each["failed"] or each["killed_failed"] for each in (few, many))
    raise typer.Exit(0 if kept and max(times.values()) <= MAX_RATIO else 1)


if __name__ == "__main__":
    typer.run(main)
