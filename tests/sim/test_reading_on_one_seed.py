"""Readers in virtual time: tails through recoveries, deletions and outages; bookies that lie or hang."""

from __future__ import annotations

import asyncio
from typing import Self

import pytest

from tallybook.client.client import Client
from tallybook.client.reader.handle import LedgerReader
from tallybook.core.answers import ReadAnswer
from tallybook.core.batch import EntrySlice, cut_entry, decode_header, encode_batch
from tallybook.core.errors import Busy, EntryCorrupt, NoSuchLedger, RecoveryFailed
from tallybook.metadata.ledger.model import DigestType
from tallybook.metadata.store import MetadataStore
from tallybook.sim.memory_bookie.bookie import MemoryBookie

from ..simulated import scenario
from ..support.faulty_metadata import FaultyMetadataStore
from ..support.ledger_scenario import SMALL, eventually, lines, read_all
from ..support.memory_cluster import MemoryCluster
from ..support.tail import BackgroundTail, MetadataOutage
from .parts import written_ledger


@scenario()
async def test_a_tail_of_a_ledger_that_stays_in_recovery_waits_without_hammering(
    cluster: MemoryCluster, client: Client
) -> None:
    ledger = await written_ledger(client, 10)
    await cluster.world.clock.sleep(1)
    ledger.abandon()
    tail = BackgroundTail(cluster, ledger.id)
    await tail.until(lines(10))
    for bookie in cluster.bookies.values():
        await bookie.fence(ledger.id, b"")
    await cluster.world.clock.sleep(1)
    before = tail.outage.reads
    await cluster.world.clock.sleep(60)
    assert tail.outage.reads - before < 30
    await client.recover_ledger(ledger.id)
    await tail.task
    assert tail.seen == lines(10)


@scenario()
async def test_an_idle_tail_leaves_the_metadata_store_alone(cluster: MemoryCluster, client: Client) -> None:
    ledger = await written_ledger(client, 10)
    tail = BackgroundTail(cluster, ledger.id)
    await tail.until(lines(10))
    before = tail.outage.reads
    await cluster.world.clock.sleep(120)
    assert tail.outage.reads - before <= 5
    await ledger.close()
    await tail.task


@scenario()
async def test_a_tail_of_a_ledger_that_is_deleted_says_so(cluster: MemoryCluster, client: Client) -> None:
    ledger = await written_ledger(client, 10)
    tail = BackgroundTail(cluster, ledger.id)
    await tail.until(lines(10))
    await client.delete_ledger(ledger.id)
    with pytest.raises(NoSuchLedger):
        await tail.task


@scenario()
async def test_one_entry_of_an_hmac_ledger_is_checked_as_well_as_a_range(
    cluster: MemoryCluster, client: Client
) -> None:
    """A malicious bookie can compute a checksum of any bytes, but not the digest."""
    ledger = await written_ledger(client, 5, close=True, digest=DigestType.HMAC_SHA256, password=b"key")
    names = ledger.metadata.last_fragment.bookies
    good = cluster.bookies[names[0]].durable_batches(ledger.id)[0]
    header = decode_header(good)
    forged = encode_batch(
        ledger.id, 0, [b"forged"] * header.entry_count, lac=header.lac, ledger_length=header.ledger_length,
        written_at_us=0, digest_key=b"not the ledger's",
    )  # fmt: skip

    async def lie(ledger_id: int, entry_id: int) -> EntrySlice:
        return cut_entry(forged, decode_header(forged), entry_id)

    with pytest.MonkeyPatch.context() as patch:
        for name in names:
            patch.setattr(cluster.bookies[name], "read_entry", lie)
        reader = await client.open_ledger(ledger.id, password=b"key")
        assert [(await reader.read_entry(index)).payload for index in range(5)] == lines(5)
    for name in names:
        cluster.bookies[name].faults.rot(ledger.id, 0)
    with pytest.raises(EntryCorrupt):
        await reader.read_entry(2)


