"""Speculative reads: when the next replica is asked, which answer wins, and what is reported if all fail."""

from __future__ import annotations

import asyncio

import pytest

from tallybook.client.client import Client
from tallybook.client.reader.handle import LedgerReader
from tallybook.client.reader.machine import MAX_WAIT_SECONDS
from tallybook.core.errors import BookieUnavailable, EntryCorrupt, EntryUnknown, RequestTimeout
from tallybook.core.settings import ClientSettings

from ..simulated import scenario
from ..support.ledger_scenario import SMALL, lines
from ..support.memory_cluster import MemoryCluster
from .parts import written_ledger

WARM_UP = 16
"""Reads after which the pace is known."""


class Shelf:
    """A closed ledger of 50 entries on three bookies, with recorded requests and configurable delays."""

    def __init__(self, cluster: MemoryCluster) -> None:
        self.cluster = cluster
        self.clock = cluster.world.clock
        self.names: tuple[str, ...] = ()
        self.asked: list[tuple[str, float]] = []
        self.answered: list[str] = []
        self.slow: dict[str, float] = {}

    async def fill(self, client: Client, *, write_quorum: int = 3) -> int:
        ledger = await written_ledger(client, 50, close=True, write_quorum=write_quorum, ack_quorum=write_quorum)
        self.names = ledger.metadata.last_fragment.bookies
        for name in self.names:
            self.cluster.bookies[name].gate = self._gate(name)
        return ledger.id

    def _gate(self, name: str):
        async def gate(method: str, _: int) -> None:
            if method not in ("read_entry", "read_batches"):
                return
            self.asked.append((name, self.clock.monotonic()))
            await self.clock.sleep(self.slow.get(name, 0.0))
            self.answered.append(name)

        return gate

    async def warmed_up(self, client: Client, ledger_id: int) -> LedgerReader:
        """A reader that has measured latencies below the 20 ms of the setting."""
        reader = await client.open_ledger(ledger_id)
        for _ in range(WARM_UP):
            await reader.read_entry(1)
        self.asked.clear()
        self.answered.clear()
        return reader

    @property
    def who(self) -> list[str]:
        """The bookies that were asked, in order."""
        return [name for name, _ in self.asked]


@scenario()
async def test_c36_replicas_that_answer_in_time_are_asked_alone(cluster: MemoryCluster, client: Client) -> None:
    shelf = Shelf(cluster)
    reader = await shelf.warmed_up(client, await shelf.fill(client))
    shelf.slow = dict.fromkeys(shelf.names, 0.015)
    assert [entry.payload async for entry in reader.read(0, 49)] == lines(50)
    assert (await reader.read_entry(7)).payload == lines(50)[7]
    assert set(shelf.who) == {shelf.names[0]}


@scenario()
async def test_c36_a_slow_replica_is_overtaken_by_the_next_and_given_up(cluster: MemoryCluster, client: Client) -> None:
    shelf = Shelf(cluster)
    reader = await shelf.warmed_up(client, await shelf.fill(client))
    first, second, third = shelf.names
    shelf.slow = {first: 3.0}
    began = shelf.clock.monotonic()
    assert (await reader.read_entry(7)).payload == lines(50)[7]
    assert 0.02 <= shelf.clock.monotonic() - began < 0.04
    assert shelf.who == [first, second]
    assert shelf.asked[1][1] - shelf.asked[0][1] == pytest.approx(0.02, abs=0.005)
    # The one that was fast is asked first from now on, and the slow one last, for a while.
    assert [entry.payload async for entry in reader.read(0, 49)] == lines(50)
    assert set(shelf.who[2:]) == {second}
    cluster.bookies[second].kill()
    shelf.asked.clear()
    await reader.read_entry(8)
    assert shelf.who == [third]


@scenario()
async def test_c36_two_slow_replicas_are_both_overtaken_on_schedule(cluster: MemoryCluster, client: Client) -> None:
    shelf = Shelf(cluster)
    reader = await shelf.warmed_up(client, await shelf.fill(client))
    first, second, third = shelf.names
    shelf.slow = {first: 3.0, second: 3.0}
    began = shelf.clock.monotonic()
    assert [entry.payload async for entry in reader.read(0, 3)] == lines(4)
    assert 0.04 <= shelf.clock.monotonic() - began < 0.06
    assert shelf.who == [first, second, third]
    assert client.stats()["client_speculative_reads"] == 2


@scenario()
async def test_c36_the_first_replica_may_still_win(cluster: MemoryCluster, client: Client) -> None:
    shelf = Shelf(cluster)
    reader = await shelf.warmed_up(client, await shelf.fill(client))
    first, second, _ = shelf.names
    shelf.slow = {first: 0.03, second: 3.0}
    assert (await reader.read_entry(7)).payload == lines(50)[7]
    assert shelf.who == [first, second]
    assert shelf.answered == [first]


