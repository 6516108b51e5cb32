"""Delivery of batches to a stream: exactly once, complete and in order, wherever the driver dies."""

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
    QuotaExceeded,
    StreamEnded,
    StreamOwned,
    TallybookError,
)
from tallybook.metadata.transactions import commit, last_committed, read_sink
from tallybook.stream import StreamStore
from tallybook.stream.catalog.delivery_record import (
    DELIVERIES,
    PART,
    Delivery,
    DeliveryStage,
    delivered,
    deliveries_of,
    staging,
)

from ..sampling import FULL
from ..simulated import scenario
from ..support.deliveries import DeliveryDriver, rows
from ..support.memory_cluster import MemoryCluster
from .parts import delivering, one_stream


async def partly_delivered(driver: DeliveryDriver, number: int, ledgers: list[int], *, most: int) -> list[bytes]:
    """Cut off the delivery of a batch later and later, until the stream has some of its ``most`` records."""
    cut = 0.0
    while not (seen := await driver.payloads()):
        cut += 0.003
        assert not await driver.cut_off_after(cut, asyncio.ensure_future(driver.deliver(number, ledgers)))
    assert len(seen) < most, "it was cut off"
    return seen


async def until_committed(driver: DeliveryDriver, ledgers: list[int]) -> None:
    """Cut off the delivery of batch 0 later and later, until it is committed and not at its end."""
    for number in range(200):
        work = asyncio.ensure_future(driver.deliver(0, ledgers))
        assert not await driver.cut_off_after(0.002 * (number + 1), work)
        last = await read_sink(driver.store, staging(driver.stream_id, "sales", 0).sink)
        if last.record.last.number == 0:
            return
    raise AssertionError("it was never committed")


@scenario()
async def test_a_batch_that_is_cut_off_anywhere_and_run_again_is_there_once_whole_and_in_order(
    cluster: MemoryCluster, client: Client
) -> None:
    async with StreamStore(client) as streams:
        # A window of one record, and small segments: nothing here depends on either.
        await streams.create("s", dedup_records=1, roll_bytes=1024)
        expected: list[bytes] = []
        rng = cluster.world.rng.fork("cuts")
        for number in range(25 if FULL else 9):
            first = await DeliveryDriver.start(cluster)
            ledgers = await first.stage(number, rows(20, f"{number} first"), rows(9, f"{number} second"))
            work = asyncio.ensure_future(first.deliver(number, ledgers))
            await first.cut_off_after(rng.random() * 0.3, work)
            await first.close()
            again = await DeliveryDriver.start(cluster)
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
    async with delivering(cluster, client, dedup_records=2) as (streams, driver):
        ledgers = await driver.stage(4, rows(90))
        before = await partly_delivered(driver, 4, ledgers, most=90)
        async with await streams.writer("s") as writer:
            await writer.append_many(rows(50, "other"))
        # The next driver completes it, also one of another sink.
        assert await driver.deliver(0, await driver.stage(0, rows(3, "mine"), sink="other"), sink="other")
        found = await driver.payloads()
        assert [each for each in found if each.startswith(b"row")] == rows(90)
        assert found[: len(before)] == before
        assert found[-3:] == rows(3, "mine")
        assert not await driver.deliver(4, await driver.stage(4, rows(90)))
        assert await driver.payloads() == found


@scenario()
async def test_two_drivers_that_deliver_the_same_batch_deliver_it_once(cluster: MemoryCluster, client: Client) -> None:
    async with one_stream(client):
        drivers = [await DeliveryDriver.start(cluster) for _ in range(2)]
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
async def test_a_living_writer_is_awaited_and_one_that_continues_is_not_fenced(
    cluster: MemoryCluster, client: Client
) -> None:
    async with delivering(cluster, client) as (streams, driver):
        ledgers = await driver.stage(0, rows(3))
        writer = await streams.writer("s")
        with pytest.raises(StreamOwned):
            await driver.deliver(0, ledgers)
        await writer.append(b"mine")
        await writer.close()
        assert await driver.deliver(0, ledgers)
        assert await driver.payloads() == [b"mine", *rows(3)]


