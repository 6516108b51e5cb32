"""Writes or reads ledgers while bookies change their revision. A program; see the package.

    python -P mixed_load.py METADATA write TAG      write until SIGTERM; then print how many entries were confirmed
    python -P mixed_load.py METADATA read           read the ledgers in such a report, given on standard input

Reading checks that every confirmed entry is there, byte for byte. The result is one JSON line.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections import Counter
from typing import Any, Final

from tallybook.client import Client
from tallybook.core.errors import TallybookError

ENTRIES_OF_A_LEDGER: Final = 300
BATCH_ENTRIES: Final = 8
PAUSE_SECONDS: Final = 0.2


def payload(tag: str, ledger_id: int, number: int) -> bytes:
    """Entry ``number`` of a ledger of the load ``tag``."""
    return f"{tag} {ledger_id} {number} ".encode() + b"tally" * (number * 37 % 100)


class LedgerLoad:
    """Writes one ledger after the other.

    Attributes:
        confirmed: number of confirmed entries, by ledger.
        errors: counts of errors by class. Appends that failed may have been done or not.
    """

    def __init__(self, client: Client, tag: str) -> None:
        self._client = client
        self._tag = tag
        self.confirmed: dict[int, int] = {}
        self.errors: Counter[str] = Counter()
        self.stopping = asyncio.Event()

    async def run(self) -> None:
        """Write until ``stopping`` is set."""
        while not self.stopping.is_set():
            try:
                await self._ledger()
            except TallybookError as error:
                self.errors[type(error).__name__] += 1
                await asyncio.sleep(PAUSE_SECONDS)

    async def _ledger(self) -> None:
        writer = await self._client.create_ledger(ensemble=3, write_quorum=3, ack_quorum=2)
        self.confirmed[writer.id] = 0
        while self.confirmed[writer.id] < ENTRIES_OF_A_LEDGER and not self.stopping.is_set():
            first = self.confirmed[writer.id]
            await writer.append_many([payload(self._tag, writer.id, first + each) for each in range(BATCH_ENTRIES)])
            self.confirmed[writer.id] = first + BATCH_ENTRIES
        await writer.close()


async def write(client: Client, tag: str) -> dict[str, Any]:
    """Print a line, then write until SIGTERM."""
    load = LedgerLoad(client, tag)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, load.stopping.set)
    print(json.dumps({"begins": tag}), flush=True)
    await load.run()
    return {"tag": tag, "confirmed": load.confirmed, "errors": load.errors}


async def read(client: Client, written: list[dict[str, Any]]) -> dict[str, Any]:
    """Read all ledgers; ``lost`` lists those that differ from what was confirmed."""
    count, lost = 0, []
    for load in written:
        for ledger_id, confirmed in ((int(each), number) for each, number in load["confirmed"].items()):
            reader = await client.open_ledger(ledger_id)
            last = reader.last_add_confirmed
            found = [entry.payload async for entry in reader.read(0, last)] if last >= 0 else []
            count += len(found)
            expected = [payload(load["tag"], ledger_id, number) for number in range(len(found))]
            # A failed append may have stored some entries after the confirmed ones.
            if found != expected or not confirmed <= len(found) <= confirmed + BATCH_ENTRIES:
                lost.append([ledger_id, confirmed, len(found)])
    return {"entries": count, "lost": lost}


async def main(metadata: str, what: str, *rest: str) -> None:
    """Write or read."""
    async with Client(metadata) as client:
        found = await write(client, *rest) if what == "write" else await read(client, json.loads(sys.stdin.readline()))
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
