"""A client that all or some bookies refuse for its role, or for lack of one, is told why."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from tallybook.client.client import Client
from tallybook.client.connection.port import BookieConnection
from tallybook.client.environment import ClientWorld
from tallybook.client.ports import Connections
from tallybook.core.errors import AccessDenied, NotEnoughBookies, TallybookError

from ..simulated import scenario
from ..support.direct_connections import DirectConnections
from ..support.ledger_scenario import SMALL, lines
from ..support.memory_cluster import MemoryCluster
from .parts import written_ledger

REASON = "no principal has a certificate of tallybook://writer/app"


@dataclass
class Doors:
    """Connections to bookies, some of which refuse."""

    behind: Connections
    refusing: set[str] = field(default_factory=set)
    error: type[TallybookError] = AccessDenied
    attempts: int = 0

    async def get(self, bookie_id: str) -> BookieConnection:
        if bookie_id in self.refusing:
            self.attempts += 1
            raise self.error(REASON)
        return await self.behind.get(bookie_id)

    async def close(self) -> None:
        await self.behind.close()


def stranger(cluster: MemoryCluster, doors: list[Doors]) -> Client:
    """A client whose connections can be refused."""
    world = cluster.world
    shared = cluster.metadata.client()
    direct = DirectConnections(
        cluster.bookies, clock=world.clock, tasks=cluster._tasks, delay=cluster._delay,
        alive=lambda name: cluster.bookies[name].alive, rng=world.rng.fork("direct"),
    )  # fmt: skip
    doors.append(Doors(direct))
    client_world = ClientWorld(shared.store, shared.membership, doors[0], world.clock, world.rng.fork("stranger"), None)
    return Client(client_world, SMALL.model_copy(update={"away_timeout_ms": 300, "reconnect_ms": 50}))


@scenario()
async def test_a_writer_that_every_bookie_refuses_is_told_so_at_once_and_why(
    cluster: MemoryCluster, client: Client
) -> None:
    made: list[Doors] = []
    async with stranger(cluster, made) as app:
        doors = made[0]
        doors.refusing = set(cluster.bookies)
        began = cluster.world.clock.monotonic()
        ledger = await app.create_ledger()
        with pytest.raises(AccessDenied, match=f"ledger {ledger.id}: .*refuse.*: {REASON}") as told:
            await ledger.append(b"x")
        assert cluster.world.clock.monotonic() - began < SMALL.add_timeout_ms / 1000 / 4
        assert not told.value.retriable
        attempts = doors.attempts
        await cluster.world.clock.sleep(60)
        assert doors.attempts == attempts, "no bookie is asked again for a writer that has ended"
        with pytest.raises(AccessDenied):
            await ledger.append(b"y")


@scenario()
async def test_a_writer_that_enough_bookies_refuse_gets_the_refusal_and_not_a_quorum_error(
    cluster: MemoryCluster, client: Client
) -> None:
    made: list[Doors] = []
    async with stranger(cluster, made) as app:
        made[0].refusing = set(list(cluster.bookies)[:2])
        ledger = await app.create_ledger(ensemble=3, write_quorum=3, ack_quorum=2)
        with pytest.raises(AccessDenied, match=REASON):
            await ledger.append(b"x")


@scenario()
async def test_a_writer_that_one_bookie_refuses_continues_with_the_others(
    cluster: MemoryCluster, client: Client
) -> None:
    made: list[Doors] = []
    async with stranger(cluster, made) as app:
        made[0].refusing = {next(iter(cluster.bookies))}
        ledger = await app.create_ledger(ensemble=3, write_quorum=3, ack_quorum=2)
        assert list(await ledger.append_many(lines(3))) == [0, 1, 2]


@scenario()
async def test_where_no_bookie_can_be_reached_the_error_has_the_reason_of_each(
    cluster: MemoryCluster, client: Client
) -> None:
    made: list[Doors] = []
    async with stranger(cluster, made) as app:
        made[0].refusing, made[0].error = set(cluster.bookies), NotEnoughBookies
        ledger = await app.create_ledger()
        with pytest.raises(NotEnoughBookies, match=rf"no ack quorum without .* \({REASON}\)"):
            await ledger.append(b"x")


@scenario()
async def test_a_reader_that_every_bookie_refuses_is_told_so_however_it_asks(
    cluster: MemoryCluster, client: Client
) -> None:
    writing = await written_ledger(client, 3)
    assert await writing.append(b"one more tells that those before it are confirmed") == 3
    made: list[Doors] = []
    async with stranger(cluster, made) as app:
        doors = made[0]
        reader = await app.open_ledger(writing.id, recover=False)
        assert await reader.read_last_add_confirmed() >= 0
        doors.refusing = set(cluster.bookies)
        for ask in (
            lambda: reader.read_entry(0),
            reader.read_last_add_confirmed,
            reader.try_read_last_add_confirmed,
            lambda: anext(reader.tail(0)),
            lambda: anext(reader.tail(4)),
            lambda: app.open_ledger(writing.id),
        ):
            began = cluster.world.clock.monotonic()
            with pytest.raises(AccessDenied, match=REASON):
                await ask()
            assert cluster.world.clock.monotonic() - began < 1
