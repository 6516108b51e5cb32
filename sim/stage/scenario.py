"""Short tests on a simulated cluster: a decorator that provides cluster and client, and common helpers.

@scenario(bookies=4)
async def test_something(cluster, client): ...
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from tallybook.client.client import Client
from tallybook.core.errors import check
from tallybook.core.settings import ClientSettings

from ..deterministic import World, run_seed
from .cluster import MemoryCluster

SMALL = ClientSettings(
    max_batch_bytes=1024, max_in_flight_batches=4, max_pending_bytes=64 * 1024, add_timeout_ms=2000, read_bytes=4096
)
"""Client settings with tiny limits."""


def scenario(
    bookies: int = 3, seed: int = 1, deadline_seconds: float = 600
) -> Callable[[Callable[[MemoryCluster, Client], Awaitable[None]]], Callable[[], None]]:
    """Run the decorated coroutine as a test, on a fresh cluster with one client."""

    def decorate(body: Callable[[MemoryCluster, Client], Awaitable[None]]) -> Callable[[], None]:
        async def play(world: World) -> None:
            cluster = MemoryCluster(world, bookies=bookies)
            await cluster.start()
            async with cluster.client(SMALL) as client:
                await body(cluster, client)
            await cluster.stop()

        def test() -> None:
            run_seed(seed, play, deadline_seconds=deadline_seconds)

        test.__doc__ = body.__doc__
        return test

    return decorate


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
