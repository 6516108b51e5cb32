"""Iterators of records: a time-out or a cancelled wait loses no record, and is not mistaken for the end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, NamedTuple

import pytest

from tallybook.client.client import Client
from tallybook.core.errors import InvalidArgument
from tallybook.stream import StreamStore

from ..simulated import scenario
from ..support.ledger_scenario import lines


class Followed(NamedTuple):
    """An iterator, a call that appends to its source, and one that ends it."""

    reader: Any
    put: Callable[..., Awaitable[None]]
    end: Callable[[], Awaitable[object]]


@asynccontextmanager
async def ledger_tail(client: Client) -> AsyncIterator[Followed]:
    ledger = await client.create_ledger()

    async def put(*payloads: bytes) -> None:
        await ledger.append_many(payloads)
        await ledger.show()

    yield Followed((await client.open_ledger(ledger.id, recover=False)).tail(), put, ledger.close)


@asynccontextmanager
async def stream_reader(client: Client) -> AsyncIterator[Followed]:
    async with StreamStore(client) as streams:
        await streams.create("s")
        writer = await streams.writer("s")

        async def put(*payloads: bytes) -> None:
            await writer.append_many(payloads)
            await writer.commit()

        yield Followed(streams.reader("s"), put, writer.seal)


@asynccontextmanager
async def subscription(client: Client) -> AsyncIterator[Followed]:
    async with (
        stream_reader(client) as found,
        StreamStore(client) as streams,
        await streams.subscribe("s", "billing") as billing,
    ):
        yield found._replace(reader=billing)


KINDS = [ledger_tail, stream_reader, subscription]
Follow = Callable[[Client], AbstractAsyncContextManager[Followed]]


def on_each(body: Callable[[Followed], Awaitable[None]]) -> Callable[..., None]:
    """Run the decorated coroutine as a test for each kind."""

    @pytest.mark.parametrize("follow", KINDS, ids=lambda kind: kind.__name__)
    @scenario()
    async def test(client: Client, *, follow: Follow) -> None:
        async with follow(client) as followed:
            await body(followed)

    return test


async def polled(records: AsyncIterator[Any], seconds: float) -> bytes | str:
    """The result of a poll with a time-out around ``anext``."""
    try:
        return (await asyncio.wait_for(anext(records), seconds)).payload
    except TimeoutError:
        return "nothing"
    except StopAsyncIteration:
        return "the end"


@on_each
async def test_a_time_out_around_anext_is_not_the_end(followed: Followed) -> None:
    records = aiter(followed.reader)
    await followed.put(b"0")
    assert [await polled(records, 5) for _ in range(3)] == [b"0", "nothing", "nothing"]
    await followed.put(b"1", b"2")
    # Far longer than a step without a waiter is kept.
    await asyncio.sleep(100)
    assert [await polled(records, 5) for _ in range(3)] == [b"1", b"2", "nothing"]
    await followed.end()
    assert await polled(records, 30) == "the end"


@on_each
async def test_polls_that_are_shorter_than_an_answer_get_there_all_the_same(followed: Followed) -> None:
    records = aiter(followed.reader)
    await followed.put(*lines(3))
    seen: list[bytes | str] = []
    while len(seen) < 3:
        found = await polled(records, 1e-6)
        seen += [found] if found != "nothing" else []
        await asyncio.sleep(0.01)
    assert seen == lines(3)


@on_each
async def test_a_wait_that_is_cancelled_anywhere_loses_no_record(followed: Followed) -> None:
    records, seen = aiter(followed.reader), list[bytes]()
    for turns in range(80):
        if turns % 4 == 0:
            await followed.put(*lines(2, turns // 2))
        waiting = asyncio.ensure_future(anext(records))
        for _ in range(turns):
            await asyncio.sleep(0)
        waiting.cancel()
        [found] = await asyncio.gather(waiting, return_exceptions=True)
        if isinstance(found, asyncio.CancelledError):
            continue
        seen.append(found.payload)
    while len(seen) < 40:
        seen.append((await anext(records)).payload)
    assert seen == lines(40)


@on_each
async def test_a_batch_that_is_cancelled_anywhere_loses_no_record(followed: Followed) -> None:
    seen: list[bytes] = []
    for turns in range(60):
        await followed.put(*lines(2, 2 * turns))
        waiting = asyncio.ensure_future(followed.reader.read_batch(7))
        for _ in range(turns):
            await asyncio.sleep(0)
        waiting.cancel()
        [found] = await asyncio.gather(waiting, return_exceptions=True)
        if not isinstance(found, asyncio.CancelledError):
            seen += [record.payload for record in found]
    while len(seen) < 120:
        seen += [record.payload for record in await followed.reader.read_batch(7)]
    assert seen == lines(120)


@on_each
async def test_next_distinguishes_a_timeout_from_the_end(followed: Followed) -> None:
    reader = followed.reader
    with pytest.raises(TimeoutError):
        await reader.next(timeout=3)
    await followed.put(b"0", b"1")
    assert (await reader.next(timeout=3)).payload == b"0"
    assert (await reader.next(timeout=0)).payload == b"1", "it came along"
    with pytest.raises(TimeoutError):
        await reader.next(timeout=0)
    waiting = asyncio.ensure_future(reader.next())
    await asyncio.sleep(1)
    await followed.put(b"2")
    assert (await waiting).payload == b"2"
    await followed.end()
    assert await reader.next(timeout=30) is None


@on_each
async def test_a_batch_has_what_is_there_and_no_more_than_is_wanted(followed: Followed) -> None:
    reader = followed.reader
    assert await reader.read_batch(5, timeout=3) == []
    await followed.put(*lines(12))
    found = [await reader.read_batch(5, timeout=3) for _ in range(3)]
    assert [len(each) for each in found] == [5, 5, 2]
    assert [record.payload for each in found for record in each] == lines(12)
    await followed.put(*lines(2, 12))
    assert (await anext(aiter(reader))).payload == lines(1, 12)[0], (
        "all ways to read go on where the one before stopped"
    )
    assert [record.payload for record in await reader.read_batch()] == lines(1, 13)
    with pytest.raises(InvalidArgument):
        await reader.read_batch(0)
    await followed.end()
    assert await reader.read_batch(timeout=30) is None


@on_each
async def test_a_second_task_that_waits_for_the_same_is_refused_and_the_first_one_served(followed: Followed) -> None:
    first = asyncio.ensure_future(followed.reader.next())
    await asyncio.sleep(1)
    with pytest.raises(InvalidArgument, match="one reads at a time"):
        await followed.reader.next()
    await followed.put(b"0")
    assert (await first).payload == b"0"
