"""Helpers of short tests on a simulated cluster."""

from __future__ import annotations

from collections.abc import Callable

from tallybook.client.client import Client
from tallybook.core.errors import check
from tallybook.core.settings import ClientSettings

from .memory_cluster import MemoryCluster

SMALL = ClientSettings(
    max_batch_bytes=1024, max_in_flight_batches=4, max_pending_bytes=64 * 1024, add_timeout_ms=2000, read_bytes=4096
)
"""Client settings with tiny limits."""


def lines(count: int, start: int = 0) -> list[bytes]:
    """Payloads that contain their entry number."""
    return [f"entry number {index}".encode() for index in range(start, start + count)]


async def read_all(client: Client, ledger_id: int, password: bytes = b"") -> list[bytes]:
    """All payloads of a ledger; an open ledger is recovered first."""
    reader = await client.open_ledger(ledger_id, password=password)
    if reader.last_add_confirmed < 0:
        return []
    return [entry.payload async for entry in reader.read(0, reader.last_add_confirmed)]


async def eventually(condition: Callable[[], bool], cluster: MemoryCluster, seconds: float = 60) -> None:
    """Wait in virtual time until ``condition`` holds."""
    deadline = cluster.world.clock.monotonic() + seconds
    while not condition():
        check(cluster.world.clock.monotonic() < deadline, "the condition never held")
        await cluster.world.clock.sleep(0.01)
