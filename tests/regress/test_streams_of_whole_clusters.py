"""Stream faults found by the simulation: concurrent changes, and bookies or processes that are away."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Never

import pytest

from tallybook.client.client import Client
from tallybook.client.reader.handle import LedgerReader
from tallybook.core.errors import EntryCorrupt, MetadataUnavailable, NoSuchSubscription
from tallybook.metadata.stream_use import CURSOR
from tallybook.stream import StreamStore

from ..simulated import scenario
from ..support.ledger_scenario import SMALL
from .stream_parts import on_streams

Condition = Callable[[bytes], bool]


async def cursor_ledgers(client: Client) -> list[int]:
    """Ledgers of subscriptions, named by any record."""
    found = [ledger_id async for ledger_id in client.list_ledgers()]
    return [ledger_id for ledger_id in found if CURSOR in (await client.ledger_metadata(ledger_id)).custom]


@on_streams
async def test_a_subscription_whose_deletion_was_cut_off_is_deleted_with_its_ledger(streams, client):
    await streams.create("s")
    async with await streams.writer("s") as writer:
        position = await writer.append(b"done with")
    billing = await streams.subscribe("s", "billing")
    await billing.advance(position)

    async def away(ledger_id: int, *, force: bool) -> None:
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


@on_streams
async def test_a_cursor_ledger_made_while_its_subscription_is_deleted_is_deleted_too(streams, client):
    await streams.create("s")
    async with await streams.writer("s") as writer:
        position = await writer.append(b"done with")
    await (await streams.subscribe("s", "billing")).close()
    updater = streams._subscriptions._updater
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


@on_streams
async def test_a_commit_whose_segment_has_failed_returns_once_the_writer_goes_on(cluster, client):
    async with StreamStore(client) as streams, cluster.client(SMALL) as other:
        await streams.create("s")
        async with await streams.writer("s") as writer:
            await writer.append(b"confirmed")
            await other.recover_ledger(writer._segments._current.ledger.id)
            async with asyncio.timeout(10):
                await writer.commit()
        assert [record.payload async for record in streams.reader("s", follow=False)] == [b"confirmed"]


@scenario()
async def test_a_reader_does_not_skip_entries_that_an_unavailable_bookie_may_have(cluster, client):
    def one_is_away(self: LedgerReader, first: int, last: int) -> Never:
        error = EntryCorrupt("one copy is damaged, and whoever has the other is away")
        error.settled = False
        raise error

    async with StreamStore(client) as streams:
        await streams.create("s")
        async with await streams.writer("s") as writer:
            await writer.append(b"there", dedup_id=b"1")
        reader = streams.reader("s", follow=False, gaps="yield")
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(LedgerReader, "read_batches", one_is_away)
            with pytest.raises(EntryCorrupt):
                _ = [batch async for batch in reader.batches()]
            # A writer that does not learn all ids would append one of them again.
            with pytest.raises(EntryCorrupt):
                await streams.writer("s")
        assert [record.payload async for record in reader] == [b"there"]
