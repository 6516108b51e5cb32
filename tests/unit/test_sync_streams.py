"""Blocking streams on in-memory bookies, on a real loop: calls, threads, read-ahead, subscriptions."""

import contextlib
import gc
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from typing import Any

import pytest

from tallybook.core.errors import (
    EntryTooLarge,
    InvalidArgument,
    NoSuchStream,
    OutOfOrder,
    PositionMismatch,
    StreamClosed,
    StreamEnded,
    StreamFenced,
    StreamGap,
    StreamOwned,
)
from tallybook.runtime.blocking.loop_thread import MAX_ITEMS_PER_TURN
from tallybook.stream.blocking import writer as sync_writer
from tallybook.stream.reader.reading import STEP_ENTRIES
from tallybook.stream.sync import Gap, GapReason, Outgoing, Start, StreamStore

from .sync_stream_parts import PATIENCE, filled, lines, payloads, wait_until, written

# -- calls ------------------------------------------------------------------------------------------


def test_appends_of_one_thread_by_any_call_keep_their_order_and_are_read_back(streams: StreamStore) -> None:
    assert streams.create("s").name == "s"
    with streams.writer("s") as writer:
        assert writer.last_position is None
        first = writer.append_nowait(b"0", key=b"k", timestamp_ms=5)
        second = writer.append(b"1", txid=7)
        later = writer.append_nowait(memoryview(b"2"))
        many = writer.append_many([b"3", Outgoing(b"4", key=b"k"), bytearray(b"5")])
        some = writer.append_set([b"6", b"7"])
        assert writer.append(b"8", if_position=some[-1]) > some[-1]
        with pytest.raises(PositionMismatch):
            writer.append(b"9", if_position=second)
        positions = [first.result(), second, later.result(PATIENCE), *many, *some]
        assert positions == sorted(positions)
        writer.flush()
        writer.commit()
        assert (writer.next_sequence, writer.name, writer.ended) == (9, "s", False)
        assert streams.last("s") == (writer.last_position, 8)
    assert writer.ended
    found = list(streams.reader("s", follow=False))
    assert [record.payload for record in found] == lines(0, 9)
    assert [record.position for record in found][:8] == positions
    assert (found[0].key, found[0].timestamp_ms, found[1].txid) == (b"k", 5, 7)


def test_a_stream_that_ends_takes_nothing_more_and_its_readers_come_to_an_end(streams: StreamStore) -> None:
    streams.create("s")
    writer = streams.writer("s")
    pending = [writer.append_nowait(line) for line in lines(0, MAX_ITEMS_PER_TURN + 1)]
    writer.seal()
    assert all(append.done() for append in pending)
    with pytest.raises(StreamEnded):
        writer.append(b"more")
    with pytest.raises(StreamEnded):
        streams.writer("s")
    assert [record.payload for record in streams.reader("s")] == lines(0, len(pending))


def test_the_former_names_of_sealing_still_work_and_warn(streams: StreamStore) -> None:
    streams.create("s")
    with pytest.warns(DeprecationWarning, match="seal") as warned:
        streams.writer("s").end_stream()
    found = streams.info("s")
    assert found.sealed
    with pytest.warns(DeprecationWarning, match="sealed"):
        assert found.ended
    assert {each.filename for each in warned} == {__file__}


def test_appends_of_an_iterator_return_every_position_in_order(streams, monkeypatch):
    monkeypatch.setattr(sync_writer, "_PIECE_BYTES", 1000)
    streams.create("s")
    with streams.writer("s") as writer:
        taken = []

        def records() -> Iterator[bytes]:
            for line in lines(0, 2_500):
                # It may use the writer itself: it runs where the caller is.
                taken.append(writer.next_sequence)
                yield line

        positions = writer.append_many(records())
        assert writer.append_many(iter(())) == []
    assert [record.position for record in streams.reader("s", follow=False)] == positions
    assert payloads(streams) == lines(0, 2_500)
    assert taken[0] == 0 < taken[-1], "some were sent before the last one was asked for"


def test_an_id_that_is_appended_again_by_any_call_is_there_once(stage: Any, streams: StreamStore) -> None:
    streams.create("s")
    with streams.writer("s") as writer:
        sent = [writer.append_nowait(b"x", dedup_id="one") for _ in range(3)]
        assert len({append.result() for append in sent}) == 1
        assert writer.append(b"x", dedup_id=b"one") == sent[0].result()
    assert payloads(streams) == [b"x"]
    assert stage.client.pending_bytes == 0, "and what was taken for the others is given back"


