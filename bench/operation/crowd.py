"""Load of many clients, each appending at a steady rate, independent of the capacity of the cluster.

    python -m tallybook.bench.operation.crowd --metadata URI --clients 50 --rate 300000

Each client has its own connections, ledger and a small budget for unconfirmed entries. An entry that exceeds the budget
is refused with BUSY, counted, and not retried. Prints a line of JSON when all clients append, runs until SIGTERM, and
then prints the figures of every client.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections import Counter
from contextlib import AsyncExitStack
from typing import Annotated, Any, Final

import typer
import uvloop

from tallybook.client.background import client_tasks
from tallybook.client.client import Client
from tallybook.client.writer.appends import AppendGroup
from tallybook.client.writer.handle import LedgerWriter
from tallybook.core.errors import Busy, TallybookError
from tallybook.core.limits import KIB, MIB
from tallybook.core.settings import ClientSettings
from tallybook.runtime.rng import SeededRng
from tallybook.runtime.tuning import settle_memory, tune_process

from ..equipment.programs import print_json_line
from .fairness import SLOT_NS

TURN_SECONDS: Final = 0.1
"""Interval between two bursts of a client, which append the entries due."""
BURST: Final = 256
"""Appends in one turn of the event loop."""
DRAIN_SECONDS: Final = 60.0
CLOSE_SECONDS: Final = 60.0


class CrowdClient:
    """One client with one ledger."""

    def __init__(self, writer: LedgerWriter, payload: bytes, rate: float) -> None:
        self._writer = writer
        self._payload = payload
        self._rate = rate
        self._group: AppendGroup | None = None
        self._unconfirmed = 0
        self._drained = asyncio.Event()
        self._drained.set()
        self.slots: Counter[int] = Counter()
        self.refused: Counter[int] = Counter()
        """Entries refused with BUSY, by slot."""
        self.errors: Counter[str] = Counter()
        """Other errors, by type and message."""

    async def append(self, over: asyncio.Event) -> None:
        """Append at the rate until ``over``, then wait for the last confirmation."""
        began, offered = time.monotonic(), 0
        while not over.is_set() and not self.errors:
            due = int((time.monotonic() - began) * self._rate) - offered
            offered += due
            while due > 0 and (burst := self._burst(min(due, BURST))):
                due -= burst
                await asyncio.sleep(0)
            if due > 0:
                self.refused[time.monotonic_ns() // SLOT_NS] += due
            await asyncio.sleep(TURN_SECONDS)
        async with asyncio.timeout(DRAIN_SECONDS):
            await self._drained.wait()

    def _burst(self, count: int) -> int:
        """Append up to ``count`` entries; returns the number accepted."""
        taken = 0
        append = self._writer.append_nowait
        try:
            while taken < count:
                group = append(self._payload).group
                taken += 1
                if group is not self._group:
                    self._group = group
                    group.on_complete(self._settled)
        except Busy:
            pass  # the caller counts refused entries
        except TallybookError as error:
            self.errors[_error_text(error)] += 1
        self._unconfirmed += taken
        if taken:
            self._drained.clear()
        return taken

    def _settled(self, group: AppendGroup) -> None:
        self._unconfirmed -= group.entry_count
        if not self._unconfirmed:
            self._drained.set()
        if group.error is None:
            self.slots[time.monotonic_ns() // SLOT_NS] += group.entry_count
        else:
            self.errors[_error_text(group.error)] += group.entry_count

    def record(self) -> dict[str, Any]:
        """The figures of this client as JSON."""
        return {"slots": self.slots, "refused": self.refused, "errors": self.errors}


def _error_text(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


async def _crowd(
    metadata: str, clients: int, rate: float, entry_bytes: int, pending_bytes: int
) -> list[dict[str, Any]]:
    over = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, over.set)
    payload = SeededRng(1).token(entry_bytes)
    async with AsyncExitStack() as stack:
        members = []
        for _ in range(clients):
            settings = ClientSettings(max_pending_bytes=pending_bytes)
            client = await stack.enter_async_context(Client(metadata, settings))
            writer = await client.create_ledger(ensemble=3, write_quorum=3, ack_quorum=2)
            stack.push_async_callback(_close, writer)
            members.append(CrowdClient(writer, payload, rate / clients))
        tasks = client_tasks("crowd")
        stack.push_async_callback(tasks.close)
        settle_memory()
        running = [tasks.spawn(each.append(over), name=f"client-{number}") for number, each in enumerate(members)]
        print_json_line({"ready": True})
        await asyncio.gather(*running)
        return [each.record() for each in members]


async def _close(writer: LedgerWriter) -> None:
    if not writer.ended:
        async with asyncio.timeout(CLOSE_SECONDS):
            await writer.close()


def main(
    metadata: Annotated[str, typer.Option(help="URI of the metadata store.")],
    clients: Annotated[int, typer.Option(min=1, help="How many clients.")] = 50,
    rate: Annotated[float, typer.Option(help="Entries a second that all of them together append.")] = 10_000.0,
    entry_bytes: Annotated[int, typer.Option(help="Size of an entry.")] = KIB,
    pending_bytes: Annotated[int, typer.Option(help="What one client may have unconfirmed.")] = 2 * MIB,
) -> None:
    """Append until SIGTERM."""
    tune_process()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        found = runner.run(_crowd(metadata, clients, rate, entry_bytes, pending_bytes))
    print_json_line({"clients": found})


if __name__ == "__main__":
    typer.run(main)
