"""Async iterators whose steps survive the cancellation of their consumer."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncGenerator

import pytest

from tallybook.client.background import client_tasks
from tallybook.core.errors import BookieUnavailable, HandleClosed
from tallybook.runtime.concurrency.async_iterators import LINGER_SECONDS, PagedListing, ResumableIterator
from tallybook.runtime.concurrency.handle_lifetime import Lifetime
from tallybook.runtime.tasks import Tasks


class Numbers:
    """A source of numbers, which fails at given ones, and waits after the last one."""

    def __init__(self, last: int, *fails_at: int) -> None:
        self.last = last
        self.fails_at = set(fails_at)
        self.next = 0
        self.waiting = 0
        self.tasks: Tasks = client_tasks("numbers")
        self.lifetime = Lifetime("the numbers")

    async def items(self) -> AsyncGenerator[int, None]:
        while self.next <= self.last:
            await asyncio.sleep(0)
            if self.next in self.fails_at:
                self.fails_at.discard(self.next)
                raise BookieUnavailable(f"away at {self.next}")
            self.next += 1
            yield self.next - 1
        self.waiting += 1
        try:
            await asyncio.Event().wait()
        finally:
            self.waiting -= 1

    def steps(self) -> ResumableIterator[int]:
        return ResumableIterator(self.items, lambda work: self.tasks.spawn(work, name="step"), self.lifetime)


async def turns(count: int = 10) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def waited(steps: ResumableIterator[int]) -> None:
    """Begin to wait for a step, and stop."""
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(anext(steps), 0.01)


async def test_an_iteration_goes_on_behind_an_error():
    numbers, seen = Numbers(3, 2), []
    steps = numbers.steps()
    for _ in range(5):
        try:
            seen.append(await anext(steps))
        except BookieUnavailable:
            seen.append("away")
    assert seen == [0, 1, "away", 2, 3]
    await steps.aclose()


async def test_an_iterator_that_is_closed_or_dropped_ends_its_step():
    for drop in (False, True):
        numbers = Numbers(-1)
        steps = numbers.steps()
        await waited(steps)
        assert numbers.waiting == 1
        if drop:
            del steps
            gc.collect()
            await turns()
        else:
            await steps.aclose()
            with pytest.raises(StopAsyncIteration):
                await anext(steps)
        assert numbers.waiting == 0


async def test_a_step_without_a_waiter_is_abandoned_after_a_while_and_done_again(monkeypatch):
    assert LINGER_SECONDS >= 5, "longer than the pause of who polls"
    monkeypatch.setattr("tallybook.runtime.concurrency.async_iterators.LINGER_SECONDS", 0.02)
    numbers = Numbers(-1)
    steps = numbers.steps()
    assert not await steps.ready(0.001)
    assert numbers.waiting == 1
    await asyncio.sleep(0.1)
    assert numbers.waiting == 0
    numbers.last = 0
    assert await anext(steps) == 0
    await steps.aclose()


async def test_a_caller_that_comes_while_an_abandoned_step_still_ends_gets_the_next_item(monkeypatch):
    monkeypatch.setattr("tallybook.runtime.concurrency.async_iterators.LINGER_SECONDS", 0.01)
    tasks, lifetime, begun, ending = client_tasks("numbers"), Lifetime("the numbers"), [], asyncio.Event()

    async def items() -> AsyncGenerator[str, None]:
        begun.append(None)
        if len(begun) > 1:
            yield "found"
        try:
            await asyncio.Event().wait()
        finally:
            ending.set()
            await turns(5)

    steps = ResumableIterator(items, lambda work: tasks.spawn(work, name="step"), lifetime)
    assert not await steps.ready(0.001)
    await ending.wait()
    assert await anext(steps) == "found"
    await steps.aclose()


async def test_a_listing_hands_out_pages_item_by_item():
    tasks, lifetime = client_tasks("pages"), Lifetime("the pages")

    async def pages() -> AsyncGenerator[list[str], None]:
        yield ["a", "b"]
        yield []
        yield ["c"]

    listing = PagedListing(ResumableIterator(pages, lambda work: tasks.spawn(work, name="page"), lifetime))
    assert [each async for each in listing] == ["a", "b", "c"]
    assert await listing.next() is None


async def test_a_waiting_consumer_is_ended_when_another_task_closes_the_iterator():
    steps = Numbers(-1).steps()
    waiting = asyncio.ensure_future(anext(steps))
    await turns()
    await steps.aclose()
    with pytest.raises(HandleClosed):
        await waiting
