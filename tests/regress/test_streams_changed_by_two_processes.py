"""Streams changed by two processes at a time, or left half changed: nothing stays behind, and nothing is lost."""

from __future__ import annotations

from contextlib import suppress

import pytest

from tallybook.client.client import Client
from tallybook.core.errors import MetadataConflict, MetadataUnavailable, NoSuchStream, StreamEnded, StreamFenced
from tallybook.metadata.records.listing import record_names
from tallybook.stream import Start, StreamStore
from tallybook.stream.catalog.catalog import StreamCatalog
from tallybook.stream.catalog.head import Head, begin_rename
from tallybook.stream.names import CHAPTERS, SUBSCRIPTIONS

from ..support.ledger_scenario import lines
from ..support.memory_cluster import MemoryCluster
from ..support.streams import catalog_of, head_of, updates_refused
from .stream_parts import on_streams

pytestmark = pytest.mark.usefixtures("small_chapters")


async def of_segments(streams: StreamStore, count: int) -> None:
    """A stream ``s`` of that many segments, of one record each."""
    await streams.create("s")
    for line in lines(count):
        async with await streams.writer("s") as writer:
            await writer.append(line)


async def renaming(streams: StreamStore, name: str) -> Head:
    """The head of stream ``s`` as read by a process that is about to finish its rename."""
    head = await head_of(streams)
    return await catalog_of(streams).change(head.stream_id, lambda found: begin_rename(found, name))


@on_streams
async def test_a_ledger_that_cannot_be_deleted_just_now_is_deleted_with_its_chapter_later(streams, client):
    await of_segments(streams, 10)
    head = await head_of(streams)
    first = (await catalog_of(streams).chapter(head.stream_id, head.chapters[0]))[0].ledger_id
    delete = client.delete_ledger

    async def refused_once(ledger_id: int, **options: bool) -> None:
        if ledger_id == first:
            client.delete_ledger = delete
            raise MetadataConflict("others were first again and again")
        await delete(ledger_id, **options)

    client.delete_ledger = refused_once
    with suppress(MetadataConflict):
        await streams.delete("s")
    assert await streams.keep() == 0
    assert [ledger_id async for ledger_id in client.list_ledgers()] == []


@on_streams
async def test_an_abandoned_chapter_leaves_no_record_though_a_process_is_cut_off(streams, client):
    await of_segments(streams, 10)
    delete = client.delete_ledger

    async def unavailable(_ledger_id: int, **_options: bool) -> None:
        raise MetadataUnavailable("away")

    client.delete_ledger = unavailable
    writer = await streams.writer("s")
    position = await writer.append(b"x")
    await writer.commit()
    with pytest.raises(MetadataUnavailable):
        await streams.truncate("s", before=position)
    client.delete_ledger = delete
    await writer.close()
    assert await streams.keep() == 0
    await streams.delete("s")
    assert [record async for record in record_names(client.world.store, CHAPTERS)] == []


@pytest.mark.parametrize("readable", [[10], [9, 10], [0, 10]])
@on_streams
async def test_a_stream_that_has_ended_stays_so_though_the_records_before_its_end_are_lost(
    streams: StreamStore, client: Client, cluster: MemoryCluster, *, readable: list[int]
) -> None:
    await streams.create("s")
    writer = await streams.writer("s")
    for line in lines(10):
        await writer.append(line)
    with updates_refused(client), pytest.raises(MetadataUnavailable):
        await writer.seal()
    writer.abandon()
    [segment] = (await head_of(streams)).open_segments
    for bookie in cluster.bookies.values():
        for entry_id in set(range(11)) - set(readable):
            bookie.drop(segment.ledger_id, entry_id)
    with pytest.raises(StreamEnded):
        await streams.writer("s", accept_loss=True)


@on_streams
async def test_a_stream_that_is_deleted_while_it_is_renamed_leaves_no_name_behind(streams: StreamStore) -> None:
    await of_segments(streams, 1)
    seen = await renaming(streams, "t")
    await streams.delete("s")
    with pytest.raises(NoSuchStream):
        await catalog_of(streams).finish_renaming(seen)
    assert [name async for name in streams.list()] == []
    await streams.create("t")


@on_streams
async def test_finishing_an_old_rename_leaves_no_second_name(streams: StreamStore) -> None:
    await of_segments(streams, 1)
    seen = await renaming(streams, "t")
    await streams.rename("s", "u")
    assert [name async for name in streams.list()] == ["u"]
    await catalog_of(streams).finish_renaming(seen)
    assert [name async for name in streams.list()] == ["u"]


@on_streams
async def test_forgetting_an_old_name_does_not_remove_it_from_its_new_stream(client: Client) -> None:
    async with StreamStore(client) as streams, StreamStore(client) as others:
        await of_segments(streams, 1)
        unname = StreamCatalog.unname

        async def after_another_rename(catalog: StreamCatalog, *names: str) -> None:
            patched.undo()
            await others.rename("t", "s")
            await unname(catalog, *names)

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(StreamCatalog, "unname", after_another_rename)
            await streams.rename("s", "t")
        assert [name async for name in streams.list()] == ["s"]
        assert (await streams.info("s")).name == "s"


@on_streams
async def test_a_keeper_that_meets_a_deletion_gives_no_name_back(client: Client) -> None:
    async with StreamStore(client) as streams, StreamStore(client) as keeper:
        await of_segments(streams, 1)
        look = StreamCatalog.id_of

        async def behind_a_deletion(catalog: StreamCatalog, namespace: str, name: str) -> str | None:
            patched.undo()
            await streams.delete("s")
            return await look(catalog, namespace, name)

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(StreamCatalog, "id_of", behind_a_deletion)
            await keeper.keep()
        assert [name async for name in streams.list()] == []
        await streams.create("s")


@on_streams
async def test_a_reset_that_another_reader_comes_between_does_not_claim_to_be_done(client: Client) -> None:
    async with StreamStore(client) as streams, StreamStore(client) as others:
        await of_segments(streams, 2)
        positions = [record.position async for record in streams.reader("s", follow=False)]
        async with await streams.subscribe("s", "x") as reader:
            await reader.advance(positions[1])
        store, written = client.world.store, list[str]()
        write = store.write_record

        async def behind_another(name: str, value: bytes, version: int | None) -> object:
            written.append(name)
            if sum(each.startswith(SUBSCRIPTIONS) for each in written) == 2:
                store.write_record = write
                await (await others.subscribe("s", "x")).close()
            return await write(name, value, version)

        store.write_record = behind_another
        with pytest.raises(StreamFenced):
            await streams.reset_subscription("s", "x", Start.at(positions[0]))
