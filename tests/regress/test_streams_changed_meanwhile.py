"""What was wrong where somebody changed a stream, or a subscription, just while another one was at it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from tallybook.client.client import Client
from tallybook.core.errors import MetadataUnavailable, NoSuchSubscription
from tallybook.sim.stage.cluster import MemoryCluster
from tallybook.sim.stage.scenario import SMALL, scenario
from tallybook.stream import StreamStore
from tallybook.stream.subscription.handle import CURSOR

Condition = Callable[[bytes], bool]


async def cursor_ledgers(client: Client) -> list[int]:
    """Ledgers of subscriptions, whoever names them."""
    found = [ledger_id async for ledger_id in client.list_ledgers()]
    return [ledger_id for ledger_id in found if CURSOR in (await client.ledger_metadata(ledger_id)).custom]


@scenario()
async def test_a_subscription_whose_deletion_was_cut_off_is_deleted_with_its_ledger(
    cluster: MemoryCluster, client: Client
) -> None:
    async with StreamStore(client) as streams:
        await streams.create("s")
        async with await streams.writer("s") as writer:
            position = await writer.append(b"done with")
        billing = await streams.subscribe("s", "billing")
        await billing.advance(position)

        async def away(ledger_id: int) -> None:
            raise MetadataUnavailable(f"nobody hears of ledger {ledger_id}")

        with pytest.MonkeyPatch.context() as cut_off:
            cut_off.setattr(client, "delete_ledger", away)
            with pytest.raises(MetadataUnavailable):
                await streams.unsubscribe("s", "billing")
        await streams.unsubscribe("s", "billing")
        assert await cursor_ledgers(client) == []
        with pytest.raises(NoSuchSubscription):
            await streams.unsubscribe("s", "billing")
        billing.abandon()


@scenario()
async def test_a_cursor_ledger_made_while_its_subscription_is_deleted_is_deleted_too(
    cluster: MemoryCluster, client: Client
) -> None:
    async with StreamStore(client) as streams:
        await streams.create("s")
        async with await streams.writer("s") as writer:
            position = await writer.append(b"done with")
        await (await streams.subscribe("s", "billing")).close()
        updater = streams._shelf._updater
        delete = updater.delete

        async def take_and_delete(name: str, *condition: Condition) -> None:
            updater.delete = delete
            billing = await streams.subscribe("s", "billing")
            await billing.advance(position)
            billing.abandon()
            assert len(await cursor_ledgers(client)) == 1
            await delete(name, *condition)

        updater.delete = take_and_delete
        await streams.unsubscribe("s", "billing")
        assert await cursor_ledgers(client) == []


@scenario()
async def test_a_commit_whose_segment_has_failed_returns_once_the_writer_goes_on(
    cluster: MemoryCluster, client: Client
) -> None:
    async with StreamStore(client) as streams, cluster.client(SMALL) as other:
        await streams.create("s")
        async with await streams.writer("s") as writer:
            await writer.append(b"confirmed")
            await other.recover_ledger(writer._segments._current.ledger.id)
            async with asyncio.timeout(10):
                await writer.commit()
        assert [record.payload async for record in streams.reader("s", follow=False)] == [b"confirmed"]
