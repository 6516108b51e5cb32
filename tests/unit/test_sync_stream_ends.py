"""Blocking streams on in-memory bookies, on a real loop: interruptions and close."""

import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest

from tallybook.client.sync import Client
from tallybook.core.errors import HandleClosed, InvalidArgument, Outcome, StreamClosed
from tallybook.stream.sync import StreamStore

from .sync_stream_parts import PATIENCE, filled, lines, payloads, wait_until, written


def test_an_interrupted_wait_is_cancelled_and_everything_as_good_as_before(stage, streams, interrupted_while):
    streams.create("s")
    writer = streams.writer("s")
    first = writer.append(b"0")
    stage.hold()
    sent = writer.append_nowait(b"1")
    interrupted_while(sent.result)
    interrupted_while(lambda: writer.append(b"2"))
    interrupted_while(lambda: writer.append_many([b"3", b"4"]))
    interrupted_while(lambda: writer.append(b"never", if_position=first))
    interrupted_while(writer.flush)
    reader = streams.reader("s")
    interrupted_while(lambda: list(reader))
    interrupted_while(writer.close)
    stage.release()
    assert sent.result(PATIENCE) > first
    writer.close()
    assert payloads(streams) == lines(0, 5)
    assert [next(iter(reader)).payload for _ in range(2)] in (lines(0, 2), lines(1, 2))


def test_a_writer_that_no_caller_received_is_released(stage, streams, interrupted_while):
    streams.create("s")
    made = []
    engine = streams._engine
    writer = engine.writer

    async def late(name: str, **how: Any) -> Any:
        made.append(await writer(name, **how))
        # The caller is interrupted between the last step of the loop and its own next one.
        time.sleep(0.3)  # noqa: ASYNC251
        return made[0]

    engine.writer = late
    interrupted_while(lambda: streams.writer("s"))
    wait_until(lambda: stage.call(lambda: made[0].ended))
    engine.writer = writer
    wait_until(lambda: streams.info("s").owner is None)


@pytest.mark.parametrize("which", ["store", "client"])
def test_a_close_settles_what_is_pending_and_ends_what_waits(stage: Any, which: str) -> None:
    client = stage.client
    streams = StreamStore(client)
    written(streams, 3)
    writer = streams.writer("s")
    subscriber = streams.subscribe("s", "billing")
    stage.hold()
    with ThreadPoolExecutor(4) as threads:
        appending = threads.submit(writer.append, b"x")
        reading = threads.submit(lambda: list(streams.reader("s")))
        subscribed = threads.submit(lambda: list(subscriber))
        with pytest.raises(TimeoutError):
            reading.result(0.1)
        pending = filled(writer)
        (streams if which == "store" else client).close()
        with pytest.raises(StreamClosed) as unknown:
            appending.result(PATIENCE)
        assert unknown.value.outcome is Outcome.UNKNOWN
        for waiting in (reading, subscribed):
            with pytest.raises(HandleClosed, match="closed"):
                waiting.result(PATIENCE)
    for append in (pending[0], pending[-1]):
        assert append.done()
        with pytest.raises(StreamClosed):
            append.result()
    streams.close()
    client.close()


@pytest.mark.parametrize("which", ["store", "client"])
def test_after_the_close_every_call_says_so(stage: Any, which: str) -> None:
    client = stage.client
    streams = StreamStore(client)
    position = written(streams, 3)[-1]
    writer = streams.writer("s")
    reader = streams.reader("s")
    reading = iter(reader)
    next(reading)
    subscriber = streams.subscribe("s", "billing")
    (streams if which == "store" else client).close()
    for use in (
        lambda: streams.create("t"),
        lambda: streams.info("s"),
        lambda: list(streams.list()),
        lambda: streams.writer("s"),
        lambda: streams.subscribe("s", "billing"),
        lambda: list(streams.subscriptions("s")),
        streams.keep,
        lambda: list(reading),
        lambda: list(streams.reader("s")),
    ):
        with pytest.raises(HandleClosed, match="closed"):
            use()
    for use in (
        lambda: writer.append(b"y"),
        lambda: writer.append_nowait(b"y"),
        lambda: writer.append_many([b"y"]),
        writer.commit,
        writer.seal,
    ):
        with pytest.raises(StreamClosed if which == "store" else HandleClosed, match=r"closed|abandoned"):
            use()
    if which == "client":
        for use in (writer.close, subscriber.close, partial(subscriber.advance, position)):
            with pytest.raises(HandleClosed, match="closed"):
                use()
    for end in (writer.abandon, subscriber.abandon, reader.close, streams.close):
        end()


def test_a_store_that_is_closed_is_forgotten_by_its_client(stage: Any) -> None:
    for _ in range(3):
        with StreamStore(stage.client):
            pass
    assert stage.client._close_callbacks == []
    with pytest.raises(InvalidArgument):
        StreamStore(stage.client, namespace="not/one")
    assert stage.client._close_callbacks == []
    with pytest.raises(InvalidArgument, match="not open"):
        StreamStore(Client(stage.cluster.client()._cluster))
