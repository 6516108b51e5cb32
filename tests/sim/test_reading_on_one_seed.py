"""Readers on virtual time: tails through recoveries, deletions and outages; bookies that lie, or hang."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Self

import pytest

from tallybook.client.client import Client
from tallybook.client.reader.handle import LedgerReader
from tallybook.core.answers import ReadAnswer
from tallybook.core.batch import Entry, EntrySlice, cut_entry, decode_header, encode_batch
from tallybook.core.errors import BookieUnavailable, Busy, EntryCorrupt, NoSuchLedger, RecoveryFailed
from tallybook.metadata.faulty import FaultyStore
from tallybook.metadata.model import DigestType
from tallybook.metadata.store import MetadataStore
from tallybook.sim.stage.cluster import MemoryCluster
from tallybook.sim.stage.memory_bookie import MemoryBookie
from tallybook.sim.stage.scenario import SMALL, eventually, lines, read_all, scenario
from tallybook.sim.stage.tail import Outage, Tail


@scenario()
async def test_a_tail_follows_through_a_recovery_to_the_end_it_settles(cluster: MemoryCluster, client: Client) -> None:
    ledger = await client.create_ledger()
    await ledger.append_many(lines(30))
    tail = Tail(cluster, ledger.id)
    await tail.until(lines(30))
    for payload in lines(5, 30):
        ledger.append_nowait(payload)
    async with cluster.client(SMALL) as other:
        closed = await other.recover_ledger(ledger.id)
    await tail.task
    assert tail.seen == lines(closed.last_entry_id + 1)


@scenario()
async def test_a_tail_of_a_ledger_that_stays_in_recovery_waits_without_hammering(
    cluster: MemoryCluster, client: Client
) -> None:
    ledger = await client.create_ledger()
    await ledger.append_many(lines(10))
    await cluster.world.clock.sleep(1)
    ledger.abandon()
    tail = Tail(cluster, ledger.id)
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
    ledger = await client.create_ledger()
    await ledger.append_many(lines(10))
    tail = Tail(cluster, ledger.id)
    await tail.until(lines(10))
    before = tail.outage.reads
    await cluster.world.clock.sleep(120)
    assert tail.outage.reads - before <= 5
    await ledger.close()
    await tail.task


@scenario()
async def test_a_tail_of_a_ledger_that_is_deleted_says_so(cluster: MemoryCluster, client: Client) -> None:
    ledger = await client.create_ledger()
    await ledger.append_many(lines(10))
    tail = Tail(cluster, ledger.id)
    await tail.until(lines(10))
    await client.delete_ledger(ledger.id)
    with pytest.raises(NoSuchLedger):
        await tail.task


@scenario()
async def test_a_tail_goes_on_with_one_bookie_dead(cluster: MemoryCluster, client: Client) -> None:
    ledger = await client.create_ledger()
    await ledger.append_many(lines(10))
    tail = Tail(cluster, ledger.id)
    await tail.until(lines(10))
    cluster.bookies[ledger.metadata.last_fragment.bookies[0]].kill()
    for start in range(10, 50, 10):
        await ledger.append_many(lines(10, start))
        await cluster.world.clock.sleep(3)
        assert tail.seen == lines(start + 10)
    await ledger.close()
    await tail.task
    assert tail.seen == lines(50)


@scenario()
async def test_a_tail_outlasts_an_outage_of_the_metadata_store(cluster: MemoryCluster, client: Client) -> None:
    ledger = await client.create_ledger()
    await ledger.append_many(lines(10))
    tail = Tail(cluster, ledger.id)
    await tail.until(lines(10))
    tail.outage.on = True
    await cluster.world.clock.sleep(60)
    await ledger.append_many(lines(10, 10))
    await tail.until(lines(20))
    await ledger.close()
    await cluster.world.clock.sleep(20)
    assert not tail.task.done(), "it cannot know of the close yet"
    tail.outage.on = False
    await asyncio.wait_for(tail.task, 30)
    assert tail.seen == lines(20)


@scenario()
async def test_an_abandoned_tail_leaves_nothing_behind(cluster: MemoryCluster, client: Client) -> None:
    ledger = await client.create_ledger()
    await ledger.append_many(lines(10))
    await cluster.world.clock.sleep(1)
    reader = await client.open_ledger(ledger.id, recover=False)
    tail: AsyncIterator[Entry] = reader.tail(10)
    waiting = asyncio.ensure_future(anext(tail))
    await cluster.world.clock.sleep(1)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    # The next long poll of the same reader is in order, and so is the ledger.
    tail = reader.tail(10)
    waiting = asyncio.ensure_future(anext(tail))
    await ledger.append(b"more")
    assert (await waiting).payload == b"more"
    await ledger.close()
    assert [entry async for entry in tail] == []


@scenario()
async def test_a_reader_that_does_not_recover_needs_coverage_to_open(cluster: MemoryCluster, client: Client) -> None:
    ledger = await client.create_ledger()
    await ledger.append_many(lines(10))
    await cluster.world.clock.sleep(1)
    names = ledger.metadata.last_fragment.bookies
    cluster.bookies[names[0]].kill()
    assert (await client.open_ledger(ledger.id, recover=False)).last_add_confirmed == 9
    cluster.bookies[names[1]].kill()
    with pytest.raises(BookieUnavailable, match=f"no answer from .*{names[1]}"):
        await client.open_ledger(ledger.id, recover=False)
    cluster.bookies[names[0]].restart()
    assert (await client.open_ledger(ledger.id, recover=False)).last_add_confirmed == 9


@scenario()
async def test_one_entry_of_an_hmac_ledger_is_checked_as_well_as_a_range(
    cluster: MemoryCluster, client: Client
) -> None:
    """A lying bookie can make a checksum for any bytes, but not the digest."""
    async with await client.create_ledger(digest=DigestType.HMAC_SHA256, password=b"key") as ledger:
        await ledger.append_many(lines(5))
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
    async with await client.create_ledger(ensemble=4, write_quorum=2, ack_quorum=2, stripe_entries=5) as ledger:
        await ledger.append_many(lines(200))
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
    """Bookies that answer every read BUSY while ``on``, each with a hint of its own; who was asked, and when."""

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

        async def batches(ledger_id: int, first: int, last: int, max_bytes: int) -> ReadAnswer:
            look()
            return await read_batches(ledger_id, first, last, max_bytes)

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
    async with await client.create_ledger() as ledger:
        await ledger.append_many(lines(100))
    reader = await client.open_ledger(ledger.id)
    with BusyReads(cluster) as busy:
        relenting = asyncio.ensure_future(busy.relent_after(2))
        assert [entry.payload async for entry in reader.read(0, 99)] == lines(100)
        await relenting
        # Three rounds found nobody: the pause is the longest that any of the three named.
        rounds = [at for at in busy.asked_at if at < busy.asked_at[0] + 2]
        assert len(rounds) == 9
        assert rounds[3] - rounds[2] >= 0.7
        busy.on = True
        relenting = asyncio.ensure_future(busy.relent_after(2))
        assert (await reader.read_entry(50)).payload == lines(100)[50]
        await relenting


@scenario()
async def test_a_tail_waits_for_bookies_that_are_busy_for_a_while(cluster: MemoryCluster, client: Client) -> None:
    ledger = await client.create_ledger()
    await ledger.append_many(lines(10))
    tail = Tail(cluster, ledger.id)
    await tail.until(lines(10))
    with BusyReads(cluster) as busy:
        await ledger.append_many(lines(10, 10))
        await busy.relent_after(3)
        await tail.until(lines(20))
    await ledger.close()
    await tail.task
    assert tail.seen == lines(20)


@scenario()
async def test_a_recovery_waits_for_bookies_that_are_too_busy_to_read_its_end(
    cluster: MemoryCluster, client: Client
) -> None:
    ledger = await client.create_ledger()
    await ledger.append_many(lines(50))
    await cluster.world.clock.sleep(1)
    ledger.abandon()
    with BusyReads(cluster) as busy:
        relenting = asyncio.ensure_future(busy.relent_after(3))
        closed = await client.recover_ledger(ledger.id)
        await relenting
        assert len(busy.asked_at) > 3
    assert closed.last_entry_id == 49
    assert await read_all(client, ledger.id) == lines(50)


@scenario()
async def test_bookies_that_stay_busy_end_a_read_a_tail_and_a_recovery_within_the_request_timeout(
    cluster: MemoryCluster, client: Client
) -> None:
    async with await client.create_ledger() as ledger:
        await ledger.append_many(lines(10))
    left_open = await client.create_ledger()
    await left_open.append_many(lines(10))
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
    async with await client.create_ledger() as ledger:
        await ledger.append_many(lines(10))
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
    async with await client.create_ledger() as ledger:
        await ledger.append_many(lines(10))
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
    ledger = await client.create_ledger()
    await ledger.append_many(lines(10))
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
    ledger = await client.create_ledger()
    await ledger.append_many(lines(10))
    await cluster.world.clock.sleep(1)
    outage, seen = Outage(), list[bytes]()

    async def follow(reader: LedgerReader) -> None:
        async for entry in reader.tail():
            seen.append(entry.payload)

    def through(store: MetadataStore) -> MetadataStore:
        return FaultyStore(store, outage, cluster.world.clock)

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
