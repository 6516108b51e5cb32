"""A replica that cannot serve, for any reason, does not fail a read while others can; and which one is blamed."""

from __future__ import annotations

import pytest

from tallybook.client.client import Client
from tallybook.core.error_codes import error_from_wire
from tallybook.core.errors import (
    EntryUnknown,
    InvalidArgument,
    InvariantViolation,
    NoSuchLedger,
    TallybookError,
    Unauthorized,
)

from ..simulated import scenario
from ..support.ledger_scenario import lines
from ..support.memory_cluster import MemoryCluster
from .parts import written_ledger

READING = ("read_entry", "read_batches", "read_lac", "wait_lac")

REFUSALS = {
    "internal error": error_from_wire(TallybookError.wire_code, "internal error of a bookie"),
    "error of a newer bookie": error_from_wire(4711, "no words for it"),
    "no such ledger": NoSuchLedger("the metadata does not know it"),
    "invalid argument": InvalidArgument("a kind of request that this version does not know"),
    "unauthorized": Unauthorized("not you"),
}


class Refusing:
    """Makes bookies answer all requests of a reader with one error."""

    def __init__(self, cluster: MemoryCluster, error: TallybookError) -> None:
        self._cluster = cluster
        self._error = error
        self.asked: list[str] = []

    def at(self, *names: str) -> None:
        for name in names:
            self._cluster.bookies[name].gate = self._gate

    async def _gate(self, method: str, _: int) -> None:
        if method in READING:
            self.asked.append(method)
            raise self._error.with_traceback(None)


@pytest.mark.parametrize("error", REFUSALS.values(), ids=REFUSALS)
@pytest.mark.parametrize("position", range(3))
@scenario()
async def test_a_replica_that_refuses_leaves_everything_to_the_others(
    cluster: MemoryCluster, client: Client, *, error: TallybookError, position: int
) -> None:
    ledger = await written_ledger(client, 10)
    await cluster.world.clock.sleep(1)
    refusing = Refusing(cluster, error)
    refusing.at(ledger.metadata.last_fragment.bookies[position])
    reader = await client.open_ledger(ledger.id, recover=False)
    assert reader.last_add_confirmed == 9
    assert await reader.read_last_add_confirmed() == 9
    assert [entry.payload async for entry in reader.read(0, 9)] == lines(10)
    assert (await reader.read_entry(3)).payload == lines(10)[3]
    assert (await reader.read_batch(3))[0].first_entry_id <= 3
    seen: list[bytes] = []
    async for entry in reader.tail():
        seen.append(entry.payload)
        if len(seen) == 10:
            await ledger.append_many(lines(10, 10))
        if len(seen) == 20:
            await ledger.close()
    assert seen == lines(20)
    assert {"read_lac", "wait_lac"} <= set(refusing.asked)


@scenario()
async def test_whether_there_is_no_such_ledger_is_for_the_metadata_to_say(
    cluster: MemoryCluster, client: Client
) -> None:
    ledger = await written_ledger(client, 10, close=True)
    reader = await client.open_ledger(ledger.id)
    Refusing(cluster, NoSuchLedger("the metadata does not know it")).at(*cluster.bookies)
    for reading in (reader.read_entry(3), anext(reader.read(0, 9)), reader.read_batch(3)):
        with pytest.raises(EntryUnknown, match=r"bookie-1 \(NoSuchLedger\)") as refused:
            await reading
        assert refused.value.retriable
    await client.delete_ledger(ledger.id)
    for reading in (reader.read_entry(3), anext(reader.read(0, 9)), reader.read_batch(3)):
        with pytest.raises(NoSuchLedger, match=f"ledger {ledger.id}"):
            await reading


@scenario()
async def test_a_defect_of_the_client_is_no_failure_of_a_replica(cluster: MemoryCluster, client: Client) -> None:
    ledger = await written_ledger(client, 10, close=True)
    reader = await client.open_ledger(ledger.id)
    Refusing(cluster, InvariantViolation("this cannot be")).at(ledger.metadata.last_fragment.bookies[0])
    for reading in (reader.read_entry(3), anext(reader.read(0, 9)), reader.read_batch(3)):
        with pytest.raises(InvariantViolation):
            await reading
