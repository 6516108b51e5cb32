"""Simulated processes that are frozen, killed and disconnected, and a bookie through its lives."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tallybook.core.answers import AddAnswer, Incarnation
from tallybook.core.errors import Conflict, DiskFailed, MetadataOutcomeUnknown, MetadataUnavailable
from tallybook.core.limits import MIB
from tallybook.core.quorum import Quorum
from tallybook.metadata.ledger.model import Fragment, LedgerMetadata
from tallybook.metadata.store import BookieInfo, Unknown
from tallybook.runtime.rng import SeededRng
from tallybook.sim.cluster import bookie_node as node_module
from tallybook.sim.cluster.bookie_node import BookieNode, with_name
from tallybook.sim.cluster.metadata import MetadataFaults, SimMetadata
from tallybook.sim.cluster.process import SimEnvironment, SimProcess
from tallybook.sim.coverage import CoverageMarks
from tallybook.sim.deterministic import Latency, ProcessGate, SimNet, World
from tallybook.sim.oracle.oracle import Oracle
from tallybook.sim.stage.disk_bookie import batch_of, tiny_settings

from ..simulated import Parts, on_stage


class Small:
    """One bookie and a metadata store, without random faults."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.oracle = Oracle(CoverageMarks(), world.note, lambda: 0)
        self.metadata = SimMetadata(
            world.rng, MetadataFaults(), session_seconds=2.0, timeout_seconds=1.0, on_change=self.oracle.changed
        )
        net = SimNet(world.rng.fork("net"))
        self.around = SimEnvironment(net, self.metadata, self.oracle, world.rng, 3.0, world.note)
        self.node = BookieNode(
            "b0",
            with_name(tiny_settings(), "b0"),
            self.around,
            latency=Latency(),
            capacity_bytes=16 * MIB,
            restart_seconds=0.1,
            has_operator=False,
        )

    def client(self, name: str = "client") -> SimProcess:
        return SimProcess(name, self.around, self.world.clock, SeededRng(name))

    async def serving(self) -> None:
        while not self.node.ready:
            await self.world.clock.sleep(0.01)

    async def boots(self) -> int:
        await self.serving()
        return self.node.bookie.incarnation.boot


@asynccontextmanager
async def small_cluster(world: World) -> AsyncIterator[Parts]:
    """A cluster whose processes are cleaned up at the end."""
    cluster = Small(world)
    try:
        yield {"cluster": cluster}
    finally:
        cluster.around.bury()


small = on_stage(small_cluster, seed=7, deadline_seconds=600)


def ledger(ledger_id: int) -> LedgerMetadata:
    return LedgerMetadata(ledger_id, Quorum(1, 1, 1), (Fragment(0, ("b0",)),), f"creator {ledger_id}", 0)


@small
async def test_a_frozen_process_does_nothing_and_then_all_of_it(cluster: Small) -> None:
    ticks: list[float] = []
    clock, gate = cluster.world.clock, ProcessGate("frozen")

    async def tick() -> None:
        while True:
            await clock.sleep(1.0)
            ticks.append(clock.monotonic())

    gate.spawn(tick(), name="tick")
    await clock.sleep(2.5)
    gate.pause()
    await clock.sleep(10.0)
    assert ticks == [1.0, 2.0]
    gate.resume()
    await clock.sleep(0.1)
    assert ticks == [1.0, 2.0, 12.5]


@small
async def test_a_killed_process_does_not_even_clean_up(cluster: Small) -> None:
    left: list[str] = []
    gate = ProcessGate("killed")

    async def work() -> None:
        try:
            await cluster.world.clock.sleep(1.0)
            left.append("worked")
        finally:
            left.append("cleaned up")

    task = gate.spawn(work(), name="work")
    await cluster.world.clock.sleep(0.5)
    gate.kill()
    gate.resume()
    task.cancel()
    await cluster.world.clock.sleep(5.0)
    assert left == []
    gate.bury()
    await asyncio.wait((task,))
    assert left == ["cleaned up"]


@small
async def test_a_wiped_bookie_refuses_to_start_until_it_is_replaced(cluster: Small) -> None:
    node = cluster.node
    node.start()
    await cluster.serving()
    uuid = node.bookie.incarnation.directory_uuid
    node.wipe()
    while not node.empty:
        assert not node.ready
        await cluster.world.clock.sleep(0.01)
    await cluster.serving()
    assert node.bookie.incarnation.directory_uuid != uuid
    assert cluster.oracle.violations == []


@small
async def test_a_bookie_whose_disk_fails_gives_up_and_comes_back(cluster: Small) -> None:
    node = cluster.node
    node.start()
    await cluster.serving()
    node.disk.fail("write-durable")
    answered: asyncio.Future[AddAnswer] = asyncio.get_running_loop().create_future()
    await cluster.client().session.store.create_ledger(ledger(1))
    node.bookie.add(batch_of(0), b"", answered.set_result)
    assert await cluster.boots() == 1
    while node.ready:
        await cluster.world.clock.sleep(0.01)
    assert await cluster.boots() == 2
    assert cluster.oracle.violations == []


