"""Few requests at one bookie at a time: who waits gets the place that is free first, and every place comes back."""

import asyncio

import pytest

from tallybook.repair.bookie_limit import BookieLimit


class Visit:
    """Somebody who asks for a place at one of some bookies, and stays until told to go."""

    def __init__(self, limit: BookieLimit, *bookies: str) -> None:
        self.at: str | None = None
        self._go = asyncio.Event()
        self.task = asyncio.ensure_future(self._stay(limit, bookies))

    async def _stay(self, limit: BookieLimit, bookies: tuple[str, ...]) -> None:
        async with limit.one_of(bookies) as self.at:
            await self._go.wait()

    async def leave(self) -> None:
        self._go.set()
        await self.task
        await settled()


async def settled() -> None:
    """Until all who can go on have done so."""
    for _ in range(10):
        await asyncio.sleep(0)


async def place(limit: BookieLimit, *, rather: str, patience_seconds: float) -> str:
    """At which of two bookies a place was had."""
    async with limit.one_of(["a", "b"], rather=rather, patience_seconds=patience_seconds) as bookie:
        return bookie


async def visits(limit: BookieLimit, count: int, *bookies: str) -> list[Visit]:
    found = [Visit(limit, *bookies) for _ in range(count)]
    await settled()
    return found


async def end(*those: Visit) -> None:
    for visit in those:
        await visit.leave()


async def test_requests_are_spread_and_the_rest_waits() -> None:
    those = await visits(BookieLimit(2), 5, "a", "b")
    assert [visit.at for visit in those] == ["a", "b", "a", "b", None]
    await end(*those)


async def test_who_waits_gets_the_place_that_is_free_first_whichever_bookie_that_is() -> None:
    limit = BookieLimit(1)
    for leaves in (0, 1):
        those = await visits(limit, 3, "a", "b")
        await those[leaves].leave()
        assert those[2].at == "ab"[leaves]
        await end(*(those[1 - leaves], those[2]))


async def test_who_waits_for_one_bookie_is_not_let_in_by_another() -> None:
    limit = BookieLimit(1)
    [at_a], [at_b], [waits] = [await visits(limit, 1, name) for name in ("a", "b", "a")]
    await at_b.leave()
    assert waits.at is None
    await at_a.leave()
    assert waits.at == "a"
    await waits.leave()


async def test_the_bookie_that_is_wanted_is_waited_for_and_another_taken_after_a_while() -> None:
    limit = BookieLimit(1)
    [there] = await visits(limit, 1, "a")
    waiting = asyncio.ensure_future(place(limit, rather="a", patience_seconds=60))
    await settled()
    assert not waiting.done(), "b has a place"
    await there.leave()
    assert await waiting == "a"
    [there] = await visits(limit, 1, "a")
    assert await place(limit, rather="a", patience_seconds=0.01) == "b"
    assert await place(limit, rather="c", patience_seconds=60) == "b", "it is none of those that can be had"
    await there.leave()


async def test_places_go_to_those_who_have_waited_longest() -> None:
    limit = BookieLimit(1)
    there, *others = await visits(limit, 4, "a")
    for number, following in enumerate(others):
        await there.leave()
        [late] = await visits(limit, 1, "a")
        assert [each.at for each in (*others, late)] == [*["a"] * (number + 1), *[None] * (len(others) - number)]
        late.task.cancel()
        there = following
    await there.leave()


async def test_who_is_cancelled_at_the_moment_of_getting_a_place_leaves_it_to_the_next() -> None:
    limit = BookieLimit(1)
    async with limit.one_of(["a"]):
        waits, last = await visits(limit, 2, "a")
    assert (waits.at, last.at) == (None, None), "the place is given, and nobody has run yet"
    waits.task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waits.task
    await settled()
    assert last.at == "a"
    await last.leave()


async def test_a_place_that_becomes_free_at_the_moment_at_which_somebody_gives_up_goes_to_the_next() -> None:
    limit = BookieLimit(1)
    async with limit.one_of(["a"]):
        waits, last = await visits(limit, 2, "a")
        waits.task.cancel()
    await settled()
    assert (waits.task.cancelled(), last.at) == (True, "a")
    await last.leave()


async def test_a_place_comes_back_from_whoever_is_cancelled_there_and_who_is_cancelled_waiting_takes_none() -> None:
    limit = BookieLimit(1)
    there, waits, last = await visits(limit, 3, "a")
    for visit in (waits, there):
        visit.task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await visit.task
    await settled()
    assert last.at == "a"
    await last.leave()
