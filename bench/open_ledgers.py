"""Very many open ledgers in one client, each of which appends one entry at the same moment.

    python -m tallybook.bench.open_ledgers --dir out/open --ledgers 20000

Three bookies are processes of this machine. For 1,000 ledgers and for as many as asked for: all append at once, three
times; then one bookie is killed, and all append at once again. The time for each ledger of the many is to be at most
three times that for each of the thousand.
"""

from __future__ import annotations

import asyncio
import shutil
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Final

import typer

from tallybook.client.client import Client
from tallybook.client.writer.handle import LedgerWriter
from tallybook.core.config import ClientSettings
from tallybook.core.errors import TallybookError

from .bookies import bookies, metadata_in
from .programs import print_json_line

FEW: Final = 1_000
CREATED_AT_ONCE: Final = 200
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


async def measure(directory: Path, count: int, client_settings: ClientSettings) -> dict[str, float]:
    """The best round of a whole cluster, and the one after a bookie was killed."""
    with bookies(directory, 3) as running:
        async with Client(metadata_in(directory), client_settings) as client:
            began = time.monotonic()
            writers = await open_ledgers(client, count)
            figures: dict[str, float] = {"ledgers": count, "made_in_s": time.monotonic() - began}
            rounds = []
            for _ in range(ROUNDS):
                await asyncio.sleep(QUIET_SECONDS)
                rounds.append(await append_to_all(writers))
            best = min(rounds, key=lambda each: each["seconds"])
            figures |= {name: value for name, value in best.items() if name != "failed"}
            figures["failed"] = sum(each["failed"] for each in rounds)
            await asyncio.sleep(QUIET_SECONDS)
            running[0].kill()
            killed = await append_to_all(writers)
            figures |= {f"killed_{name}": value for name, value in killed.items()}
    return figures


def main(
    directory: Annotated[Path, typer.Option("--dir", help="Where the bookies keep their data; emptied.")],
    ledgers: Annotated[int, typer.Option(min=1, help="How many.")] = 20_000,
) -> None:
    """Print the figures, a line of JSON for each number of ledgers; exit 1 unless all is confirmed, soon enough."""
    found = {}
    for count in (FEW, ledgers):
        place = directory / str(count)
        shutil.rmtree(place, ignore_errors=True)
        found[count] = asyncio.run(measure(place, count, ClientSettings()))
        print_json_line(found[count])
    few, many = found[FEW], found[ledgers]
    times = {name: many[name] / few[name] for name in ("us_a_ledger", "killed_us_a_ledger")}
    print_json_line({"times": times})
    kept = not any(each["failed"] or each["killed_failed"] for each in found.values())
    raise typer.Exit(0 if kept and max(times.values()) <= MOST_TIMES else 1)


if __name__ == "__main__":
    typer.run(main)
