"""Batches on their way into a stream: there once, whole and in order, wherever whoever brings them is cut off."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

from tallybook.client.client import Client
from tallybook.core.errors import (
    Conflict,
    DataMissing,
    NoSuchStream,
    OutOfOrder,
    StreamEnded,
    StreamOwned,
    TallybookError,
)
from tallybook.metadata.commits import commit
from tallybook.metadata.transactions import read_sink
from tallybook.sim.stage.cluster import MemoryCluster
from tallybook.sim.stage.deliveries import Driver, rows
from tallybook.sim.stage.scenario import scenario
from tallybook.stream import StreamStore
from tallybook.stream.delivery_record import DELIVERIES, PART, Delivery, Stage, delivered, deliveries_of, staging


@scenario()
async def test_a_batch_that_is_cut_off_anywhere_and_run_again_is_there_once_whole_and_in_order(
    cluster: MemoryCluster, client: Client
) -> None:
    async with StreamStore(client) as streams:
        # A window of one record, and small segments: nothing here depends on either.
        await streams.create("s", dedup_records=1, roll_bytes=1024)
        expected: list[bytes] = []
        rng = cluster.world.rng.fork("cuts")
        for number in range(25):
            first = await Driver.start(cluster)
            ledgers = await first.stage(number, rows(20, f"{number} first"), rows(9, f"{number} second"))
            work = asyncio.ensure_future(first.deliver(number, ledgers))
            await first.cut_off_after(rng.random() * 0.3, work)
            await first.close()
            again = await Driver.start(cluster)
            # Spark may make other rows of a batch that it runs again.
            others = await again.stage(number, rows(7, f"{number} again"))
            await again.deliver(number, others)
            seen = await again.payloads()
            added = seen[len(expected) :]
            assert seen[: len(expected)] == expected
            assert added in (
                [*rows(20, f"{number} first"), *rows(9, f"{number} second")],
                rows(7, f"{number} again"),
            )
            expected = seen
            assert not await again.deliver(number, await again.stage(number, rows(2, "late")))
            assert await again.payloads() == expected
            await again.close()
        left = [each async for each in client.list_ledgers()]
        staged = [each for each in left if PART in (await client.ledger_metadata(each)).custom]
        assert staged == [], "what was staged is deleted"


@scenario()
async def test_a_batch_is_known_again_though_others_have_written_more_than_any_window_since(
    cluster: MemoryCluster, client: Client
) -> None:
    async with StreamStore(client) as streams:
        await streams.create("s", dedup_records=2)
        driver = await Driver.start(cluster)
        ledgers = await driver.stage(4, rows(90))
        cut = 0.0
        while not await driver.payloads():
            cut += 0.005
            await driver.cut_off_after(cut, asyncio.ensure_future(driver.deliver(4, ledgers)))
        before = await driver.payloads()
        assert len(before) < 90, "it was cut off"
        async with await streams.writer("s") as writer:
            await writer.append_many(rows(50, "other"))
        # Whoever comes next completes it, for a sink of its own.
        assert await driver.deliver(0, await driver.stage(0, rows(3, "mine"), sink="other"), sink="other")
        found = await driver.payloads()
        assert [each for each in found if each.startswith(b"row")] == rows(90)
        assert found[: len(before)] == before
        assert found[-3:] == rows(3, "mine")
        assert not await driver.deliver(4, await driver.stage(4, rows(90)))
        assert await driver.payloads() == found
        await driver.close()


@scenario()
async def test_two_who_deliver_the_same_batch_at_once_deliver_it_once(cluster: MemoryCluster, client: Client) -> None:
    async with StreamStore(client) as streams:
        await streams.create("s")
        drivers = [await Driver.start(cluster) for _ in range(2)]
        staged = [await each.stage(1, rows(30, f"driver {at}")) for at, each in enumerate(drivers)]
        done = await asyncio.gather(
            *(each.deliver(1, ledgers) for each, ledgers in zip(drivers, staged, strict=True)), return_exceptions=True
        )
        assert [each for each in done if each is True], done
        winner = done.index(True)
        assert await drivers[0].payloads() == rows(30, f"driver {winner}")
        for each in drivers:
            await each.close()


@scenario()
async def test_a_writer_that_is_there_is_waited_for_and_one_that_goes_on_is_not_fenced(
    cluster: MemoryCluster, client: Client
) -> None:
    async with StreamStore(client) as streams:
        await streams.create("s")
        driver = await Driver.start(cluster)
        ledgers = await driver.stage(0, rows(3))
        writer = await streams.writer("s")
        with pytest.raises(StreamOwned):
            await driver.deliver(0, ledgers)
        await writer.append(b"mine")
        await writer.close()
        assert await driver.deliver(0, ledgers)
        assert await driver.payloads() == [b"mine", *rows(3)]
        await driver.close()


@scenario()
async def test_what_cannot_be_appended_is_refused_before_it_is_committed(
    cluster: MemoryCluster, client: Client
) -> None:
    async with StreamStore(client) as streams:
        await streams.create("s")
        driver = await Driver.start(cluster)
        assert await driver.deliver(0, await driver.stage(0, rows(3), txids=(5, 6, 9)), txids=[(5, 9)])
        low = await driver.stage(1, rows(2), txids=(8, 8))
        with pytest.raises(OutOfOrder, match="transaction id 8 comes after 9"):
            await driver.deliver(1, low, txids=[(8, 8)])
        good = await driver.stage(1, rows(2, "good"), txids=(9, 10))
        assert await driver.deliver(1, good, txids=[(9, 10)])
        assert await driver.payloads() == [*rows(3), *rows(2, "good")]
        with pytest.raises(Conflict, match="belongs to another writer"):
            await driver.deliver(2, await driver.stage(2, rows(1), owner="new"), owner="new")
        await driver.close()


@scenario()
async def test_where_records_are_gone_that_may_have_been_of_a_batch_it_is_said_and_not_guessed(
    cluster: MemoryCluster, client: Client
) -> None:
    async with StreamStore(client) as streams:
        await streams.create("s", roll_bytes=1024)
        driver = await Driver.start(cluster)
        ledgers = await driver.stage(4, rows(200))
        cut = 0.0
        while len(await driver.payloads()) < 30:
            cut += 0.003
            with suppress(TallybookError):
                await driver.cut_off_after(cut, asyncio.ensure_future(driver.deliver(4, ledgers)))
        assert len(await driver.payloads()) < 200, "it was cut off"
        records = [record async for record in streams.reader("s", follow=False)]
        ids = [at for at, record in enumerate(records) if delivered(record.dedup_id) is not None]
        assert len(ids) > 2
        # What is left of it still tells how far it had come.
        await streams.truncate("s", before=records[ids[-2]].position)
        await driver.deliver(4, ledgers)
        assert await driver.payloads() == rows(200)[ids[-2] :]
        await driver.close()


@scenario()
async def test_a_batch_of_which_nothing_is_left_but_a_gap_is_not_written_twice(
    cluster: MemoryCluster, client: Client
) -> None:
    async with StreamStore(client) as streams:
        await streams.create("s")
        driver = await Driver.start(cluster)
        ledgers = await driver.stage(4, rows(400))
        cut = 0.0
        while not (seen := await driver.payloads()):
            cut += 0.003
            await driver.cut_off_after(cut, asyncio.ensure_future(driver.deliver(4, ledgers)))
        assert len(seen) < 400, "it was cut off"
        async with await streams.writer("s") as writer:
            behind = await writer.append(b"behind")
        await streams.truncate("s", before=behind)
        with pytest.raises(DataMissing, match="how much of batch 4 is there cannot be told"):
            await driver.deliver(4, ledgers)
        assert await driver.deliver(0, await driver.stage(0, rows(1), sink="other"), sink="other"), "others go on"
        assert await driver.payloads() == [b"behind", *rows(1)]
        await driver.close()


@scenario()
async def test_with_its_stream_a_delivery_goes(cluster: MemoryCluster, client: Client) -> None:
    async with StreamStore(client) as streams:
        await streams.create("s")
        driver = await Driver.start(cluster)
        assert await driver.deliver(0, await driver.stage(0, rows(3)))
        assert await driver.words(DELIVERIES)
        late = await driver.stage(1, rows(3))
        await streams.delete("s")
        assert await driver.words(DELIVERIES) == await driver.words("sinks/") == []
        with pytest.raises(NoSuchStream):
            await driver.deliver(1, late)
        await streams.create("s")
        with pytest.raises(NoSuchStream, match="there is another one of its name"):
            await driver.deliver(1, late)
        assert await driver.payloads() == []
        await driver.close()


@scenario()
async def test_a_batch_whose_driver_died_after_the_commit_is_completed_by_the_keeper(
    cluster: MemoryCluster, client: Client
) -> None:
    async with StreamStore(client) as streams:
        await streams.create("s", dedup_records=1)
        driver = await Driver.start(cluster)
        staged = await driver.stage(0, rows(300), rows(300, "later"))
        done = False
        for number in range(200):
            work = asyncio.ensure_future(driver.deliver(0, staged))
            done = await driver.cut_off_after(0.002 * (number + 1), work)
            last = await read_sink(driver.store, staging(driver.stream_id, "sales", 0).sink)
            if last.record.last.number == 0:
                break
        assert not done, "cut off between the commit and the end"
        await driver.close()
        await cluster.world.clock.sleep(20)
        assert await streams.keep() == 0
        assert [record.payload async for record in streams.reader("s", follow=False)] == [
            *rows(300),
            *rows(300, "later"),
        ]
        left = [ledger_id async for ledger_id in client.list_ledgers()]
        assert not set(staged) & set(left), "what was staged is deleted"
        assert await streams.keep() == 0


@scenario()
async def test_the_keeper_does_not_take_a_stream_from_who_is_bringing_a_batch(
    cluster: MemoryCluster, client: Client
) -> None:
    async with StreamStore(client) as streams:
        await streams.create("s")
        driver = await Driver.start(cluster)
        staged = await driver.stage(0, rows(900))
        work = asyncio.ensure_future(driver.deliver(0, staged))
        kept = []
        while not work.done():
            kept.append(await streams.keep())
            await cluster.world.clock.sleep(0.01)
        assert await work
        assert set(kept) == {0}
        assert await driver.payloads() == rows(900)
        await driver.close()


@scenario()
async def test_a_batch_that_can_never_be_appended_keeps_nobody_else_from_the_stream(
    cluster: MemoryCluster, client: Client
) -> None:
    """Its driver died behind the commit, and before it is completed somebody appends a higher transaction id."""
    async with StreamStore(client) as streams:
        await streams.create("s")
        driver = await Driver.start(cluster)
        staged = await driver.stage(0, rows(300), txids=range(300))
        for number in range(200):
            work = asyncio.ensure_future(driver.deliver(0, staged))
            assert not await driver.cut_off_after(0.002 * (number + 1), work)
            last = await read_sink(driver.store, staging(driver.stream_id, "sales", 0).sink)
            if last.record.last.number == 0:
                break
        await driver.close()
        async with await streams.writer("s") as writer:
            await writer.append(b"high", txid=10_000)
        other = await Driver.start(cluster)
        assert await other.deliver(0, await other.stage(0, rows(2, "mine"), sink="other"), sink="other")
        assert (await other.payloads())[-2:] == rows(2, "mine")
        with pytest.raises(OutOfOrder, match=r"batch 0 of sink sales.*under another name of the sink"):
            await other.deliver(0, staged)
        await other.close()
        segments = (await streams.info("s")).segments
        assert await streams.keep() == await streams.keep() == 0
        assert (await streams.info("s")).segments == segments, "the keeper does not try again and again"


@scenario()
async def test_how_far_a_batch_is_is_not_looked_for_in_another_stream_that_has_the_name_by_now(
    cluster: MemoryCluster, client: Client
) -> None:
    async with StreamStore(client) as streams:
        await streams.create("s")
        driver = await Driver.start(cluster)
        staged = await driver.stage(0, rows(9))
        assert await driver.deliver(0, staged)
        async with await streams.writer("s") as writer:
            await streams.rename("s", "t")
            await streams.create("s")
            with pytest.raises(NoSuchStream, match="was renamed"):
                await driver.deliveries._reached(writer, Delivery(0, 0), set(staged))
        await driver.close()


@scenario()
async def test_what_was_committed_for_a_stream_that_was_deleted_by_then_is_deleted_too(
    cluster: MemoryCluster, client: Client
) -> None:
    async with StreamStore(client) as streams:
        await streams.create("s")
        driver = await Driver.start(cluster)
        staged = await driver.stage(0, rows(9))
        await streams.delete("s")
        # What is left of ``deliver`` where the writer does not know it yet.
        await driver.store.write_record(deliveries_of(driver.stream_id) + "sales", Delivery(0, 0).encode(), None)
        assert await commit(driver.store, driver.updater, staging(driver.stream_id, "sales", 0), staged)
        assert await streams.keep() == 0
        assert await driver.words(DELIVERIES) == await driver.words("sinks/") == []
        assert not set(staged) & {ledger_id async for ledger_id in client.list_ledgers()}
        await driver.close()


@scenario()
async def test_a_batch_of_another_owner_does_not_take_the_place_of_one_that_is_announced(
    cluster: MemoryCluster, client: Client
) -> None:
    async with StreamStore(client) as streams:
        await streams.create("s")
        driver = await Driver.start(cluster)
        assert await driver.deliver(0, await driver.stage(0, rows(2), owner="old"), owner="old")
        staged = await driver.stage(1, rows(9, "first"), owner="old")
        async with await streams.writer("s") as writer:
            await driver.deliveries._announce(writer, "sales", 1)
        with pytest.raises(Conflict, match="belongs to another writer"):
            await driver.deliver(2, await driver.stage(2, rows(1), owner="new"), owner="new")
        # Its driver stood still meanwhile, and does not know yet that the stream is not its own any more.
        assert await commit(driver.store, driver.updater, staging(driver.stream_id, "sales", 1, "old"), staged)
        again = await driver.stage(1, rows(9, "again"), owner="old")
        assert not await driver.deliver(1, again, owner="old")
        assert await driver.payloads() == [*rows(2), *rows(9, "first")]
        await driver.close()


@scenario()
async def test_a_batch_that_was_cut_off_before_its_stream_was_ended_is_given_up_and_told(
    cluster: MemoryCluster, client: Client
) -> None:
    async with StreamStore(client) as streams:
        await streams.create("s")
        driver = await Driver.start(cluster)
        staged = await driver.stage(0, rows(900))
        cut = 0.0
        while not (seen := await driver.payloads()):
            cut += 0.003
            assert not await driver.cut_off_after(cut, asyncio.ensure_future(driver.deliver(0, staged)))
        assert len(seen) < 900, "it was cut off"
        async with await streams.writer("s") as writer:
            await writer.end_stream()
        assert await streams.keep() == 0
        record = await driver.store.read_record(deliveries_of(driver.stream_id) + "sales", linearizable=True)
        assert record is not None
        assert Delivery.decode("", record.value).stage is Stage.GIVEN_UP
        with pytest.raises(StreamEnded):
            await driver.deliver(0, staged)
        await driver.close()
