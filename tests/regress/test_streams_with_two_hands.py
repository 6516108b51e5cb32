"""Streams that two processes change at a time, or that one leaves half changed: nothing stays behind, or gets lost."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest

from tallybook.client.client import Client
from tallybook.client.reader.handle import LedgerReader
from tallybook.core.errors import (
    DataMissing,
    MetadataConflict,
    MetadataUnavailable,
    NoSuchStream,
    StreamEnded,
    StreamFenced,
)
from tallybook.metadata.transactions import names
from tallybook.sim.stage.cluster import MemoryCluster
from tallybook.sim.stage.scenario import lines, scenario
from tallybook.stream import Start, StreamStore
from tallybook.stream import head as head_module
from tallybook.stream.catalog import Catalog
from tallybook.stream.envelope import Kind
from tallybook.stream.head import Head, begin_rename
from tallybook.stream.names import CHAPTERS
from tallybook.stream.subscription.record import Subscription


@pytest.fixture(autouse=True)
def small_chapters(monkeypatch: pytest.MonkeyPatch) -> None:
    """Heads with so little room that a few segments are put into chapters."""
    monkeypatch.setattr(head_module, "MAX_SEGMENTS", 6)
    monkeypatch.setattr(head_module, "CHAPTER_SEGMENTS", 4)


async def of_segments(streams: StreamStore, count: int) -> None:
    """A stream ``s`` of that many segments, of one record each."""
    await streams.create("s")
    for line in lines(count):
        async with await streams.writer("s") as writer:
            await writer.append(line)


async def renaming(streams: StreamStore, name: str) -> Head:
    """The head of stream ``s`` as somebody sees it who is about to finish its change of name."""
    head = await streams._find("s")
    return await streams._catalog.change(head.stream_id, lambda found: begin_rename(found, name))


@scenario()
async def test_a_ledger_that_cannot_be_deleted_just_now_is_deleted_with_its_chapter_later(
    cluster: MemoryCluster, client: Client
) -> None:
    async with StreamStore(client) as streams:
        await of_segments(streams, 10)
        head = await streams._find("s")
        first = (await streams._catalog.chapter(head.stream_id, head.chapters[0]))[0].ledger_id
        delete = client.delete_ledger

        async def refused_once(ledger_id: int, **options: bool) -> None:
            if ledger_id == first:
                client.delete_ledger = delete  # type: ignore[method-assign]
                raise MetadataConflict("others were first again and again")
            await delete(ledger_id, **options)

        client.delete_ledger = refused_once  # type: ignore[method-assign]
        with suppress(MetadataConflict):
            await streams.delete("s")
        assert await streams.keep() == 0
        assert [ledger_id async for ledger_id in client.list_ledgers()] == []


@scenario()
async def test_a_chapter_that_was_given_up_leaves_no_record_behind_though_somebody_is_cut_off(
    cluster: MemoryCluster, client: Client
) -> None:
    async with StreamStore(client) as streams:
        await of_segments(streams, 10)
        delete = client.delete_ledger

        async def unavailable(_ledger_id: int, **_options: bool) -> None:
            raise MetadataUnavailable("away")

        client.delete_ledger = unavailable  # type: ignore[method-assign]
        writer = await streams.writer("s")
        position = await writer.append(b"x")
        await writer.commit()
        with pytest.raises(MetadataUnavailable):
            await streams.truncate("s", before=position)
        client.delete_ledger = delete  # type: ignore[method-assign]
        await writer.close()
        assert await streams.keep() == 0
        await streams.delete("s")
        assert [record async for record in names(client.world.store, CHAPTERS)] == []


@pytest.mark.parametrize("readable", [[10], [9, 10], [0, 10]])
def test_a_stream_that_has_ended_stays_so_though_the_records_before_its_end_are_lost(
    readable: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    @scenario()
    async def play(cluster: MemoryCluster, client: Client) -> None:
        async with StreamStore(client) as streams:
            await streams.create("s")
            writer = await streams.writer("s")
            for line in lines(10):
                await writer.append(line)
            await writer._flow.mark(Kind.END_OF_STREAM).wait()
            writer.abandon()
            ask = LedgerReader._from_any_replica

            async def of_the_readable(reader: LedgerReader, entry_id: int, *question: Any) -> Any:
                if entry_id not in readable:
                    raise DataMissing("nobody has it")
                return await ask(reader, entry_id, *question)

            with monkeypatch.context() as patched:
                patched.setattr(LedgerReader, "_from_any_replica", of_the_readable)
                with pytest.raises(StreamEnded):
                    await streams.writer("s", accept_loss=True)

    play()


@scenario()
async def test_a_stream_that_is_deleted_while_it_is_renamed_leaves_no_name_behind(
    cluster: MemoryCluster, client: Client
) -> None:
    async with StreamStore(client) as streams:
        await of_segments(streams, 1)
        seen = await renaming(streams, "t")
        await streams.delete("s")
        with pytest.raises(NoSuchStream):
            await streams._catalog.finish_renaming(seen)
        assert [name async for name in streams.list()] == []
        await streams.create("t")


@scenario()
async def test_who_finishes_an_old_change_of_name_leaves_no_second_name(cluster: MemoryCluster, client: Client) -> None:
    async with StreamStore(client) as streams:
        await of_segments(streams, 1)
        seen = await renaming(streams, "t")
        await streams.rename("s", "u")
        assert [name async for name in streams.list()] == ["u"]
        await streams._catalog.finish_renaming(seen)
        assert [name async for name in streams.list()] == ["u"]


@scenario()
async def test_who_forgets_an_old_name_does_not_take_it_from_who_has_it_again(
    cluster: MemoryCluster, client: Client
) -> None:
    async with StreamStore(client) as streams, StreamStore(client) as others:
        await of_segments(streams, 1)
        unname, slow = Catalog.unname, streams._catalog

        async def after_another_rename(catalog: Catalog, *names: str) -> None:
            if catalog is slow:
                await others.rename("t", "s")
            await unname(catalog, *names)

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(Catalog, "unname", after_another_rename)
            await streams.rename("s", "t")
        assert [name async for name in streams.list()] == ["s"]
        assert (await streams.info("s")).name == "s"


@scenario()
async def test_a_keeper_that_meets_a_deletion_gives_no_name_back(cluster: MemoryCluster, client: Client) -> None:
    async with StreamStore(client) as streams, StreamStore(client) as keeper:
        await of_segments(streams, 1)
        look = keeper._catalog.id_of

        async def behind_a_deletion(namespace: str, name: str) -> str | None:
            await streams.delete("s")
            return await look(namespace, name)

        keeper._catalog.id_of = behind_a_deletion  # type: ignore[method-assign]
        await keeper.keep()
        assert [name async for name in streams.list()] == []
        await streams.create("s")


@scenario()
async def test_a_reset_that_another_reader_comes_between_does_not_claim_to_be_done(
    cluster: MemoryCluster, client: Client
) -> None:
    async with StreamStore(client) as streams, StreamStore(client) as others:
        await of_segments(streams, 2)
        positions = [record.position async for record in streams.reader("s", follow=False)]
        async with await streams.subscribe("s", "x") as reader:
            await reader.advance(positions[1])
        fence = streams._shelf._fence

        async def behind_another(found: Subscription) -> None:
            await (await others.subscribe("s", "x")).close()
            await fence(found)

        streams._shelf._fence = behind_another  # type: ignore[method-assign]
        with pytest.raises(StreamFenced):
            await streams.reset_subscription("s", "x", Start.at(positions[0]))
