"""Bookies know whether an open ledger has a writer, as long as the writer lives."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from tallybook.client.client import Client
from tallybook.client.writer.handle import LedgerWriter
from tallybook.core.answers import AddAnswer, AddCallback
from tallybook.core.batch import decode_header
from tallybook.core.errors import BookieReadOnly, LedgerFenced
from tallybook.wire.batches import WRITER_RETURN_SECONDS

from ..simulated import scenario
from ..support.direct_connections import DirectConnection, DirectConnections
from ..support.ledger_scenario import SMALL, lines
from ..support.memory_cluster import MemoryCluster
from .parts import written_ledger


class Slow:
    """Connections to one bookie that wait for ``let_in``."""

    def __init__(self, connections: DirectConnections, patch: pytest.MonkeyPatch) -> None:
        self.bookie_id = ""
        self.asked = False
        self.let_in = asyncio.Event()
        right = connections.get

        async def get(bookie_id: str) -> DirectConnection:
            if bookie_id == self.bookie_id:
                self.asked = True
                await self.let_in.wait()
            return await right(bookie_id)

        patch.setattr(connections, "get", get)


async def abandon(_other: Client, ledger: LedgerWriter) -> None:
    ledger.abandon()


async def close(_other: Client, ledger: LedgerWriter) -> None:
    await ledger.close()


async def fence(other: Client, ledger: LedgerWriter) -> None:
    await other.open_ledger(ledger.id)
    with pytest.raises(LedgerFenced):
        await ledger.append(b"too late")


@pytest.mark.parametrize("end", [abandon, close, fence])
@scenario()
async def test_a_writer_that_ends_while_a_member_is_connecting_stays_attached_nowhere(
    cluster: MemoryCluster, client: Client, *, end: Callable[[Client, LedgerWriter], Awaitable[None]]
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        async with cluster.client(SMALL) as writing:
            connections = writing.world.connections
            assert isinstance(connections, DirectConnections)
            slow = Slow(connections, patch)
            slow.bookie_id = sorted(cluster.bookies)[-1]
            ledger = await writing.create_ledger()
            assert slow.bookie_id in ledger.metadata.last_fragment.bookies
            await ledger.append_many(lines(3))
            assert slow.asked
            await end(client, ledger)
            slow.let_in.set()
            await cluster.world.clock.sleep(WRITER_RETURN_SECONDS)
            assert await writers(cluster, client, ledger.id) == [False] * 3


async def writers(cluster: MemoryCluster, client: Client, ledger_id: int) -> list[bool | None]:
    """Answer of each bookie whether a ledger has a writer."""
    reached = [await client.world.connections.get(name) for name in sorted(cluster.bookies)]
    return [(await each.held(ledger_id, 0, 0)).writer for each in reached]


@scenario()
async def test_a_writer_stays_attached_to_a_member_that_it_waits_to_rejoin_and_is_detached_when_it_ends(
    cluster: MemoryCluster, client: Client
) -> None:
    refused = 0

    def refuse(batch: bytes, key: bytes, on_answer: AddCallback, **_more: object) -> None:
        nonlocal refused
        refused += 1
        header = decode_header(batch)
        on_answer(AddAnswer(header.ledger_id, header.first_entry_id, header.entry_count, BookieReadOnly.wire_code))

    async with cluster.client(SMALL) as writing:
        ledger = await written_ledger(writing, 3)
        await cluster.world.clock.sleep(WRITER_RETURN_SECONDS)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(cluster.bookies[ledger.metadata.last_fragment.bookies[-1]], "add", refuse)
            while refused < 3:
                await ledger.append(b"the others take it")
                await cluster.world.clock.sleep(SMALL.reconnect_ms / 4000)
                assert await writers(cluster, client, ledger.id) == [True] * 3
            ledger.abandon()
            assert await writers(cluster, client, ledger.id) == [False] * 3
