"""Ledgers of a living stream can only be deleted with force, which no other ledger needs."""

import pytest

from tallybook.client.client import Client
from tallybook.core.errors import LedgerInUse, NoSuchLedger
from tallybook.metadata.stream_use import CURSOR, STREAM
from tallybook.stream import StreamStore

from ..simulated import scenario
from ..support.deliveries import rows
from ..support.memory_cluster import MemoryCluster
from .parts import delivering, one_stream


async def made_with(client: Client, key: str) -> int:
    """The ledger with this custom metadata key."""
    (found,) = [each async for each in client.list_ledgers() if key in (await client.ledger_metadata(each)).custom]
    return found


@scenario()
async def test_a_segment_and_a_cursor_are_deleted_by_force_only_and_the_stream_is_named(
    cluster: MemoryCluster, client: Client
) -> None:
    async with StreamStore(client) as streams:
        await streams.create("sales/eu")
        async with await streams.writer("sales/eu") as writer:
            position = await writer.append(b"record")
        segment = await made_with(client, STREAM)
        with pytest.raises(LedgerInUse, match=f"ledger {segment} is segment 1 of stream 'sales/eu' in namespace"):
            await client.delete_ledger(segment)
        async with await streams.subscribe("sales/eu", "billing") as billing:
            await billing.advance(position)
            with pytest.raises(LedgerInUse, match="cursor of subscription 'billing' of stream 'sales/eu'"):
                await client.delete_ledger(await made_with(client, CURSOR))
        assert [each.payload async for each in streams.reader("sales/eu", follow=False)] == [b"record"]
        await client.delete_ledger(segment, force=True)
        with pytest.raises(NoSuchLedger):
            await client.ledger_metadata(segment)


@scenario()
async def test_a_ledger_in_delivery_to_a_stream_is_deleted_by_force_only(
    cluster: MemoryCluster, client: Client
) -> None:
    async with delivering(cluster, client) as (_, driver):
        (ledger,) = await driver.stage(4, rows(3))
        with pytest.raises(LedgerInUse, match=r"a delivery of sink '.+' of stream 's'"):
            await client.delete_ledger(ledger)
        assert await driver.deliver(4, [ledger])
        assert await driver.payloads() == rows(3)


@scenario()
async def test_a_ledger_of_a_stream_that_was_deleted_is_like_any_other(cluster: MemoryCluster, client: Client) -> None:
    async with one_stream(client) as streams:
        stream_id = (await streams.info("s")).stream_id
        await streams.delete("s")
    for custom in ({STREAM: f"{stream_id}/1".encode()}, {STREAM: b"no stream at all"}):
        async with await client.create_ledger(custom=custom) as writer:
            pass
        await client.delete_ledger(writer.id)
