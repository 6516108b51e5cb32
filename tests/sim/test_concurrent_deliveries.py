"""Concurrent drivers that deliver batches of one sink without knowing each other: no batch is lost silently."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import pytest

from tallybook.client.client import Client
from tallybook.core.errors import Conflict, StreamFenced, TallybookError
from tallybook.metadata.ledger_update import LedgerUpdater
from tallybook.metadata.transactions import Transaction, commit
from tallybook.stream import StreamStore, deliveries
from tallybook.stream.catalog.delivery_record import PART, Delivery, DeliveryStage
from tallybook.stream.deliveries import Deliveries

from ..sampling import FULL
from ..simulated import scenario
from ..support.deliveries import DeliveryDriver, rows
from ..support.memory_cluster import MemoryCluster
from .parts import one_stream


@dataclass
class StandStill:
    """Stops drivers between announcing a batch and committing it, by batch number."""

    there: dict[int, asyncio.Event] = field(default_factory=dict)
    gates: dict[int, asyncio.Event] = field(default_factory=dict)

    @classmethod
    @contextmanager
    def of(cls, *numbers: int) -> Iterator[StandStill]:
        found = cls(*({number: asyncio.Event() for number in numbers} for _ in range(2)))

        async def slow(updater: LedgerUpdater, transaction: Transaction, *more: Any) -> bool:
            if transaction.number in found.gates:
                found.there[transaction.number].set()
                await found.gates[transaction.number].wait()
            return await commit(updater, transaction, *more)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(deliveries, "commit", slow)
            yield found


async def two_drivers_between_announce_and_commit(
    cluster: MemoryCluster, client: Client, first: int, second: int, *, second_dies: bool
) -> None:
    """In any case a batch that was reported as delivered is complete, and any other one is absent."""
    async with one_stream(client) as streams:
        one, other = [await DeliveryDriver.start(cluster) for _ in range(2)]
        assert await one.deliver(1, await one.stage(1, rows(2, "before")))
        with StandStill.of(first, second) as still:
            work = [asyncio.ensure_future(one.deliver(first, await one.stage(first, rows(9, "one"))))]
            await still.there[first].wait()
            # The first one has stood still for so long that it is taken for dead.
            await (await streams.writer("s")).close()
            work.append(asyncio.ensure_future(other.deliver(second, await other.stage(second, rows(9, "other")))))
            await still.there[second].wait()
            still.gates[first].set()
            await asyncio.wait(work[:1])
            if second_dies:
                work[1].cancel()
            still.gates[second].set()
            done = await asyncio.gather(*work, return_exceptions=True)
        later = await DeliveryDriver.start(cluster)
        assert await later.deliver(9, await later.stage(9, rows(2, "later")))
        expected = rows(2, "before")
        for name, result in zip(("one", "other"), done, strict=True):
            assert isinstance(result, bool | TallybookError | asyncio.CancelledError), result
            expected += rows(9, name) if result is True else []
        assert await later.payloads() == [*expected, *rows(2, "later")]
        assert isinstance(done[0], Conflict), done
        assert second_dies or done[1] is True, done
        for driver in (one, other, later):
            await driver.close()


@pytest.mark.parametrize(
    ("first", "second", "second_dies"), [(5, 7, False), (7, 5, False), (5, 7, True)], ids=["higher", "lower", "dies"]
)
@scenario()
async def test_a_batch_whose_driver_stood_still_while_another_one_was_announced_is_refused_and_not_lost(
    cluster: MemoryCluster, client: Client, *, first: int, second: int, second_dies: bool
) -> None:
    await two_drivers_between_announce_and_commit(cluster, client, first, second, second_dies=second_dies)


@scenario()
async def test_a_batch_that_another_driver_has_brought_is_not_said_to_be_missing_though_the_next_one_is_there_too(
    cluster: MemoryCluster, client: Client
) -> None:
    there, gate, check = asyncio.Event(), asyncio.Event(), Deliveries._check_announced

    async def slow(self: Deliveries, sink: str, number: int) -> None:
        if not there.is_set():
            there.set()
            await gate.wait()
        await check(self, sink, number)

    async with one_stream(client) as streams:
        one, other = [await DeliveryDriver.start(cluster) for _ in range(2)]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Deliveries, "_check_announced", slow)
            work = asyncio.ensure_future(one.deliver(17, await one.stage(17, rows(3, "seventeen"))))
            await there.wait()
            await (await streams.writer("s")).close()
            for number in (17, 18):
                assert await other.deliver(number, await other.stage(number, rows(3, f"of {number}")))
            gate.set()
            # Its writer was fenced; the next attempt learns the outcome of the batch.
            with pytest.raises(StreamFenced):
                await work
        assert not await one.deliver(17, await one.stage(17, rows(3, "seventeen")))
        # What was staged first is committed: the batch is one of the two, and there once.
        payloads = await other.payloads()
        assert len(payloads) == 6
        assert payloads[3:] == rows(3, "of 18")
        for driver in (one, other):
            await driver.close()


@scenario()
async def test_of_batches_that_are_brought_at_once_and_cut_off_each_is_there_whole_or_not_at_all(
    cluster: MemoryCluster, client: Client
) -> None:
    """Although drivers of one sink do not know each other, are taken for dead, and continue."""
    rng, refused, committed = cluster.world.rng.fork("cuts"), 0, set[int]()

    async def slow(updater: LedgerUpdater, transaction: Transaction, *more: Any) -> bool:
        await cluster.world.clock.sleep(rng.random() * 8)
        if done := await commit(updater, transaction, *more):
            committed.add(transaction.number)
        return done

    async with StreamStore(client) as streams, AsyncExitStack() as stack:
        stack.enter_context(pytest.MonkeyPatch.context()).setattr(deliveries, "commit", slow)
        await streams.create("s", dedup_records=1)
        expected: list[bytes] = []
        for turn in range(40 if FULL else 12):
            drivers = [await DeliveryDriver.start(cluster) for _ in range(3)]
            work = []
            for at, driver in enumerate(drivers):
                staged = await driver.stage(10 * turn + at, rows(9, f"{turn}.{at}"))
                work.append(asyncio.ensure_future(driver.deliver(10 * turn + at, staged)))
            for at in map(int, rng.shuffled(["0", "1", "2"])):
                await cluster.world.clock.sleep(rng.random() * 3)
                with suppress(TallybookError):
                    await (await streams.writer("s")).close()
                if rng.random() < 0.5:
                    work[at].cancel()
            done = await asyncio.gather(*work, return_exceptions=True)
            later = await DeliveryDriver.start(cluster)
            assert await later.deliver(10 * turn + 9, await later.stage(10 * turn + 9, rows(1, f"{turn}.9")))
            seen = await later.payloads()
            assert seen[: len(expected)] == expected
            added, expected = seen[len(expected) :], seen
            assert added[-1:] == rows(1, f"{turn}.9")
            for at, result in enumerate(done):
                mine = [payload for payload in added if payload.startswith(b"%d.%d " % (turn, at))]
                assert mine in ([], rows(9, f"{turn}.{at}"))
                assert mine or (result is not True and 10 * turn + at not in committed), "it is committed"
                assert not (mine and isinstance(result, Conflict)), "it was said not to be there"
                refused += isinstance(result, Conflict)
            for driver in (*drivers, later):
                await driver.close()
        assert refused, "some were refused"
        left = [each async for each in client.list_ledgers()]
        assert [each for each in left if PART in (await client.ledger_metadata(each)).custom] == []


@scenario()
async def test_an_append_that_was_stalled_does_not_replace_the_next_batch(
    cluster: MemoryCluster, client: Client
) -> None:
    gate, there, write = asyncio.Event(), asyncio.Event(), Deliveries._write

    async def slow(self: Deliveries, name: str, delivery: Delivery, known: Any) -> Any:
        found = await write(self, name, delivery, known)
        if delivery.stage is DeliveryStage.APPENDED and not there.is_set():
            there.set()
            await gate.wait()
        return found

    async with StreamStore(client) as streams, AsyncExitStack() as stack:
        stack.enter_context(pytest.MonkeyPatch.context()).setattr(Deliveries, "_write", slow)
        await streams.create("s")
        one, other = [await DeliveryDriver.start(cluster) for _ in range(2)]
        first = asyncio.ensure_future(one.deliver(1, await one.stage(1, rows(9, "one"))))
        await there.wait()
        await (await streams.writer("s")).close()
        still = stack.enter_context(StandStill.of(7))
        second = asyncio.ensure_future(other.deliver(7, await other.stage(7, rows(9, "other"))))
        await still.there[7].wait()
        gate.set()
        with pytest.raises(TallybookError):
            await first
        still.gates[7].set()
        assert await second
        assert await other.payloads() == [*rows(9, "one"), *rows(9, "other")]
        await one.close()
        await other.close()