@scenario()
async def test_what_cannot_be_appended_is_refused_before_it_is_committed(
    cluster: MemoryCluster, client: Client
) -> None:
    async with delivering(cluster, client) as (_, driver):
        assert await driver.deliver(0, await driver.stage(0, rows(3), txids=(5, 6, 9)), txids=[(5, 9)])
        low = await driver.stage(1, rows(2), txids=(8, 8))
        with pytest.raises(OutOfOrder, match="transaction id 8 comes after 9"):
            await driver.deliver(1, low, txids=[(8, 8)])
        good = await driver.stage(1, rows(2, "good"), txids=(9, 10))
        assert await driver.deliver(1, good, txids=[(9, 10)])
        assert await driver.payloads() == [*rows(3), *rows(2, "good")]
        with pytest.raises(Conflict, match="belongs to another writer"):
            await driver.deliver(2, await driver.stage(2, rows(1), owner="new"), owner="new")


@scenario()
async def test_if_records_that_may_belong_to_a_batch_are_gone_an_error_is_raised(
    cluster: MemoryCluster, client: Client
) -> None:
    async with delivering(cluster, client, roll_bytes=1024) as (streams, driver):
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
        # The rest of it still shows its progress.
        await streams.truncate("s", before=records[ids[-2]].position)
        await driver.deliver(4, ledgers)
        assert await driver.payloads() == rows(200)[ids[-2] :]


@scenario()
async def test_a_batch_of_which_nothing_is_left_but_a_gap_is_not_written_twice(
    cluster: MemoryCluster, client: Client
) -> None:
    async with delivering(cluster, client) as (streams, driver):
        ledgers = await driver.stage(4, rows(400))
        await partly_delivered(driver, 4, ledgers, most=400)
        async with await streams.writer("s") as writer:
            behind = await writer.append(b"behind")
        await streams.truncate("s", before=behind)
        with pytest.raises(DataMissing, match="unknown how much of batch 4 is there"):
            await driver.deliver(4, ledgers)
        assert await driver.deliver(0, await driver.stage(0, rows(1), sink="other"), sink="other"), "others go on"
        assert await driver.payloads() == [b"behind", *rows(1)]


@scenario()
async def test_with_its_stream_a_delivery_goes(cluster: MemoryCluster, client: Client) -> None:
    async with delivering(cluster, client) as (streams, driver):
        assert await driver.deliver(0, await driver.stage(0, rows(3)))
        assert await driver.record_names(DELIVERIES)
        late = await driver.stage(1, rows(3))
        await streams.delete("s")
        assert await driver.record_names(DELIVERIES) == await driver.record_names("sinks/") == []
        with pytest.raises(NoSuchStream):
            await driver.deliver(1, late)
        await streams.create("s")
        with pytest.raises(NoSuchStream, match="there is another one of its name"):
            await driver.deliver(1, late)
        assert await driver.payloads() == []


@scenario()
async def test_a_batch_whose_driver_died_after_the_commit_is_completed_by_the_keeper(
    cluster: MemoryCluster, client: Client
) -> None:
    async with one_stream(client, dedup_records=1) as streams:
        driver = await DeliveryDriver.start(cluster)
        staged = await driver.stage(0, rows(300), rows(300, "later"))
        await until_committed(driver, staged)
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
async def test_the_janitor_does_not_take_a_stream_from_a_driver_that_delivers(
    cluster: MemoryCluster, client: Client
) -> None:
    async with delivering(cluster, client) as (streams, driver):
        staged = await driver.stage(0, rows(900))
        work = asyncio.ensure_future(driver.deliver(0, staged))
        kept = []
        while not work.done():
            kept.append(await streams.keep())
            await cluster.world.clock.sleep(0.01)
        assert await work
        assert set(kept) == {0}
        assert await driver.payloads() == rows(900)


@scenario()
async def test_a_batch_that_can_never_be_appended_does_not_block_the_stream(
    cluster: MemoryCluster, client: Client
) -> None:
    """The driver dies after the commit; another writer appends a higher transaction id before the delivery."""
    async with one_stream(client) as streams:
        driver = await DeliveryDriver.start(cluster)
        staged = await driver.stage(0, rows(300), txids=range(300))
        await until_committed(driver, staged)
        await driver.close()
        async with await streams.writer("s") as writer:
            await writer.append(b"high", txid=10_000)
        other = await DeliveryDriver.start(cluster)
        assert await other.deliver(0, await other.stage(0, rows(2, "mine"), sink="other"), sink="other")
        assert (await other.payloads())[-2:] == rows(2, "mine")
        with pytest.raises(OutOfOrder, match=r"batch 0 of sink sales.*use another sink name"):
            await other.deliver(0, staged)
        await other.close()
        segments = (await streams.info("s")).segments
        assert await streams.keep() == await streams.keep() == 0
        assert (await streams.info("s")).segments == segments, "the keeper does not try again and again"


