"""Ends of streams in the console: how long they are cached, what is left out, and one poll for all requests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from tallybook.core.errors import BookieUnavailable, InvariantViolation, Outcome
from tallybook.gateway.console.tails import (
    CACHE_SECONDS,
    LOOKUP_SECONDS,
    MAX_CONCURRENCY,
    WAIT_SECONDS,
    StreamTail,
    TailCache,
)
from tallybook.runtime.tasks import Tasks
from tallybook.sim.deterministic import World

from ..simulated import Parts, on_stage


class Store:
    """Streams whose ends take so long to read. It also stands in for all stores of a console."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.seconds = 0.0
        self.fails: Exception | None = None
        self.asked: list[str] = []
        self.ended: list[str] = []
        self.users = 0
        self.end = 41

    @contextmanager
    def of(self, namespace: str) -> Iterator[Store]:
        assert namespace == "default"
        self.users += 1
        try:
            yield self
        finally:
            self.users -= 1

    async def last(self, name: str) -> tuple[object, int]:
        self.asked.append(name)
        try:
            await self.world.clock.sleep(self.seconds)
        finally:
            self.ended.append(name)
        if self.fails is not None:
            raise self.fails
        return object(), self.end

    async def subscriptions(self, name: str) -> AsyncIterator[Any]:
        for found in ():
            yield found


def streams(*names: str) -> list[Any]:
    return [
        SimpleNamespace(namespace="default", name=name, stream_id=f"id-{name}", sealed=False, next_sequence=0)
        for name in names
    ]


@asynccontextmanager
async def new_tails(world: World) -> AsyncIterator[Parts]:
    tasks = Tasks("tails", lambda name, error: None)
    store = Store(world)
    try:
        yield {"store": store, "tails": TailCache(store, world.clock, tasks)}  # type: ignore[arg-type]
    finally:
        await tasks.close()
    assert store.users == 0
    assert sorted(store.ended) == sorted(store.asked)


with_tails = on_stage(new_tails)


@with_tails
async def test_an_end_is_kept_for_a_while_and_then_asked_anew(world, store, tails):
    assert await tails.of(streams("a", "b")) == {"id-a": StreamTail(42, None, 0), "id-b": StreamTail(42, None, 0)}
    await world.clock.sleep(CACHE_SECONDS - 1)
    store.end = 99
    assert (await tails.of(streams("a")))["id-a"].next_sequence == 42
    await world.clock.sleep(1)
    assert (await tails.of(streams("a")))["id-a"].next_sequence == 100
    assert store.asked == ["a", "b", "a"]


@with_tails
async def test_old_values_that_are_not_refreshed_are_left_out(world, store, tails):
    await tails.of(streams("a"))
    store.seconds = 1e6
    await world.clock.sleep(CACHE_SECONDS)
    began = world.clock.monotonic()
    assert await tails.of(streams("a")) == {}
    assert world.clock.monotonic() - began == pytest.approx(WAIT_SECONDS)
    await world.clock.sleep(3_600)
    assert await tails.of(streams("a")) == {}


@with_tails
async def test_one_poll_of_a_stream_serves_all_requests_and_completes_without_waiters(world, store, tails):
    store.seconds = WAIT_SECONDS + 2
    assert await asyncio.gather(*(tails.of(streams("a")) for _ in range(5))) == [{}] * 5
    given_up = asyncio.ensure_future(tails.of(streams("a")))
    await world.clock.sleep(1)
    given_up.cancel()
    await world.clock.sleep(2)
    assert (await tails.of(streams("a")))["id-a"].next_sequence == 42
    assert store.asked == ["a"]


@with_tails
async def test_few_streams_are_polled_at_once_for_any_number_of_requests_and_a_hanging_poll_ends(world, store, tails):
    store.seconds = 1e6
    pages = [streams(*(f"{page}-{each}" for each in range(50))) for page in range(3)]
    assert await asyncio.gather(*map(tails.of, pages)) == [{}] * 3
    assert len(store.asked) == store.users == MAX_CONCURRENCY
    await world.clock.sleep(LOOKUP_SECONDS)
    assert len(store.ended) == MAX_CONCURRENCY
    store.seconds = 0.0
    await world.clock.sleep(LOOKUP_SECONDS)
    assert len(await tails.of(streams("new"))) == 1


@with_tails
async def test_an_end_that_cannot_be_read_is_unknown(world, store, tails):
    store.fails = BookieUnavailable("away", outcome=Outcome.NOT_DONE)
    assert await tails.of(streams("a")) == {"id-a": StreamTail()}


@with_tails
async def test_a_defect_is_raised_to_the_caller_and_the_next_request_polls_again(world, store, tails):
    store.fails = InvariantViolation("it cannot be")
    with pytest.raises(InvariantViolation, match="it cannot be"):
        await tails.of(streams("a", "b"))
    store.fails = None
    assert set(await tails.of(streams("a", "b"))) == {"id-a", "id-b"}
