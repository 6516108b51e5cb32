"""Stream faults found in reviews: each lost records, or left a state without a way out."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import pytest

from tallybook.client.client import Client
from tallybook.core.errors import (
    Busy,
    DataMissing,
    EntryTooLarge,
    MetadataUnavailable,
    OutOfOrder,
    StreamClosed,
    StreamEnded,
    StreamGap,
)
from tallybook.core.settings import ClientSettings
from tallybook.stream import Gap, GapReason, Outgoing, Position, Start, StreamStore
from tallybook.stream.catalog.head import StreamSegment
from tallybook.stream.reader import reading, seek, tails

from ..simulated import scenario
from ..support.ledger_scenario import SMALL, lines
from ..support.memory_cluster import MemoryCluster
from ..support.streams import head_of, updates_refused
from .stream_parts import filled, on_streams, process

pytestmark = pytest.mark.usefixtures("small_chapters")


async def in_chapters(streams: StreamStore, count: int = 20) -> list[Position]:
    """A stream ``s`` with a record in each of its segments, most of them in chapters."""
    await streams.create("s")
    positions = []
    for index in range(count):
        async with await streams.writer("s") as writer:
            positions.append(await writer.append(b"%d" % index))
    assert len((await head_of(streams)).chapters) > 2
    return positions


async def payloads(streams: StreamStore, **options: object) -> list[bytes]:
    """The records of stream ``s``."""
    return [record.payload async for record in streams.reader("s", follow=False, **options)]


async def pieces(streams: StreamStore, **options: object) -> list[list[bytes] | Gap]:
    """The same, with gaps among it."""
    reader = streams.reader("s", follow=False, gaps="yield", **options)
    async with aclosing(reader.batches()) as batches:
        return [each if isinstance(each, Gap) else [record.payload for record in each] async for each in batches]


@on_streams
async def test_truncating_within_a_chapter_gives_up_no_more_than_was_asked(streams: StreamStore) -> None:
    positions = await in_chapters(streams)
    assert (await streams.truncate("s", before=positions[2])).first_sequence == 2
    assert await payloads(streams) == [b"%d" % index for index in range(2, 20)]
    assert (await streams.truncate("s", before=positions[18])).first_sequence == 18
    assert await payloads(streams) == [b"18", b"19"]


@on_streams
async def test_a_subscription_begins_in_a_chapter_where_that_is_the_beginning(streams: StreamStore) -> None:
    await in_chapters(streams)
    async with await streams.subscribe("s", "x", follow=False) as reader:
        assert len([record async for record in reader]) == 20
    assert await payloads(streams, start=Start.sequence(3)) == [b"%d" % index for index in range(3, 20)]


@on_streams
async def test_a_deletion_that_was_cut_off_behind_a_chapter_is_finished(streams: StreamStore, client: Client) -> None:
    await in_chapters(streams)
    delete, last = client.delete_ledger, (await head_of(streams)).segments[-1].ledger_id

    async def away(ledger_id: int, **options: bool) -> None:
        if ledger_id == last:
            raise MetadataUnavailable("away")
        await delete(ledger_id, **options)

    client.delete_ledger = away
    with pytest.raises(MetadataUnavailable):
        await streams.delete("s")
    client.delete_ledger = delete
    await streams.delete("s")
    assert not await streams.exists("s")
    assert [ledger_id async for ledger_id in client.list_ledgers()] == []


@on_streams
async def test_a_reader_whose_chapter_is_removed_gets_the_truncation(streams: StreamStore) -> None:
    positions = await in_chapters(streams)
    reader, found = streams.reader("s", follow=False, gaps="yield"), []
    async with aclosing(reader.batches()) as batches:
        async for each in batches:
            found.append(each)
            if len(found) == 1:
                await streams.truncate("s", before=positions[18])
    gaps = [each for each in found if isinstance(each, Gap)]
    assert [(gap.reason, gap.first_sequence, gap.next_sequence) for gap in gaps] == [(GapReason.TRUNCATED, 1, 18)]
    assert [each[0].payload for each in found if not isinstance(each, Gap)] == [b"0", b"18", b"19"]


@on_streams
async def test_a_stream_whose_end_is_marked_is_never_written_on(streams, others, cluster, client):
    await streams.create("s", roll_bytes=1024)
    writer = await streams.writer("s")
    await writer.append(b"x" * 700)
    await cluster.world.clock.sleep(1)
    assert len((await head_of(streams)).open_segments) == 2, "the next one is made"
    with updates_refused(client), pytest.raises(MetadataUnavailable):
        await writer.seal()
    writer.abandon()
    with pytest.raises(StreamEnded):
        await others.writer("s")
    assert (await others.info("s")).sealed


@on_streams
async def test_a_stream_ends_while_its_next_segment_is_being_made(streams, cluster, client):
    await streams.create("s", roll_bytes=1024)
    writer, made = await streams.writer("s"), client.create_ledger

    async def slow(**options: object) -> object:
        await cluster.world.clock.sleep(5)
        return await made(**options)

    client.create_ledger = slow
    await writer.append(b"x" * 700)
    await writer.seal()
    assert (await streams.info("s")).sealed
    with pytest.raises(StreamEnded):
        await writer.commit()


@on_streams
async def test_what_is_appended_while_it_is_searched_for_is_found(streams: StreamStore, *, monkeypatch) -> None:
    await streams.create("s")
    async with await streams.writer("s") as writer:
        await writer.append_many(lines(5))
        await writer.commit()
        last_entry, late = seek.Seeker.last_entry, lines(2, 5)

        async def then_appended(seeker: seek.Seeker, segment: StreamSegment) -> int:
            found = await last_entry(seeker, segment)
            await writer.append_many(late)
            await writer.commit()
            late.clear()
            return found

        monkeypatch.setattr(seek.Seeker, "last_entry", then_appended)
        assert await payloads(streams, start=Start.sequence(5)) == lines(2, 5)


@on_streams
async def test_records_behind_a_gap_are_not_lost_with_it(streams: StreamStore) -> None:
    await streams.create("s")
    async with await streams.writer("s") as writer:
        for index in range(4):
            await writer.append_set([b"%d-a" % index, b"%d-b" % index])
    with pytest.MonkeyPatch.context() as patched:
        lose(patched, 1)
        reader, seen = streams.reader("s", follow=False), []

        async def read() -> None:
            async for record in reader:
                seen.append(record.payload)  # noqa: PERF401 (kept when it raises)

        with pytest.raises(StreamGap, match="record 2 to record 3 is lost"):
            await read()
        await read()
        assert seen == [b"0-a", b"0-b", b"2-a", b"2-b", b"3-a", b"3-b"]


@on_streams
async def test_a_loss_at_the_start_of_a_reader_is_reported(streams: StreamStore) -> None:
    positions = await filled(streams, 4)
    with pytest.MonkeyPatch.context() as patched:
        lose(patched, 0)
        assert isinstance((await pieces(streams))[0], Gap)
    with pytest.MonkeyPatch.context() as patched:
        lose(patched, 2)
        found = await pieces(streams, start=Start.after(positions[1]))
        assert isinstance(found[0], Gap)
        assert found[1] == lines(4)[3:]


@on_streams
async def test_a_search_goes_round_what_is_lost(streams: StreamStore) -> None:
    await filled(streams, 40)
    for lost in (range(19, 22), range(10, 25), range(20), range(30, 40)):
        with pytest.MonkeyPatch.context() as patched:
            at = seek.envelope_at

            async def envelope_at(
                reader: object, number: int, entry: int, tag: str, at: object = at, lost: range = lost
            ) -> object:
                if entry in lost:
                    raise DataMissing("nobody has it")
                return await at(reader, number, entry, tag)

            patched.setattr(seek, "envelope_at", envelope_at)
            for wanted in range(40):
                found = await payloads(streams, start=Start.sequence(wanted))
                assert found == lines(40 - wanted, wanted), (lost, wanted)


@on_streams
async def test_a_loss_behind_a_truncation_is_reported_as_a_loss(streams: StreamStore) -> None:
    positions = await filled(streams, 8)
    await streams.truncate("s", before=positions[3])
    with pytest.MonkeyPatch.context() as patched:
        lose(patched, 6)
        [gap, _] = await pieces(streams, start=Start.at(positions[6]))
        assert isinstance(gap, Gap)
        assert gap.reason is GapReason.LOST


@on_streams
async def test_a_reader_that_does_not_follow_ends_where_a_writer_died_between_two_segments(streams, others, cluster):
    await streams.create("s", roll_bytes=1024)
    writer = await streams.writer("s")
    await writer.append_many(lines(40))
    await cluster.world.clock.sleep(1)
    assert len((await head_of(streams)).open_segments) == 2, "the next one is made, and has no record"
    writer.abandon()
    async with asyncio.timeout(30):
        assert await payloads(others) == lines(40)


@on_streams
async def test_a_task_that_was_cancelled_before_it_began_is_begun_again(streams: StreamStore) -> None:
    await streams.create("s", roll_bytes=1024)
    async with await streams.writer("s") as writer:
        segments = writer._segments
        segments._making = segments._spawn(segments._make_ahead(), "make")
        await segments._abandon_all()
        assert segments._making is None
        segments.failed(DataMissing("of the test"))
        for line in lines(200):
            await writer.append(line)
    assert (await streams.info("s")).segments > 2
    assert await payloads(streams) == lines(200)


def lose(patched: pytest.MonkeyPatch, entry_id: int) -> None:
    """Make that entry missing in every segment."""

    def opened(entry: object, number: int, tag: str) -> object:
        if entry.entry_id == entry_id:
            return tails.Unreadable(entry_id, DataMissing("nobody has it"))
        return tails.opened(entry, number, tag)

    patched.setattr(reading, "opened", opened)


@on_streams
async def test_a_reader_that_is_left_in_the_middle_of_a_batch_goes_on_there(streams: StreamStore) -> None:
    await streams.create("s")
    async with await streams.writer("s") as writer:
        positions = await writer.append_set(lines(5))
    reader = streams.reader("s", follow=False)
    async for record in reader:
        if record.position == positions[1]:
            break
    assert reader.position == positions[2]
    assert [record.payload async for record in reader] == lines(3, 2)


@on_streams
async def test_numbers_and_transaction_ids_go_on_when_retention_has_taken_everything(streams, cluster, client):
    await streams.create("s", retention="60s")
    async with await streams.writer("s") as writer:
        last = (await writer.append_many([*lines(10), Outgoing(b"t", txid=7)]))[-1]
    await cluster.world.clock.sleep(120)
    assert await streams.keep() == 0
    assert [ledger_id async for ledger_id in client.list_ledgers()] == []
    async with await streams.writer("s") as writer:
        assert (writer.next_sequence, writer.last_position) == (11, last)
        with pytest.raises(OutOfOrder):
            await writer.append(b"no", txid=3)
        await writer.append(b"new", if_position=last)
    assert await payloads(streams, start=Start.sequence(11)) == [b"new"]


@on_streams
async def test_a_set_larger_than_an_envelope_is_still_in_one_entry(cluster: MemoryCluster) -> None:
    async with cluster.client(ClientSettings()) as client, StreamStore(client) as streams:
        await streams.create("s")
        async with await streams.writer("s") as writer:
            positions = await writer.append_set([b"x" * 30_000] * 30)
            assert len({each.entry for each in positions}) == 1
            with pytest.raises(EntryTooLarge):
                await writer.append_set([b"x" * 30_000] * 40)


@on_streams
async def test_a_waiting_writer_gets_the_stream_after_an_error_or_a_cancelled_open(streams, others, cluster, client):
    await streams.create("s")

    async def fail() -> None:
        async with await streams.writer("s"):
            raise ValueError("of the user")

    with pytest.raises(ValueError, match="of the user"):
        await fail()
    await (await others.writer("s", wait_s=2)).close()
    made = client.create_ledger

    async def never(**_options: object) -> object:
        await asyncio.Event().wait()

    client.create_ledger = never
    opening = asyncio.ensure_future(streams.writer("s"))
    await cluster.world.clock.sleep(2)
    opening.cancel()
    await asyncio.gather(opening, return_exceptions=True)
    client.create_ledger = made
    await (await others.writer("s", wait_s=2)).close()
    (await streams.subscribe("s", "x")).abandon()
    await (await others.subscribe("s", "x", wait_s=2)).close()


@on_streams
async def test_a_writer_that_ends_because_it_is_busy_fails_all_waiting_calls(streams, client):
    async def busy(**_options: object) -> None:
        raise Busy("all busy", retry_after_ms=5)

    await streams.create("s")
    writer = await streams.writer("s")
    [segment] = (await head_of(streams)).open_segments
    await client.recover_ledger(segment.ledger_id)
    client.create_ledger = busy
    pending = writer.append_nowait(b"x")
    with pytest.raises(Busy):
        await pending
    with pytest.raises(Busy):
        writer.append_nowait(b"y")


@on_streams
async def test_refused_appends_hold_no_budget(streams: StreamStore, client: Client) -> None:
    await streams.create("s")
    async with await streams.writer("s") as writer:
        with pytest.raises(OutOfOrder):
            await writer.append_set([Outgoing(b"x" * 1000, txid=5), Outgoing(b"y" * 1000, txid=3)])
        big = [Outgoing(b"x" * 9000, dedup_id=b"%d" % index) for index in range(20)]
        first, second = await asyncio.gather(writer.append_many(big), writer.append_many(big))
        assert first == second
    assert client.budget.taken_bytes == 0


@on_streams
async def test_a_transaction_id_does_not_fall_while_an_append_waits_for_space(streams: StreamStore) -> None:
    await streams.create("s")
    async with await streams.writer("s") as writer:
        fill = [writer.append_nowait(b"x" * 10_000) for _ in range(6)]
        outcomes = await asyncio.gather(
            writer.append(b"a" * 9000, txid=5), writer.append(b"b", txid=3), *fill, return_exceptions=True
        )
    assert isinstance(outcomes[1], OutOfOrder)
    txids = [record.txid async for record in streams.reader("s", follow=False) if record.txid is not None]
    assert txids == [5]


@on_streams
async def test_remembered_ids_hold_no_records(streams: StreamStore) -> None:
    await streams.create("s")
    async with await streams.writer("s") as writer:
        for index in range(20):
            await writer.append(b"x" * 20_000, dedup_id=b"%d" % index)
        assert all(not pending._group.payload for _, pending in writer._window._known.values())


@on_streams
async def test_a_record_too_large_for_the_clients_entries_is_refused_and_nothing_else(cluster: MemoryCluster) -> None:
    settings = SMALL.model_copy(update={"max_entry_bytes": 500})
    async with cluster.client(settings) as client, StreamStore(client) as streams:
        await streams.create("s")
        async with await streams.writer("s") as writer:
            with pytest.raises(EntryTooLarge):
                await writer.append(b"x" * 600)
            await writer.append_many(lines(100))
        assert await payloads(streams) == lines(100)


@on_streams
async def test_a_segment_grows_old_though_nothing_is_appended(streams: StreamStore, cluster: MemoryCluster) -> None:
    await streams.create("s", roll_after="60s", retention="60s")
    async with await streams.writer("s") as writer:
        await writer.append(b"x")
        await cluster.world.clock.sleep(200)
        assert await streams.keep() == 0
        assert (await streams.info("s")).first_sequence == 1
        segments = (await head_of(streams)).next_segment
        await cluster.world.clock.sleep(300)
        assert (await head_of(streams)).next_segment == segments, "an empty one does not grow old"


@scenario(bookies=3)
async def test_making_segments_in_vain_leaves_no_more_than_one_ledger_to_be_deleted(
    cluster: MemoryCluster, client: Client
) -> None:
    async with StreamStore(client) as streams:
        await streams.create("s", roll_bytes=1024)
        async with await streams.writer("s") as writer:
            cluster.die("bookie-0")
            for line in lines(300):
                await writer.append(line)
                await cluster.world.clock.sleep(0.3)
            assert len((await head_of(streams)).doomed) <= 1
            cluster.bookies["bookie-0"].restart()
            await cluster.register("bookie-0")
            for line in lines(50, 300):
                await writer.append(line)
                await cluster.world.clock.sleep(0.3)
            assert (await head_of(streams)).next_segment > 2
        assert await payloads(streams) == lines(350)


@on_streams
async def test_sessions_of_the_dead_are_forgotten_and_those_of_the_living_are_not(streams, cluster, client):
    await streams.create("s")
    for name in ("p", "q", "r"):
        async with process(cluster, name) as (dead, outage):
            await (await dead.writer("s")).close()
            outage.lasts = True
    async with await streams.writer("s"):
        for _ in range(3):
            assert await streams.keep() == 0
            await cluster.world.clock.sleep(20)
        store = client.world.store
        sessions = (await store.list_records("stream-sessions/")).names
        assert sessions == (f"stream-sessions/{streams.session}",)


@on_streams
async def test_no_advance_is_taken_once_the_reader_closes(streams: StreamStore) -> None:
    positions = await filled(streams, 10)
    reader = await streams.subscribe("s", "x")
    await reader.advance(positions[2])
    closing = asyncio.ensure_future(reader.close())
    await asyncio.sleep(0)
    with pytest.raises(StreamClosed):
        await reader.advance(positions[9])
    await closing
    [info] = [each async for each in streams.subscriptions("s")]
    assert info.cursor.position == positions[2]
