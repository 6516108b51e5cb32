"""A recovery with a member behind a narrow uplink: answers to reads delay its acks."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tallybook.bookie.rpc.service import BookieService
from tallybook.client.client import Client
from tallybook.client.connection.pool import BookieConnections
from tallybook.client.ports import ClientWorld
from tallybook.core.settings import ClientSettings
from tallybook.metadata.store import BookieInfo
from tallybook.runtime.tasks import Tasks
from tallybook.runtime.transport import MessageStream
from tallybook.sim.deterministic import SimNet, World
from tallybook.sim.stage.disk_bookie import tiny_settings
from tallybook.wire.lanes import Lane

from ..simulated import on_stage, world_alone
from ..support.memory_cluster import MemoryCluster
from .test_recovery_write_back import hold


class Uplink:
    """A stream with a limited rate from the bookie."""

    def __init__(self, stream: MessageStream, clock: Any, bytes_per_second: int) -> None:
        self._stream, self._clock, self._bytes_per_second = stream, clock, bytes_per_second

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    async def send(self, message: bytes) -> None:
        await self._clock.sleep(len(message) / self._bytes_per_second)
        await self._stream.send(message)


async def listening(world: World, cluster: MemoryCluster, net: SimNet, tasks: Tasks, name: str, rate: int) -> str:
    """A bookie whose Control stream has an uplink of ``rate`` bytes per second; return its address."""
    service = BookieService(cluster.bookies[name], tiny_settings(), world.clock, tasks, "", print)

    async def accept(lane: Lane, stream: MessageStream) -> None:
        slow = rate and lane is Lane.CONTROL
        await service.accept(lane, cast(MessageStream, Uplink(stream, world.clock, rate)) if slow else stream)

    return (await net.transport(name).listen(f"{name}:1", accept)).address


@pytest.mark.parametrize(
    ("rate", "batch_bytes", "batches"),
    [
        (100_000, 200_000, 20),
        (50_000, 100_000, 40),
        (200_000, 900_000, 6),
        (20_000, 60_000, 20),
        (100_000, 10_000, 300),
    ],
)
@on_stage(world_alone, deadline_seconds=600)
async def test_with_a_dead_member_one_behind_a_narrow_uplink_is_enough(
    world: World, *, rate: int, batch_bytes: int, batches: int
) -> None:
    def fail(name: str, error: BaseException) -> None:
        asyncio.get_running_loop().call_exception_handler({"message": name, "exception": error})

    cluster, net, tasks = MemoryCluster(world, bookies=3), SimNet(world.rng.fork("net")), Tasks("wire", fail)
    await cluster.start()
    infos: dict[str, BookieInfo] = {}
    dead, *_, narrow = sorted(cluster.bookies)
    for name, bookie in cluster.bookies.items():
        address = await listening(world, cluster, net, tasks, name, rate if name == narrow else 0)
        infos[name] = BookieInfo(name, address, bookie.incarnation)

    async def registered() -> dict[str, BookieInfo]:
        return infos

    shared, settings = cluster.metadata.client(), ClientSettings()
    members = cast(Any, SimpleNamespace(bookies=registered))
    connections = BookieConnections(net.transport("client"), members, settings, world.clock, tasks)
    rng = world.rng.fork("client")
    its_world = ClientWorld(shared.store, shared.membership, connections, world.clock, rng, None)
    async with Client(its_world, settings) as client:
        ledger = await client.create_ledger()
        ledger.abandon()
        for first in range(batches):
            for name in infos:
                await hold(cluster, name, ledger.id, first, [bytes(batch_bytes)])
        cluster.bookies[dead].kill()
        del infos[dead]
        closed = await client.recover_ledger(ledger.id)
        assert closed.last_entry_id == batches - 1
        assert [gap.bookie_id for gap in closed.missed] == [dead]
    await tasks.close()
    await cluster.stop()