@scenario()
async def test_c36_a_bad_copy_that_comes_first_does_not_win(cluster: MemoryCluster, client: Client) -> None:
    shelf = Shelf(cluster)
    reader = await shelf.warmed_up(client, await shelf.fill(client))
    first, second, third = shelf.names
    cluster.bookies[second].faults.inject(reader.id, 7, EntryCorrupt)
    shelf.slow = {first: 0.5}
    assert (await reader.read_entry(7)).payload == lines(50)[7]
    assert shelf.who == [first, second, third]
    # Where the others have nothing to offer, the slow one is waited for.
    cluster.bookies[third].faults.inject(reader.id, 7, EntryCorrupt)
    shelf.slow = {first: 0.5, third: 0.1}
    assert (await reader.read_entry(7)).payload == lines(50)[7]


@pytest.mark.parametrize(
    ("faults", "verdict"),
    [
        ({0: "hang", 1: "hang", 2: "hang"}, RequestTimeout),
        ({0: "hang", 1: "dead", 2: "corrupt"}, EntryCorrupt),
        ({0: "hang", 1: "unknown", 2: "hang"}, EntryUnknown),
        ({0: "dead", 1: "dead", 2: "hang"}, BookieUnavailable),
    ],
)
@scenario()
async def test_c36_when_all_fail_there_is_one_typed_error_and_each_was_asked_once(
    cluster: MemoryCluster, client: Client, *, faults: dict[int, str], verdict: type[Exception]
) -> None:
    shelf = Shelf(cluster)
    reader = await shelf.warmed_up(client, await shelf.fill(client))
    for position, fault in faults.items():
        bookie = cluster.bookies[shelf.names[position]]
        if fault == "hang":
            shelf.slow[bookie.bookie_id] = 1000.0
        elif fault == "dead":
            bookie.kill()
        else:
            bookie.faults.inject(reader.id, 7, {"corrupt": EntryCorrupt, "unknown": EntryUnknown}[fault])
    began = shelf.clock.monotonic()
    with pytest.raises(verdict) as refused:
        await reader.read_entry(7)
    assert type(refused.value) is verdict
    assert shelf.clock.monotonic() - began < 5.1, "they were waited for together"
    assert len(shelf.who) == len(set(shelf.who))


@scenario()
async def test_c36_a_reader_that_knows_nothing_yet_waits_longest(cluster: MemoryCluster, client: Client) -> None:
    shelf = Shelf(cluster)
    reader = await client.open_ledger(await shelf.fill(client))
    first, second, _ = shelf.names
    shelf.slow = {first: 3.0}
    await reader.read_entry(7)
    assert shelf.who == [first, second]
    assert shelf.asked[1][1] - shelf.asked[0][1] == pytest.approx(MAX_WAIT_SECONDS, abs=0.005)


@scenario()
async def test_c36_when_all_are_slow_hardly_any_read_asks_twice(cluster: MemoryCluster, client: Client) -> None:
    shelf = Shelf(cluster)
    reader = await shelf.warmed_up(client, await shelf.fill(client))
    shelf.slow = dict.fromkeys(shelf.names, 0.2)
    for _ in range(100):
        await reader.read_entry(7)
    shelf.asked.clear()
    for _ in range(200):
        await reader.read_entry(7)
    assert len(shelf.asked) < 220


@scenario()
async def test_c36_zero_asks_one_replica_at_a_time(cluster: MemoryCluster, client: Client) -> None:
    shelf = Shelf(cluster)
    ledger_id = await shelf.fill(client)
    patient = ClientSettings.model_validate({**SMALL.model_dump(), "speculative_read_ms": 0})
    async with cluster.client(patient) as other:
        reader = await shelf.warmed_up(other, ledger_id)
        shelf.slow = {shelf.names[0]: 3.0}
        await reader.read_entry(7)
        assert shelf.who == [shelf.names[0]]


@scenario()
async def test_c36_the_only_replica_there_is_is_asked_once(cluster: MemoryCluster, client: Client) -> None:
    shelf = Shelf(cluster)
    reader = await shelf.warmed_up(client, await shelf.fill(client, write_quorum=1))
    shelf.slow = dict.fromkeys(shelf.names, 2.0)
    await reader.read_entry(7)
    assert len(shelf.who) == 1


@scenario()
async def test_c36_a_read_that_is_cancelled_leaves_nothing_behind(cluster: MemoryCluster, client: Client) -> None:
    shelf = Shelf(cluster)
    reader = await shelf.warmed_up(client, await shelf.fill(client))
    shelf.slow = dict.fromkeys(shelf.names, 3.0)
    reading = asyncio.ensure_future(reader.read_entry(7))
    await shelf.clock.sleep(0.03)
    assert len(shelf.who) == 2
    reading.cancel()
    await asyncio.gather(reading, return_exceptions=True)
    assert reading.cancelled()
    await shelf.clock.sleep(1)
    assert len(shelf.who) == 2
