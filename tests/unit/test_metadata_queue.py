"""The queue of a client's writers for the metadata store: who is next."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from tallybook.client.writer.ensemble.metadata_queue import MetadataQueue, MetadataTurn


class Writers:
    """Writers that wait for a turn, and keep it until they are released."""

    def __init__(self, most: int, kept: int) -> None:
        self.line = MetadataQueue(most, kept)
        self.had: list[str] = []
        self.turns: dict[str, MetadataTurn] = {}
        self._ends: dict[str, asyncio.Event] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    async def come(self, *names: str, urgent: bool = False) -> None:
        for name in names:
            self._ends[name] = asyncio.Event()
            self.turns[name] = self.line.turn(urgent=urgent)
            self._tasks[name] = asyncio.ensure_future(self._work(name))
        await settle()

    async def _work(self, name: str) -> None:
        async with self.turns[name]:
            self.had.append(name)
            await self._ends[name].wait()

    async def go(self, *names: str) -> None:
        for name in names:
            self._ends[name].set()
        await asyncio.gather(*(self._tasks[name] for name in names))
        await settle()

    async def give_up(self, name: str, beside: Callable[[], None] = lambda: None) -> None:
        beside()
        self._tasks[name].cancel()
        await asyncio.wait([self._tasks[name]])
        await settle()


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_urgent_writers_pass_those_that_wait_and_have_places_of_their_own() -> None:
    writers = Writers(most=3, kept=1)
    await writers.come("a", "b", "c", "d")
    assert writers.had == ["a", "b"]
    await writers.come("u", "v", urgent=True)
    assert writers.had == ["a", "b", "u"]
    await writers.go("a")
    assert writers.had == ["a", "b", "u", "v"]
    await writers.go("u", "v")
    assert writers.had == ["a", "b", "u", "v", "c"]
    await writers.go("b", "c", "d")


async def test_a_writer_that_becomes_urgent_while_it_waits_moves_up() -> None:
    writers = Writers(most=2, kept=1)
    await writers.come("a", "b", "c")
    writers.turns["c"].hurry()
    await settle()
    assert writers.had == ["a", "c"]
    writers.turns["c"].hurry()
    await writers.go("a", "c")
    assert writers.had == ["a", "c", "b"]
    await writers.go("b")


async def test_a_writer_that_gives_up_leaves_its_place_to_the_next_one() -> None:
    writers = Writers(most=1, kept=0)
    await writers.come("a", "b", "c", "d")
    await writers.give_up("b")
    writers.turns["b"].hurry()
    # It is given up at the moment at which it gets its turn.
    await writers.give_up("c", writers._ends["a"].set)
    await writers.go("d")
    assert writers.had == ["a", "d"]
    await writers.come("e")
    assert writers.had == ["a", "d", "e"]
    await writers.go("e")
