"""Batches in the answer of a long poll save the reader a request, and are verified like any others."""

from __future__ import annotations

from collections import Counter

import pytest

from tallybook.client.client import Client
from tallybook.client.reader import lac
from tallybook.core.answers import LacAnswer, ReadAnswer

from ..simulated import scenario
from ..support.direct_connections import DirectConnection
from ..support.ledger_scenario import lines
from ..support.memory_cluster import MemoryCluster
from ..support.tail import BackgroundTail


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Counts client requests by kind."""
    found: Counter[str] = Counter()
    wait, read = DirectConnection.wait_lac, DirectConnection.read_batches

    async def wait_lac(self: DirectConnection, *question: int, **more: bytes) -> LacAnswer:
        answer = await wait(self, *question, **more)
        found["brought"] += len(answer.batches)
        return answer

    async def read_batches(self: DirectConnection, *question: int, **more: bytes) -> ReadAnswer:
        found["read"] += 1
        return await read(self, *question, **more)

    monkeypatch.setattr(DirectConnection, "wait_lac", wait_lac)
    monkeypatch.setattr(DirectConnection, "read_batches", read_batches)
    return found


@scenario()
async def test_a_reader_that_keeps_up_asks_for_no_batch(
    cluster: MemoryCluster, client: Client, *, asked: Counter[str]
) -> None:
    writer = await client.create_ledger()
    tail = BackgroundTail(cluster, writer.id)
    for count, line in enumerate(lines(50), start=1):
        await writer.append(line)
        await tail.until(lines(count), seconds=1)
    assert asked["brought"] >= 50
    assert asked["read"] <= 2, "before it had caught up"
    await tail.stop()


@scenario(bookies=5)
async def test_a_reader_of_a_striped_ledger_asks_other_bookies_for_missing_entries(
    cluster: MemoryCluster, client: Client, *, asked: Counter[str]
) -> None:
    writer = await client.create_ledger(ensemble=5, write_quorum=2, ack_quorum=2)
    tail = BackgroundTail(cluster, writer.id)
    for count, line in enumerate(lines(50), start=1):
        await writer.append(line)
        await tail.until(lines(count), seconds=1)
    assert asked["brought"]
    assert asked["read"]
    await tail.stop()


@pytest.mark.parametrize("damage", ["flipped", "of another ledger"])
@scenario()
async def test_what_came_along_damaged_is_read_from_others(
    cluster: MemoryCluster, client: Client, *, damage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    wait, spoilt = DirectConnection.wait_lac, 0

    async def wait_lac(self: DirectConnection, ledger_id: int, above: int, *rest: int, **more: bytes) -> LacAnswer:
        nonlocal spoilt
        answer = await wait(self, ledger_id, above, *rest, **more)
        if not answer.batches:
            return answer
        spoilt += 1
        if damage == "flipped":
            batch = bytes(answer.batches[0])
            return answer._replace(batches=(batch[:-1] + bytes([batch[-1] ^ 1]),))
        return answer._replace(batches=(await wait(self, 1 - ledger_id, above, *rest)).batches)

    monkeypatch.setattr(DirectConnection, "wait_lac", wait_lac)
    another = await client.create_ledger()
    for line in lines(60, 1000):
        await another.append(line)
    writer = await client.create_ledger()
    assert {another.id, writer.id} == {0, 1}
    tail = BackgroundTail(cluster, writer.id)
    for count, line in enumerate(lines(40), start=1):
        await writer.append(line)
        await tail.until(lines(count), seconds=2)
    assert spoilt >= 20
    await tail.stop()


@scenario()
async def test_a_reader_far_behind_is_brought_little_and_reads_the_rest(
    cluster: MemoryCluster, client: Client, *, asked: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lac, "PIGGYBACK_BYTES", 64)
    writer = await client.create_ledger()
    tail = BackgroundTail(cluster, writer.id)
    await cluster.world.clock.sleep(1)
    for _ in range(5):
        await writer.append_many(lines(200))
        await cluster.world.clock.sleep(1)
    await tail.until(5 * lines(200), seconds=5)
    assert asked["brought"]
    assert asked["read"]
    await tail.stop()