@scenario()
async def test_how_far_a_batch_is_is_not_looked_for_in_another_stream_that_has_the_name_by_now(
    cluster: MemoryCluster, client: Client
) -> None:
    async with delivering(cluster, client) as (streams, driver):
        staged = await driver.stage(0, rows(9))
        assert await driver.deliver(0, staged)
        async with await streams.writer("s") as writer:
            await streams.rename("s", "t")
            await streams.create("s")
            with pytest.raises(NoSuchStream, match="was renamed"):
                await driver.deliveries._reached(writer, Delivery(0, 0), set(staged))


@scenario()
async def test_a_batch_committed_for_a_deleted_stream_is_deleted_too(cluster: MemoryCluster, client: Client) -> None:
    async with delivering(cluster, client) as (streams, driver):
        staged = await driver.stage(0, rows(9))
        await streams.delete("s")
        # What is left of ``deliver`` where the writer does not know it yet.
        await driver.store.write_record(deliveries_of(driver.stream_id) + "sales", Delivery(0, 0).encode(), None)
        assert await commit(driver.updater, staging(driver.stream_id, "sales", 0), staged)
        assert await streams.keep() == 0
        assert await driver.record_names(DELIVERIES) == await driver.record_names("sinks/") == []
        assert not set(staged) & {ledger_id async for ledger_id in client.list_ledgers()}


@scenario()
async def test_a_batch_of_another_owner_does_not_replace_an_announced_one(
    cluster: MemoryCluster, client: Client
) -> None:
    async with delivering(cluster, client) as (streams, driver):
        assert await driver.deliver(0, await driver.stage(0, rows(2), owner="old"), owner="old")
        staged = await driver.stage(1, rows(9, "first"), owner="old")
        async with await streams.writer("s") as writer:
            await driver.deliveries._announce(writer, "sales", 1)
        with pytest.raises(Conflict, match="belongs to another writer"):
            await driver.deliver(2, await driver.stage(2, rows(1), owner="new"), owner="new")
        # Its driver stood still meanwhile, and does not know yet that the stream is not its own any more.
        assert await commit(driver.updater, staging(driver.stream_id, "sales", 1, "old"), staged)
        again = await driver.stage(1, rows(9, "again"), owner="old")
        assert not await driver.deliver(1, again, owner="old")
        assert await driver.payloads() == [*rows(2), *rows(9, "first")]


@scenario()
async def test_a_batch_interrupted_before_its_stream_was_ended_is_given_up_and_reported(
    cluster: MemoryCluster, client: Client
) -> None:
    async with delivering(cluster, client) as (streams, driver):
        staged = await driver.stage(0, rows(900))
        await partly_delivered(driver, 0, staged, most=900)
        async with await streams.writer("s") as writer:
            await writer.seal()
        assert await streams.keep() == 0
        record = await driver.store.read_record(deliveries_of(driver.stream_id) + "sales", linearizable=True)
        assert record is not None
        assert Delivery.decode("", record.value).stage is DeliveryStage.GIVEN_UP
        with pytest.raises(StreamEnded):
            await driver.deliver(0, staged)


@scenario()
async def test_a_full_stream_refuses_a_batch_before_it_is_committed_and_completes_a_committed_one(
    cluster: MemoryCluster, client: Client
) -> None:
    async with delivering(cluster, client) as (streams, driver):
        assert await driver.deliver(0, await driver.stage(0, rows(100)))
        ledgers = await driver.stage(1, rows(5, "committed"))
        work = asyncio.ensure_future(driver.deliver(1, ledgers))
        sink = staging(driver.stream_id, "sales", 1, "").sink
        while (found := await last_committed(driver.store, sink)) is None or found.number != 1:
            await cluster.world.clock.sleep(0.001)
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)
        await streams.set_policy("s", max_bytes=1024)
        with pytest.raises(QuotaExceeded):
            await driver.deliver(2, await driver.stage(2, rows(5, "refused")))
        assert await driver.payloads() == [*rows(100), *rows(5, "committed")]
        await streams.set_policy("s", max_bytes=None)
        assert await driver.deliver(2, await driver.stage(2, rows(5, "later")))
        assert (await driver.payloads())[105:] == rows(5, "later")
