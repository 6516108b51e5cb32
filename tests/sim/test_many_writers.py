"""Very many writers of one client share tasks and timers of the client and its connections."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, cast

from tallybook.client.background import client_tasks
from tallybook.client.client import Client
from tallybook.client.writer.ensemble.connecting import BookieConnector
from tallybook.client.writer.handle import LedgerWriter
from tallybook.core.errors import AccessDenied, BookieUnavailable, TallybookError
from tallybook.core.settings import ClientSettings
from tallybook.runtime.concurrency.loop_slices import SlicedCallbacks
from tallybook.sim.deterministic import World

from ..simulated import Parts, on_stage, scenario
from ..support.memory_cluster import MemoryCluster
from .parts import hold_commits, release_commits

SETTINGS = ClientSettings(add_timeout_ms=2000)
MANY = 300


async def open_ledgers(client: Client, count: int) -> list[LedgerWriter]:
    """Create so many ledgers with one entry each."""
    writers = [await client.create_ledger() for _ in range(count)]
    await append_to_all(writers)
    return writers


async def append_to_all(writers: list[LedgerWriter]) -> None:
    await asyncio.gather(*(writer.append(b"an entry") for writer in writers))


def work_of_writers() -> list[str]:
    """Names of tasks of all writers, shared or not."""
    return [name for task in asyncio.all_tasks() if "writer" in (name := task.get_name())]


@scenario(deadline_seconds=3600)
async def test_writers_that_wait_for_acks_or_for_a_bookie_share_their_tasks(
    cluster: MemoryCluster, client: Client
) -> None:
    async with cluster.client(SETTINGS) as many:
        writers = await open_ledgers(many, MANY)
        await cluster.world.clock.sleep(10)
        assert work_of_writers() == [], "at rest"
        hold_commits(cluster)
        appending = asyncio.ensure_future(append_to_all(writers))
        await cluster.world.clock.sleep(1)
        assert len(work_of_writers()) <= 2, "one timer, and one for those without an ack quorum"
        release_commits(cluster)
        await appending
        away = cluster.bookies[min(cluster.bookies)]
        away.kill()
        await append_to_all(writers)
        await cluster.world.clock.sleep(1)
        assert len(work_of_writers()) <= 3, "and one for the bookie that is away"


@scenario(deadline_seconds=3600)
async def test_a_writer_has_one_task_of_its_own_while_it_finds_no_replacement_and_none_once_it_has_one(
    cluster: MemoryCluster, client: Client
) -> None:
    async with cluster.client(SETTINGS) as many:
        writers = await open_ledgers(many, MANY)
        cluster.bookies[min(cluster.bookies)].kill()
        await append_to_all(writers)
        for seconds in (SETTINGS.away_timeout_ms / 1000, 5, 60):
            await cluster.world.clock.sleep(seconds)
            work = work_of_writers()
            looking = {name for name in work if name.endswith("-replacing")}
            assert len(looking) == MANY
            assert len(work) - len(looking) <= 3, "they share the others"
        cluster.add("bookie-3")
        await cluster.register("bookie-3")
        await cluster.world.clock.sleep(30)
        assert work_of_writers() == [], "at rest"
        assert {len(writer.metadata.fragments) for writer in writers} == {2}


class Position:
    """A caller that waits for a connection and records the result."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def reached(self, connection: object) -> None:
        self.told.append("reached")

    def unreached(self, error: TallybookError) -> None:
        self.told.append(str(error))

    def broken(self, error: TallybookError) -> None:
        self.told.append(f"broken: {error}")


class Attempts:
    """Connections that fail with the result of ``outcome``, if any."""

    def __init__(self) -> None:
        self.made = 0
        self.outcome: Callable[[], Exception | None] = lambda: None

    async def get(self, bookie_id: str) -> object:
        self.made += 1
        if (error := self.outcome()) is not None:
            raise error
        return object()

    async def close(self) -> None:
        pass


@asynccontextmanager
async def connector(world: World) -> AsyncIterator[Parts]:
    tasks, attempts = client_tasks("test"), Attempts()
    slices = SlicedCallbacks(world.clock)
    reach = BookieConnector(cast("Any", attempts), world.clock, world.rng, tasks, slices, pause_s=1.0)
    yield {"attempts": attempts, "reach": reach}
    await tasks.close()


reaching = on_stage(connector)


@reaching
async def test_one_attempt_at_a_time_serves_all_that_wait_for_a_bookie(
    world: World, attempts: Attempts, reach: BookieConnector
) -> None:
    attempts.outcome = lambda: BookieUnavailable("it is away")
    waiting = [Position() for _ in range(100)]
    for each in waiting:
        reach.want("b1", each)
    gone = waiting.pop()
    await world.clock.sleep(9.5)
    reach.leave("b1", gone)
    made = attempts.made
    assert 10 <= made <= 19  # pauses of half a second to one
    late = Position()
    reach.want("b1", late)
    attempts.outcome = lambda: None
    await world.clock.sleep(1)
    assert attempts.made == made + 1
    assert {tuple(each.told) for each in (*waiting, late)} == {("it is away", "reached")}, "a reason is told once"
    assert gone.told == ["it is away"]
    reach.want("b1", gone)
    await world.clock.sleep(0)
    assert attempts.made == made + 2, "who comes later is not forgotten"


@reaching
async def test_each_new_reason_is_reported_and_a_refusal_each_time(
    world: World, attempts: Attempts, reach: BookieConnector
) -> None:
    reasons: list[TallybookError] = [
        BookieUnavailable("it is away"), BookieUnavailable("it is away"), BookieUnavailable("it is not registered"),
        AccessDenied("a reader"), AccessDenied("a reader"),
    ]  # fmt: skip
    attempts.outcome = lambda: reasons.pop(0) if reasons else None
    waits = Position()
    reach.want("b1", waits)
    await world.clock.sleep(10)
    assert waits.told == ["it is away", "it is not registered", "a reader", "a reader", "reached"]


@reaching
async def test_a_defect_in_an_attempt_is_raised_in_all_waiting_calls(
    world: World, attempts: Attempts, reach: BookieConnector
) -> None:
    attempts.outcome = lambda: ValueError("a defect")
    waiting = [Position() for _ in range(3)]
    for each in waiting:
        reach.want("b1", each)
    await world.clock.sleep(1)
    assert all("broken" in told and "a defect" in told for each in waiting for told in each.told)
    assert [len(each.told) for each in waiting] == [1, 1, 1]