@scenario(bookies=4)
async def test_a_striped_range_waits_for_a_bookie_that_hangs_only_once(cluster: MemoryCluster, client: Client) -> None:
    ledger = await written_ledger(client, 200, close=True, ensemble=4, write_quorum=2, ack_quorum=2, stripe_entries=5)
    reader: LedgerReader = await client.open_ledger(ledger.id)
    hanging = cluster.bookies[ledger.metadata.last_fragment.bookies[0]]
    hanging.pause()
    began = cluster.world.clock.monotonic()
    assert [entry.payload async for entry in reader.read(0, 199)] == lines(200)
    assert cluster.world.clock.monotonic() - began < 2 * 5.0 + 1
    hanging.resume()
    # It is asked last for a while, not for ever.
    await cluster.world.clock.sleep(60)
    assert await read_all(client, ledger.id) == lines(200)


# -- bookies that are busy ------------------------------------------------------------------------


class BusyReads:
    """Makes bookies answer every read with BUSY while ``on``, with different hints; records requests and times."""

    def __init__(self, cluster: MemoryCluster, hints_ms: tuple[int, ...] = (100, 700, 300)) -> None:
        self.on = True
        self.only: str | None = None
        self.asked: list[str] = []
        self.asked_at: list[float] = []
        self._clock = cluster.world.clock
        self._patch = pytest.MonkeyPatch()
        for bookie, hint_ms in zip(cluster.bookies.values(), hints_ms, strict=True):
            self._put_off(bookie, hint_ms)

    def _put_off(self, bookie: MemoryBookie, hint_ms: int) -> None:
        read_batches, read_entry = bookie.read_batches, bookie.read_entry

        def look() -> None:
            self.asked.append(bookie.bookie_id)
            self.asked_at.append(self._clock.monotonic())
            if self.on and self.only in (None, bookie.bookie_id):
                raise Busy("no memory for answers", retry_after_ms=hint_ms)

        async def batches(ledger_id: int, first: int, last: int, max_bytes: int, **how: bool) -> ReadAnswer:
            look()
            return await read_batches(ledger_id, first, last, max_bytes, **how)

        async def entry(ledger_id: int, entry_id: int) -> EntrySlice:
            look()
            return await read_entry(ledger_id, entry_id)

        self._patch.setattr(bookie, "read_batches", batches)
        self._patch.setattr(bookie, "read_entry", entry)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._patch.undo()

    async def relent_after(self, seconds: float) -> None:
        await self._clock.sleep(seconds)
        self.on = False


@scenario()
async def test_reads_wait_for_bookies_that_are_busy_for_a_while(cluster: MemoryCluster, client: Client) -> None:
    ledger = await written_ledger(client, 100, close=True)
    reader = await client.open_ledger(ledger.id)
    with BusyReads(cluster) as busy:
        relenting = asyncio.ensure_future(busy.relent_after(2))
        assert [entry.payload async for entry in reader.read(0, 99)] == lines(100)
        await relenting
        # Three rounds without an answer: the pause is the longest hint of the three bookies.
        rounds = [at for at in busy.asked_at if at < busy.asked_at[0] + 2]
        assert len(rounds) == 9
        assert rounds[3] - rounds[2] >= 0.7
        busy.on = True
        relenting = asyncio.ensure_future(busy.relent_after(2))
        assert (await reader.read_entry(50)).payload == lines(100)[50]
        await relenting


@scenario()
async def test_a_tail_waits_for_bookies_that_are_busy_for_a_while(cluster: MemoryCluster, client: Client) -> None:
    ledger = await written_ledger(client, 10)
    tail = BackgroundTail(cluster, ledger.id)
    await tail.until(lines(10))
    with BusyReads(cluster) as busy:
        await ledger.append_many(lines(10, 10))
        await busy.relent_after(3)
        await tail.until(lines(20))
    await ledger.close()
    await tail.task
    assert tail.seen == lines(20)


