"""Async iterators whose steps survive who waits for them."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncGenerator

import pytest

from tallybook.client.background import client_tasks
from tallybook.core.errors import BookieUnavailable, HandleClosed
from tallybook.runtime.lifetime import Lifetime
from tallybook.runtime.steps import LINGER_SECONDS, Listing, Steps
from tallybook.runtime.tasks import Tasks


class Numbers:
    """A source of numbers, which fails where it is told to, and waits behind the last one."""

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

    def steps(self) -> Steps[int]:
        return Steps(self.items, lambda work: self.tasks.spawn(work, name="step"), self.lifetime)


async def turns(count: int = 10) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def waited(steps: Steps[int]) -> None:
    """Begin to wait for a step, and stop."""
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(anext(steps), 0.01)


def test_an_iteration_goes_on_behind_an_error():
    async def main() -> None:
        numbers, seen = Numbers(3, 2), []
        steps = numbers.steps()
        for _ in range(5):
            try:
                seen.append(await anext(steps))
            except BookieUnavailable:
                seen.append("away")
        assert seen == [0, 1, "away", 2, 3]
        await steps.aclose()

    asyncio.run(main())


def test_an_iterator_that_is_closed_or_dropped_ends_its_step():
    async def main() -> None:
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

    asyncio.run(main())


def test_a_step_that_nobody_waits_for_is_given_up_after_a_while_and_done_again(monkeypatch):
    assert LINGER_SECONDS >= 5, "longer than the pause of who polls"
    monkeypatch.setattr("tallybook.runtime.steps.LINGER_SECONDS", 0.02)

    async def main() -> None:
        numbers = Numbers(-1)
        steps = numbers.steps()
        assert not await steps.ready(0.001)
        assert numbers.waiting == 1
        await asyncio.sleep(0.1)
        assert numbers.waiting == 0
        numbers.last = 0
        assert await anext(steps) == 0
        await steps.aclose()

    asyncio.run(main())


def test_a_step_that_is_done_when_its_wait_is_cancelled_is_given_to_who_comes_next():
    async def main() -> None:
        numbers, seen = Numbers(9), list[int]()
        steps = Steps(numbers.items, lambda work: numbers.tasks.spawn(work, name="step"), numbers.lifetime, linger_s=0)
        for turn in range(60):
            waiting = asyncio.ensure_future(anext(steps))
            await turns(turn % 6)
            waiting.cancel()
            [found] = await asyncio.gather(waiting, return_exceptions=True)
            if isinstance(found, int):
                seen.append(found)
            if len(seen) == 10:
                break
        assert seen == list(range(10))
        await steps.aclose()

    asyncio.run(main())


def test_who_comes_while_a_step_that_was_given_up_still_ends_gets_the_next_item(monkeypatch):
    monkeypatch.setattr("tallybook.runtime.steps.LINGER_SECONDS", 0.01)

    async def main() -> None:
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

        steps = Steps(items, lambda work: tasks.spawn(work, name="step"), lifetime)
        assert not await steps.ready(0.001)
        await ending.wait()
        assert await anext(steps) == "found"
        await steps.aclose()

    asyncio.run(main())


def test_the_end_of_the_handle_is_told_to_who_waits_and_to_who_comes():
    async def main() -> None:
        numbers = Numbers(-1)
        steps = numbers.steps()
        waiting = asyncio.ensure_future(anext(steps))
        await turns()
        numbers.lifetime.end()
        await numbers.tasks.close()
        for wait in (waiting, anext(steps)):
            with pytest.raises(HandleClosed, match="the numbers is closed"):
                await wait
        assert not waiting.cancelled()

    asyncio.run(main())


def test_a_listing_hands_out_pages_item_by_item():
    async def main() -> None:
        tasks, lifetime = client_tasks("pages"), Lifetime("the pages")

        async def pages() -> AsyncGenerator[list[str], None]:
            yield ["a", "b"]
            yield []
            yield ["c"]

        listing = Listing(Steps(pages, lambda work: tasks.spawn(work, name="page"), lifetime))
        assert [each async for each in listing] == ["a", "b", "c"]
        assert await listing.next() is None

    asyncio.run(main())


def test_who_waits_is_told_where_another_task_closes_the_iterator():
    async def main() -> None:
        steps = Numbers(-1).steps()
        waiting = asyncio.ensure_future(anext(steps))
        await turns()
        await steps.aclose()
        with pytest.raises(HandleClosed):
            await waiting

    asyncio.run(main())