def test_errors_are_those_of_the_asyncio_streams_and_leave_the_writer_good(stage: Any, streams: StreamStore) -> None:
    streams.create("s")
    writer = streams.writer("s")
    for append in (writer.append, writer.append_nowait, lambda payload: writer.append_many([payload])):
        with pytest.raises(EntryTooLarge):
            append(bytes(2_000_000))
        with pytest.raises(TypeError, match="a record is bytes"):
            append("text")
    writer.append(b"0", txid=5)
    with pytest.raises(OutOfOrder):
        writer.append_nowait(b"x", txid=4)
    stage.keep_busy()
    ahead = writer.append_nowait(b"1", txid=9)
    late = writer.append_nowait(b"x", txid=8)
    with pytest.raises(OutOfOrder):
        late.result(PATIENCE)
    assert late.done()
    assert writer.append(b"2") > ahead.result()
    with streams.writer("s") as other:
        pending = [writer.append_nowait(b"lost") for _ in range(2)]
        for append in pending:
            with pytest.raises(StreamFenced):
                append.result(PATIENCE)
        with pytest.raises(StreamFenced):
            writer.close()
        with pytest.raises(StreamOwned):
            streams.writer("s", wait_s=0)
        other.append(b"3")
    assert payloads(streams) == lines(0, 4)
    assert stage.client.pending_bytes == 0


# -- threads ----------------------------------------------------------------------------------------


def test_threads_that_append_without_a_wait_never_hold_more_than_the_budget(stage: Any, streams: StreamStore) -> None:
    streams.create("s")
    writer = streams.writer("s")
    stage.hold()
    with ThreadPoolExecutor(8) as threads:
        pending = list(chain(*threads.map(lambda _: filled(writer), range(8))))
        assert stage.client.pending_bytes <= stage.client.max_pending_bytes
        assert not pending[-1].done()
        with pytest.raises(TimeoutError):
            pending[-1].result(0.01)
        waiting = threads.submit(writer.append, bytes(500))
        with pytest.raises(TimeoutError):
            waiting.result(0.05)
        stage.release()
        assert waiting.result(PATIENCE) > max(append.result(PATIENCE) for append in pending[:1])
        positions = [append.result(PATIENCE) for append in pending]
    assert len(set(positions)) == len(pending)
    wait_until(lambda: stage.client.pending_bytes == 0)
    writer.close()


def test_a_buffer_may_be_used_again_as_soon_as_append_nowait_has_returned(stage: Any, streams: StreamStore) -> None:
    streams.create("s")
    buffer = bytearray(b"first")
    with streams.writer("s") as writer:
        stage.keep_busy()
        writer.append_nowait(memoryview(buffer))
        buffer[:] = b"other"
        writer.append_nowait(buffer)
    assert payloads(streams) == [b"first", b"other"]


# -- reading ----------------------------------------------------------------------------------------


def test_a_reader_that_is_left_goes_on_behind_the_last_record_it_has_handed_out(streams: StreamStore) -> None:
    streams.create("s")
    with streams.writer("s") as writer:
        for first in range(0, 200, 4):
            writer.append_set(lines(first, 4))
    reader = streams.reader("s", follow=False)
    assert reader.position is None
    seen = []
    for count in (1, 2, 3, 50, 4, 5):
        for record in reader:
            seen.append(record)
            assert reader.position is not None
            assert record.position < reader.position
            if len(seen) == sum((1, 2, 3, 50, 4, 5)[: (1, 2, 3, 50, 4, 5).index(count) + 1]):
                break
    with contextlib.closing(reader.batches()) as batches:
        seen += next(batches)
        assert reader.position > seen[-1].position
    seen += reader
    assert [record.payload for record in seen] == lines(0, 200)
    assert list(reader) == []


def test_a_reader_is_no_more_than_some_batches_ahead_of_its_caller(stage: Any, streams: StreamStore) -> None:
    written(streams, 200)
    reader = streams.reader("s")
    records = iter(reader)
    next(records)
    wait_until(lambda: reader._engine._reading._sequence > 16)
    for _ in range(20):
        stage.call(lambda: None)
    assert reader._engine._reading._sequence <= 2 * 16 + STEP_ENTRIES
    assert [next(records).payload for _ in range(150)] == lines(1, 150)


def test_a_loop_that_is_left_early_leaves_nothing_behind(stage: Any, streams: StreamStore) -> None:
    written(streams, 50)
    before = stage.tasks()
    for follow in (True, False):
        for record in streams.reader("s", follow=follow):
            if record.sequence == 2:
                break
        wait_until(lambda: stage.tasks() <= before)
    for _ in streams.list():
        break
    dropped = streams.reader("s").batches()
    next(dropped)
    del dropped
    gc.collect()
    wait_until(lambda: stage.tasks() <= before)


def test_a_start_is_resolved_with_the_first_step_also_where_that_brings_nothing(streams, interrupted_while):
    written(streams, 5)
    reader = streams.reader("s", start=Start.latest())
    interrupted_while(lambda: next(iter(reader)))
    with streams.writer("s") as writer:
        writer.append_many(lines(5, 3))
        writer.commit()
        assert [next(iter(reader)).payload for _ in range(2)] == lines(5, 2)
    timed = streams.reader("s", start=Start.sequence(3))
    assert next(iter(timed)).payload == b"3"


