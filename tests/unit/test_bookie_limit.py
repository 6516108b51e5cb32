"""The limit of concurrent requests of the repair per bookie: slots are granted in order, and always freed."""

import asyncio

import pytest

from tallybook.repair.bookie_limit import PerBookieLimit


class Visit:
    """A caller that acquires a slot at one of some bookies, and holds it until released."""

    def __init__(self, limit: PerBookieLimit, *bookies: str) -> None:
        self.at: str | None = None
        self._go = asyncio.Event()
        self.task = asyncio.ensure_future(self._stay(limit, bookies))

    async def _stay(self, limit: PerBookieLimit, bookies: tuple[str, ...]) -> None:
        async with limit.acquire_any(bookies) as self.at:
            await self._go.wait()

    async def leave(self) -> None:
        self._go.set()
        await self.task
        await settled()


async def settled() -> None:
    """Wait until all tasks that can go on have done so."""
    for _ in range(10):
        await asyncio.sleep(0)


async def place(limit: PerBookieLimit, *, rather: str, preferred_seconds: float) -> str:
    """The bookie, of two, at which a slot was acquired."""
    async with limit.acquire_any(["a", "b"], preferred=rather, preferred_seconds=preferred_seconds) as bookie:
        return bookie


async def visits(limit: PerBookieLimit, count: int, *bookies: str) -> list[Visit]:
    found = [Visit(limit, *bookies) for _ in range(count)]
    await settled()
    return found


async def end(*those: Visit) -> None:
    for visit in those:
        await visit.leave()


async def test_requests_are_spread_and_the_rest_waits() -> None:
    those = await visits(PerBookieLimit(2), 5, "a", "b")
    assert [visit.at for visit in those] == ["a", "b", "a", "b", None]
    await end(*those)


async def test_a_waiter_gets_the_first_free_slot_of_any_bookie() -> None:
    limit = PerBookieLimit(1)
    for leaves in (0, 1):
        those = await visits(limit, 3, "a", "b")
        await those[leaves].leave()
        assert those[2].at == "ab"[leaves]
        await end(*(those[1 - leaves], those[2]))


async def test_a_waiter_for_one_bookie_gets_no_slot_of_another() -> None:
    limit = PerBookieLimit(1)
    [at_a], [at_b], [waits] = [await visits(limit, 1, name) for name in ("a", "b", "a")]
    await at_b.leave()
    assert waits.at is None
    await at_a.leave()
    assert waits.at == "a"
    await waits.leave()


async def test_the_bookie_that_is_wanted_is_waited_for_and_another_taken_after_a_while() -> None:
    limit = PerBookieLimit(1)
    [there] = await visits(limit, 1, "a")
    waiting = asyncio.ensure_future(place(limit, rather="a", preferred_seconds=60))
    await settled()
    assert not waiting.done(), "b has a place"
    await there.leave()
    assert await waiting == "a"
    [there] = await visits(limit, 1, "a")
    assert await place(limit, rather="a", preferred_seconds=0.01) == "b"
    assert await place(limit, rather="c", preferred_seconds=60) == "b", "it is none of those that can be had"
    await there.leave()


async def test_slots_go_to_the_longest_waiting() -> None:
    limit = PerBookieLimit(1)
    there, *others = await visits(limit, 4, "a")
    for number, following in enumerate(others):
        await there.leave()
        [late] = await visits(limit, 1, "a")
        assert [each.at for each in (*others, late)] == [*["a"] * (number + 1), *[None] * (len(others) - number)]
        late.task.cancel()
        there = following
    await there.leave()


async def test_a_caller_cancelled_as_it_gets_a_slot_leaves_it_to_the_next() -> None:
    limit = PerBookieLimit(1)
    async with limit.acquire_any(["a"]):
        waits, last = await visits(limit, 2, "a")
    assert (waits.at, last.at) == (None, None), "the place is given, and nobody has run yet"
    waits.task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waits.task
    await settled()
    assert last.at == "a"
    await last.leave()


async def test_a_slot_freed_while_a_waiter_gives_up_goes_to_the_next() -> None:
    limit = PerBookieLimit(1)
    async with limit.acquire_any(["a"]):
        waits, last = await visits(limit, 2, "a")
        waits.task.cancel()
    await settled()
    assert (waits.task.cancelled(), last.at) == (True, "a")
    await last.leave()


async def test_a_cancelled_holder_frees_its_slot_and_a_cancelled_waiter_takes_none() -> None:
    limit = PerBookieLimit(1)
    there, waits, last = await visits(limit, 3, "a")
    for visit in (waits, there):
        visit.task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await visit.task
    await settled()
    assert last.at == "a"
    await last.leave()
