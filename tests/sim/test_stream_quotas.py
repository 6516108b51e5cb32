"""Limits of streams in bytes: retention by size, and quotas of streams and namespaces."""

from __future__ import annotations

from typing import Any

import pytest

from tallybook.client.client import Client
from tallybook.core.errors import InvalidArgument, QuotaExceeded
from tallybook.stream import PendingRecord, StreamStore, StreamWriter
from tallybook.stream.catalog import head
from tallybook.stream.writer.quota import REFRESH_SECONDS

from ..simulated import scenario
from ..support.ledger_scenario import lines
from ..support.memory_cluster import MemoryCluster
from .parts import one_stream
from .test_streams_on_one_seed import payloads

KIB = 1024


async def fill(writer: StreamWriter, records: int = 100) -> None:
    for _ in range(records):
        await writer.append(bytes(512))


async def append(streams: StreamStore, name: str, records: int) -> None:
    async with await streams.writer(name) as writer:
        await fill(writer, records)


@pytest.mark.parametrize("head_segments", [200, 6], ids=["in the head", "in chapters"])
@scenario()
async def test_the_oldest_segments_are_deleted_beyond_the_retention_in_bytes(
    cluster: MemoryCluster, client: Client, *, head_segments: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(head, "MAX_SEGMENTS", head_segments)
    monkeypatch.setattr(head, "CHAPTER_SEGMENTS", head_segments * 2 // 3)
    async with one_stream(client, roll_bytes=KIB, retention_bytes=8 * KIB) as streams:
        async with await streams.writer("s") as writer:
            for line in lines(400):
                await writer.append(line)
        before = await streams.stored_bytes("s")
        assert before > 16 * KIB
        assert await streams.keep() == 0
        left = await streams.stored_bytes("s")
        assert 8 * KIB <= left < 11 * KIB, "as much as is wanted, and less than a segment more"
        found = await payloads(streams, "s")
        assert found == lines(len(found), 400 - len(found))
        assert await streams.keep() == 0
        assert await streams.stored_bytes("s") == left
        await streams.set_policy("s", retention_bytes=None)
        assert await streams.keep() == 0
        assert await streams.stored_bytes("s") == left


@scenario()
async def test_a_full_stream_refuses_appends_until_space_is_freed_or_the_quota_raised(
    cluster: MemoryCluster, client: Client
) -> None:
    async with one_stream(client, roll_bytes=4 * KIB, max_bytes=16 * KIB) as streams:
        async with await streams.writer("s") as writer:
            first = await writer.append(b"first", dedup_id=b"1")
            with pytest.raises(QuotaExceeded, match="max_bytes") as caught:
                await fill(writer)
            assert caught.value.outcome.value == "not done"
            assert 24 < writer.next_sequence <= 32
            for refused in (writer.append(b"x", key=b"k"), writer.append_set([b"x", b"y"]), writer.append_many([b"x"])):
                with pytest.raises(QuotaExceeded):
                    await refused
            with pytest.raises(QuotaExceeded):
                writer.append_nowait(b"x")
            assert await writer.append(b"first", dedup_id=b"1") == first, "it is stored already"
            await writer.commit()
            await streams.set_policy("s", max_bytes="32KiB")
            await cluster.world.clock.sleep(REFRESH_SECONDS + 10)
            await writer.append(b"more")
        async with await streams.writer("s") as writer:
            with pytest.raises(QuotaExceeded):
                await fill(writer)
        async with await streams.writer("s") as writer:
            with pytest.raises(QuotaExceeded):
                await writer.append(b"the next writer is refused, too")
            await streams.truncate("s", before=(await streams.last("s"))[0])  # type: ignore[index]
            await cluster.world.clock.sleep(REFRESH_SECONDS + 10)
            await writer.append(b"there is space again")


@scenario()
async def test_a_full_namespace_refuses_appends_to_all_of_its_streams(cluster: MemoryCluster, client: Client) -> None:
    async with StreamStore(client, namespace="tenant") as streams, StreamStore(client) as others:
        await streams.create_namespace(total_bytes="16KiB", roll_bytes=KIB)
        for store in (streams, others):
            await store.create("a", roll_bytes=KIB)
        await streams.create("b")
        found = await streams.namespace_info()
        assert (found.total_bytes, found.stored_bytes) == (16 * KIB, None)
        await append(streams, "a", 20)
        await append(others, "a", 100)
        assert await streams.keep() == 0
        stored = (await streams.namespace_info()).stored_bytes
        assert stored == await streams.stored_bytes("a")
        async with await streams.writer("b") as writer:
            with pytest.raises(QuotaExceeded, match="tenant"):
                await fill(writer)
        assert await streams.keep() == 0
        assert 16 * KIB <= (await streams.namespace_info()).stored_bytes < 18 * KIB  # type: ignore[operator]
        async with await streams.writer("a") as writer:
            with pytest.raises(QuotaExceeded, match="tenant"):
                await writer.append(b"x")
        await append(others, "a", 1)
        await streams.delete("b")
        assert await streams.keep() == 0
        await append(streams, "a", 1)
        await streams.create_namespace()
        await append(streams, "a", 100)
        assert (await streams.namespace_info()).total_bytes is None


@scenario()
async def test_a_quota_that_is_no_size_is_refused(cluster: MemoryCluster, client: Client) -> None:
    wrong: tuple[dict[str, Any], ...] = ({"max_bytes": "much"}, {"retention_bytes": 1}, {"max_bytes": -1})
    async with StreamStore(client) as streams:
        for policy in wrong:
            with pytest.raises(InvalidArgument):
                await streams.create("s", **policy)
        with pytest.raises(InvalidArgument):
            await streams.create_namespace(total_bytes="much")


@scenario()
async def test_records_that_are_not_sent_yet_count(cluster: MemoryCluster, client: Client) -> None:
    async with cluster.client() as fast, StreamStore(fast) as streams:
        await streams.create("s", max_bytes="256KiB")
        async with await streams.writer("s") as writer:
            sent: list[PendingRecord] = []
            with pytest.raises(QuotaExceeded):
                sent.extend(writer.append_nowait(bytes(100)) for _ in range(10_000))
        assert 256 * KIB <= await streams.stored_bytes("s") <= (256 + 64 + 1) * KIB
        assert len(await payloads(streams, "s")) == len(sent)