def test_a_gap_comes_where_it_is_and_the_same_reader_goes_on_behind_it(streams: StreamStore) -> None:
    positions = written(streams, 60)
    raising, yielding = streams.reader("s", follow=False), streams.reader("s", follow=False, gaps="yield")
    for reader in (raising, yielding):
        with contextlib.closing(reader.batches()) as batches:
            assert [next(batches)[0].payload for _ in range(2)] == lines(0, 2)
    streams.truncate("s", before=positions[50])
    with pytest.raises(StreamGap) as told:
        list(raising)
    assert (told.value.gap.reason, told.value.gap.first_sequence, told.value.gap.next_sequence) == (
        GapReason.TRUNCATED, 2, 50,
    )  # fmt: skip
    assert [record.payload for record in raising] == lines(50, 10)
    gap, *batches = yielding.batches()
    assert isinstance(gap, Gap)
    assert [record.payload for batch in batches for record in batch] == lines(50, 10)


def test_a_reader_that_stops_before_an_error_meets_it_again(stage: Any, streams: StreamStore) -> None:
    written(streams, 10)
    reader = streams.reader("s")
    records = iter(reader)
    first = next(records)
    streams.delete("s")
    wait_until(lambda: not reader._closed._running)
    assert stage.call(lambda: reader._engine.position) > reader.position, "it has read ahead"
    records.close()
    assert reader._engine.position == reader.position > first.position
    with pytest.raises(NoSuchStream):
        list(reader)


def test_a_reader_has_one_iterator_at_a_time(streams: StreamStore) -> None:
    written(streams, 5)
    reader = streams.reader("s", follow=False)
    records = iter(reader)
    assert next(records).payload == b"0"
    with pytest.raises(InvalidArgument, match="one iterator at a time"):
        next(iter(reader))
    records.close()
    assert [record.payload for record in reader] == lines(1, 4)


def test_a_waiting_reader_is_ended_when_another_thread_closes_it(streams: StreamStore) -> None:
    written(streams, 5)
    seen: list[bytes] = []
    with ThreadPoolExecutor(1) as other, streams.reader("s") as reader:
        following = other.submit(lambda: seen.extend(record.payload for record in reader))
        wait_until(lambda: reader.position is not None and reader.position.entry == 5)
        assert not following.done()
        reader.close()
        with pytest.raises(StreamClosed):
            following.result(PATIENCE)
    assert seen == lines(0, 5)
    with pytest.raises(StreamClosed):
        next(iter(reader))


def test_an_interrupted_read_of_a_record_loses_none(streams, interrupted_while):
    written(streams, 2)
    reader = streams.reader("s")
    assert reader.next(PATIENCE).payload == b"0"
    interrupted_while(lambda: [reader.next() for _ in range(5)])
    with streams.writer("s") as writer:
        writer.append(b"2")
        writer.commit()
    assert reader.next(PATIENCE).payload == b"2"


def test_calls_for_records_go_on_behind_a_gap(streams: StreamStore) -> None:
    positions = written(streams, 60)
    one_by_one, together = (streams.reader("s", start=Start.at(positions[2]), follow=False) for _ in range(2))
    streams.truncate("s", before=positions[50])
    for reader in (one_by_one, together):
        with pytest.raises(StreamGap):
            reader.next()
    assert one_by_one.next().payload == b"50"
    assert together.read_batch(1)[0].payload == b"50"


# -- subscriptions ----------------------------------------------------------------------------------


def test_a_subscription_goes_on_behind_what_was_done_with_and_not_behind_what_was_read_ahead(streams):
    positions = written(streams, 30)
    with streams.subscribe("s", "billing") as billing:
        assert billing.name == "billing"
        for record in billing:
            if record.sequence == 3:
                break
            billing.advance_nowait(record.position)
        billing.advance(str(positions[3]))
        assert str(billing.cursor) == f"after {positions[3]}"
        with pytest.raises(InvalidArgument):
            billing.advance_nowait(positions[1])
    [info] = streams.subscriptions("s")
    assert (info.name, info.cursor, info.reader) == ("billing", billing.cursor, None)
    with streams.subscribe("s", "billing", follow=False) as billing:
        assert next(iter(billing)).payload == b"4"
        with contextlib.closing(billing.batches()) as batches:
            assert next(batches)[0].payload == b"5"
    streams.reset_subscription("s", "billing", Start.sequence(28))
    left = streams.subscribe("s", "billing", follow=False)
    assert [record.payload for record in left] == lines(28, 2)
    left.abandon()
    with pytest.raises(StreamClosed):
        left.advance(positions[29])
    streams.unsubscribe("s", "billing")
    assert list(streams.subscriptions("s")) == []


def test_a_close_ends_the_wait_of_a_subscriber(streams: StreamStore) -> None:
    written(streams, 3)
    for end in ("close", "abandon"):
        with ThreadPoolExecutor(1) as other:
            reader = streams.subscribe("s", "billing")
            seen: list[bytes] = []
            following = other.submit(lambda to, it: to.extend(each.payload for each in it), seen, reader)
            wait_until(lambda reader=reader: reader._reader.position is not None and reader._reader.position.entry == 3)
            getattr(reader, end)()
            with pytest.raises(StreamClosed):
                following.result(PATIENCE)
            assert seen == lines(0, 3)