async def broken() -> None:
    raise Conflict("nothing is wrong with the disk")


@small
async def test_a_fault_that_is_planned_and_has_not_struck_is_no_reason_to_give_up(cluster: Small) -> None:
    node = cluster.node
    node.start()
    await cluster.serving()
    node.disk.fail("sync", nth=1000)
    node.tasks.spawn(broken(), name="broken", essential=True)
    while node.ready:
        await cluster.world.clock.sleep(0.01)
    assert [invariant for invariant, _ in cluster.oracle.violations] == ["fail-safe"]


@small
async def test_a_disk_that_failed_is_a_reason_to_give_up_for_that_alone(cluster: Small) -> None:
    node = cluster.node
    node.start()
    await cluster.serving()
    node.disk.fail("space")
    with pytest.raises(DiskFailed):
        await node.disk.space("/")
    assert node.excused
    node.tasks.spawn(broken(), name="broken", essential=True)
    while node.ready:
        await cluster.world.clock.sleep(0.01)
    assert [invariant for invariant, _ in cluster.oracle.violations] == ["fail-safe"]
    await cluster.serving()
    assert not node.excused


@small
async def test_a_start_that_is_refused_for_no_reason_is_a_violation(cluster: Small) -> None:
    node = cluster.node
    with pytest.MonkeyPatch.context() as patches:
        patches.setattr(node_module, "boot", lambda *_: broken())
        node.start()
        await cluster.world.clock.sleep(0.01)
    assert [invariant for invariant, _ in cluster.oracle.violations] == ["boot"]
    await cluster.serving()


@small
async def test_a_start_may_wait_for_the_metadata(cluster: Small) -> None:
    cluster.metadata.go_away()
    cluster.node.start()
    await cluster.world.clock.sleep(5.0)
    cluster.metadata.heal()
    await cluster.serving()
    assert cluster.oracle.violations == []


@small
async def test_a_silent_session_expires_and_is_notified_when_it_can_be(cluster: Small) -> None:
    process = cluster.client("b7")
    registration = await process.session.membership.register(BookieInfo("b7", "b7:1", Incarnation("uuid", 1)))
    observer = cluster.client("observer").session.membership
    process.session.cut()
    await cluster.world.clock.sleep(1.9)
    assert "b7" in await observer.bookies()
    await cluster.world.clock.sleep(0.2)
    assert "b7" not in await observer.bookies()
    lost = process.gate.spawn(registration.lost(), name="lost")
    await cluster.world.clock.sleep(1.0)
    assert not lost.done()
    process.session.heal()
    await asyncio.wait((lost,))


@small
async def test_a_write_whose_answer_is_lost_is_unknown_whether_it_lands_or_not(cluster: Small) -> None:
    faults, store = cluster.metadata.faults, cluster.client().session.store
    faults.lost = 1.0
    with pytest.raises(MetadataOutcomeUnknown):
        await store.create_ledger(ledger(1))
    faults.lost, faults.applied = 0.0, 1.0
    with pytest.raises(MetadataOutcomeUnknown):
        await store.create_ledger(ledger(2))
    faults.applied, faults.late = 0.0, 1.0
    changed = LedgerMetadata(2, Quorum(1, 1, 1), (Fragment(0, ("b0",)),), "creator 2", 0, writer_token="late")
    assert isinstance(await store.update_ledger(changed, 1), Unknown)
    faults.late = 0.0
    assert cluster.metadata.value(1) is None
    assert cluster.metadata.value(2) == ledger(2)
    await cluster.world.clock.sleep(5.0)
    assert cluster.metadata.value(2) == changed


@small
async def test_while_the_store_is_away_nothing_gets_through(cluster: Small) -> None:
    store = cluster.client().session.store
    cluster.metadata.go_away()
    with pytest.raises(MetadataUnavailable):
        await store.cluster_id()
    cluster.metadata.heal()
    assert await store.cluster_id() == cluster.metadata.shared.cluster_id


@small
async def test_a_stale_read_never_goes_back_behind_what_the_session_has_seen(cluster: Small) -> None:
    sessions = [cluster.client(f"reader {number}").session for number in range(8)]
    await sessions[0].store.create_ledger(ledger(1))
    for session in sessions:
        await session.store.read_ledger(1)
    version = 1
    for token in ("a", "b", "c"):
        after = LedgerMetadata(1, Quorum(1, 1, 1), (Fragment(0, ("b0",)),), "creator 1", 0, writer_token="w" + token)
        await cluster.client(f"other {token}").session.store.update_ledger(after, version)
        version += 1
    cluster.metadata.faults.stale = 1.0
    seen = [[(await session.store.read_ledger(1)).version for _ in range(5)] for session in sessions]
    assert all(versions == sorted(versions) for versions in seen)
    assert min(versions[0] for versions in seen) < version
    assert {(await session.store.read_ledger(1, linearizable=True)).version for session in sessions} == {version}