@scenario()
async def test_bookies_that_stay_busy_end_a_read_a_tail_and_a_recovery_within_the_request_timeout(
    cluster: MemoryCluster, client: Client
) -> None:
    ledger = await written_ledger(client, 10, close=True)
    left_open = await written_ledger(client, 10)
    await cluster.world.clock.sleep(1)
    left_open.abandon()
    reader = await client.open_ledger(ledger.id)
    with BusyReads(cluster) as busy:
        for attempt in (anext(reader.read(0, 9)), reader.read_entry(3), anext(reader.tail())):
            began = cluster.world.clock.monotonic()
            with pytest.raises(Busy):
                await attempt
            assert 3.0 < cluster.world.clock.monotonic() - began <= 5.0
        began = cluster.world.clock.monotonic()
        with pytest.raises(RecoveryFailed, match="Busy"):
            await client.recover_ledger(left_open.id)
        assert cluster.world.clock.monotonic() - began <= 5.0 + 1
        busy.on = False
        # A busy bookie did answer, so nothing is held against it.
        assert [entry.payload async for entry in reader.read(0, 9)] == lines(10)
    assert await read_all(client, left_open.id) == lines(10)


@scenario()
async def test_a_read_that_waits_for_busy_bookies_ends_at_once_when_cancelled(
    cluster: MemoryCluster, client: Client
) -> None:
    ledger = await written_ledger(client, 10, close=True)
    reader = await client.open_ledger(ledger.id)
    with BusyReads(cluster) as busy:
        reading = asyncio.ensure_future(anext(reader.read(0, 9)))
        await cluster.world.clock.sleep(1)
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
        assert reading.cancelled()
        asked = len(busy.asked_at)
        await cluster.world.clock.sleep(5)
        assert len(busy.asked_at) == asked


@scenario()
async def test_a_busy_bookie_is_not_asked_last_like_one_that_did_not_answer(
    cluster: MemoryCluster, client: Client
) -> None:
    ledger = await written_ledger(client, 10, close=True)
    reader = await client.open_ledger(ledger.id)
    first, second, _ = ledger.metadata.last_fragment.bookies
    with BusyReads(cluster) as busy:
        busy.only = first
        assert (await reader.read_entry(3)).payload == lines(10)[3]
        assert busy.asked == [first, second]
        busy.on = False
        cluster.bookies[second].kill()
        assert (await reader.read_entry(4)).payload == lines(10)[4]
        assert busy.asked == [first, second, first], "the dead one has no connection to be asked over"


# -- metadata of some age -------------------------------------------------------------------------


@scenario()
async def test_a_tail_of_a_ledger_closed_since_it_was_opened_ends_promptly(
    cluster: MemoryCluster, client: Client
) -> None:
    ledger = await written_ledger(client, 10)
    await cluster.world.clock.sleep(1)
    reader = await client.open_ledger(ledger.id, recover=False)
    await ledger.close()
    began = cluster.world.clock.monotonic()
    assert [entry.payload async for entry in reader.tail()] == lines(10)
    assert cluster.world.clock.monotonic() - began < 1


@scenario()
async def test_a_tail_begun_while_the_metadata_store_is_away_follows_without_hammering_it(
    cluster: MemoryCluster, client: Client
) -> None:
    ledger = await written_ledger(client, 10)
    await cluster.world.clock.sleep(1)
    outage, seen = MetadataOutage(), list[bytes]()

    async def follow(reader: LedgerReader) -> None:
        async for entry in reader.tail():
            seen.append(entry.payload)

    def through(store: MetadataStore) -> MetadataStore:
        return FaultyMetadataStore(store, outage, cluster.world.clock)

    async with cluster.client(SMALL, seen_through=through) as other:
        reader = await other.open_ledger(ledger.id, recover=False)
        outage.on, outage.reads = True, 0
        task = asyncio.ensure_future(follow(reader))
        await cluster.world.clock.sleep(60)
        assert 0 < outage.reads < 15
        await ledger.append_many(lines(10, 10))
        await eventually(lambda: seen == lines(20), cluster, seconds=1)
        outage.on = False
        await ledger.close()
        await asyncio.wait_for(task, 30)
    assert seen == lines(20)
