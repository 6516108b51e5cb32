"""Where streams end: how long it is kept, what is left out, and that one look serves all who want it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from tallybook.core.errors import BookieUnavailable, InvariantViolation, Outcome
from tallybook.gateway.console.tails import AT_ONCE, KEPT_SECONDS, LOOK_SECONDS, PATIENCE_SECONDS, Tail, Tails
from tallybook.runtime.deterministic import World, run_seed
from tallybook.runtime.tasks import Tasks


class Store:
    """Streams whose ends take so long to be told. It is also all the stores of a console."""

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
        SimpleNamespace(namespace="default", name=name, stream_id=f"id-{name}", ended=False, next_sequence=0)
        for name in names
    ]


def play(scenario: Callable[[World, Store, Tails], Awaitable[None]]) -> None:
    async def whole(world: World) -> None:
        tasks = Tasks("tails", lambda name, error: None)
        store = Store(world)
        try:
            await scenario(world, store, Tails(store, world.clock, tasks))  # type: ignore[arg-type]
        finally:
            await tasks.close()
        assert store.users == 0
        assert sorted(store.ended) == sorted(store.asked)

    run_seed(1, whole)


def test_an_end_is_kept_for_a_while_and_then_asked_anew():
    async def scenario(world: World, store: Store, tails: Tails) -> None:
        assert await tails.of(streams("a", "b")) == {"id-a": Tail(42, None, 0), "id-b": Tail(42, None, 0)}
        await world.clock.sleep(KEPT_SECONDS - 1)
        store.end = 99
        assert (await tails.of(streams("a")))["id-a"].next_sequence == 42
        await world.clock.sleep(1)
        assert (await tails.of(streams("a")))["id-a"].next_sequence == 100
        assert store.asked == ["a", "b", "a"]

    play(scenario)


def test_what_is_old_is_left_out_when_nobody_tells_it_anew():
    async def scenario(world: World, store: Store, tails: Tails) -> None:
        await tails.of(streams("a"))
        store.seconds = 1e6
        await world.clock.sleep(KEPT_SECONDS)
        began = world.clock.monotonic()
        assert await tails.of(streams("a")) == {}
        assert world.clock.monotonic() - began == pytest.approx(PATIENCE_SECONDS)
        await world.clock.sleep(3_600)
        assert await tails.of(streams("a")) == {}

    play(scenario)


def test_a_stream_is_looked_at_once_for_all_who_want_it_and_to_the_end_though_nobody_waits():
    async def scenario(world: World, store: Store, tails: Tails) -> None:
        store.seconds = PATIENCE_SECONDS + 2
        assert await asyncio.gather(*(tails.of(streams("a")) for _ in range(5))) == [{}] * 5
        given_up = asyncio.ensure_future(tails.of(streams("a")))
        await world.clock.sleep(1)
        given_up.cancel()
        await world.clock.sleep(2)
        assert (await tails.of(streams("a")))["id-a"].next_sequence == 42
        assert store.asked == ["a"]

    play(scenario)


def test_few_streams_are_looked_at_at_once_however_many_ask_and_a_look_that_hangs_ends():
    async def scenario(world: World, store: Store, tails: Tails) -> None:
        store.seconds = 1e6
        pages = [streams(*(f"{page}-{each}" for each in range(50))) for page in range(3)]
        assert await asyncio.gather(*map(tails.of, pages)) == [{}] * 3
        assert len(store.asked) == store.users == AT_ONCE
        await world.clock.sleep(LOOK_SECONDS)
        assert len(store.ended) == AT_ONCE
        store.seconds = 0.0
        await world.clock.sleep(LOOK_SECONDS)
        assert len(await tails.of(streams("new"))) == 1

    play(scenario)


def test_what_cannot_be_told_now_is_an_end_that_is_not_known():
    async def scenario(world: World, store: Store, tails: Tails) -> None:
        store.fails = BookieUnavailable("away", outcome=Outcome.NOT_DONE)
        assert await tails.of(streams("a")) == {"id-a": Tail()}

    play(scenario)


def test_a_defect_is_told_to_whoever_asks_and_the_others_are_looked_at_all_the_same():
    async def scenario(world: World, store: Store, tails: Tails) -> None:
        store.fails = InvariantViolation("it cannot be")
        with pytest.raises(InvariantViolation, match="it cannot be"):
            await tails.of(streams("a", "b"))
        store.fails = None
        assert set(await tails.of(streams("a", "b"))) == {"id-a", "id-b"}

    play(scenario)
