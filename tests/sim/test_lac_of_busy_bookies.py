"""Reads of the LAC from busy bookies, or from bookies that the ledger has left: which are awaited, and for how long."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from itertools import pairwise

import pytest

from tallybook.client.client import Client
from tallybook.client.reader.lac import highest_lac
from tallybook.client.writer.handle import LedgerWriter
from tallybook.core.answers import LacAnswer
from tallybook.core.errors import BookieUnavailable, Busy, InvariantViolation, MetadataUnavailable, NoSuchLedger
from tallybook.core.quorum import Quorum
from tallybook.metadata.ledger.model import Fragment, LedgerMetadata
from tallybook.metadata.store import Ok
from tallybook.runtime.concurrency.backoff import Backoff

from ..simulated import scenario
from ..support.ledger_scenario import SMALL
from ..support.memory_cluster import MemoryCluster
from .parts import ReadHook, written_ledger

OLD = ("bookie-0", "bookie-1", "bookie-2")
NEW = ("bookie-3", "bookie-4", "bookie-5")


async def written(cluster: MemoryCluster, client: Client) -> LedgerWriter:
    """A ledger of ten entries on all bookies."""
    ledger = await written_ledger(client, 10)
    await cluster.world.clock.sleep(1)
    return ledger


def busy_until(cluster: MemoryCluster, name: str, second: float, *, hint_ms: int) -> list[float]:
    """Make a bookie BUSY until this second; return a list of the times at which it was asked for the LAC."""
    clock = cluster.world.clock
    asked: list[float] = []

    async def gate(method: str, _: int) -> None:
        if method == "read_lac":
            asked.append(clock.monotonic())
            if clock.monotonic() < second:
                raise Busy("later", retry_after_ms=hint_ms)

    cluster.bookies[name].gate = gate
    return asked


@pytest.mark.parametrize("hint_ms", [0, 5, 300])
@scenario()
async def test_bookies_that_are_busy_for_a_moment_are_waited_for(
    cluster: MemoryCluster, client: Client, *, hint_ms: int
) -> None:
    ledger = await written(cluster, client)
    clock = cluster.world.clock
    names = ledger.metadata.last_fragment.bookies

    def busy(count: int) -> list[list[float]]:
        began = clock.monotonic()
        return [busy_until(cluster, name, began + 0.02, hint_ms=hint_ms) for name in names[:count]]

    asked = busy(2)
    reader = await client.open_ledger(ledger.id, recover=False)
    assert reader.last_add_confirmed == 9
    assert all(later - sooner >= hint_ms / 1000 for times in asked for sooner, later in pairwise(times))
    busy(2)
    await ledger.append(b"one more")
    await clock.sleep(1)
    busy(2)
    assert await reader.read_last_add_confirmed() == 10
    busy(3)
    other = await client.open_ledger(ledger.id, recover=False)
    busy(3)
    assert await other.try_read_last_add_confirmed() == 10


@scenario()
async def test_a_busy_bookie_is_not_awaited_where_the_others_suffice(cluster: MemoryCluster, client: Client) -> None:
    ledger = await written(cluster, client)
    clock = cluster.world.clock
    asked = busy_until(cluster, ledger.metadata.last_fragment.bookies[0], clock.monotonic() + 60, hint_ms=800)
    began = clock.monotonic()
    reader = await client.open_ledger(ledger.id, recover=False)
    assert await reader.try_read_last_add_confirmed() == reader.last_add_confirmed == 9
    assert clock.monotonic() - began < 0.1
    assert len(asked) == 2, "once for each of the two questions"


@scenario()
async def test_a_busy_bookie_is_asked_again_although_another_one_hangs(cluster: MemoryCluster, client: Client) -> None:
    ledger = await written(cluster, client)
    first, second, _ = ledger.metadata.last_fragment.bookies
    busy_until(cluster, first, cluster.world.clock.monotonic() + 0.02, hint_ms=5)
    cluster.bookies[second].pause()
    assert (await client.open_ledger(ledger.id, recover=False)).last_add_confirmed == 9


@scenario()
async def test_bookies_that_stay_busy_are_given_up_after_the_time_of_a_request(
    cluster: MemoryCluster, client: Client
) -> None:
    ledger = await written(cluster, client)
    clock = cluster.world.clock
    reader = await client.open_ledger(ledger.id, recover=False)
    for name in ledger.metadata.last_fragment.bookies:
        busy_until(cluster, name, clock.monotonic() + 60, hint_ms=100)
    for attempt in (
        client.open_ledger(ledger.id, recover=False),
        reader.read_last_add_confirmed(),
        reader.try_read_last_add_confirmed(),
    ):
        began = clock.monotonic()
        with pytest.raises(BookieUnavailable) as refused:
            await attempt
        assert refused.value.retriable
        assert SMALL.request_timeout_ms / 1000 - 0.2 < clock.monotonic() - began < SMALL.request_timeout_ms / 1000 + 0.2


# -- the ledger has left them ----------------------------------------------------------------------


async def moved(cluster: MemoryCluster, ledger_id: int) -> None:
    """Move the ledger to the new bookies and kill the old ones."""
    store = cluster.metadata.client().store
    for name in NEW:
        await cluster.bookies[name].write_lac(ledger_id, 19, b"")
    known = await store.read_ledger(ledger_id, linearizable=True)
    changed = replace(known.value, fragments=(Fragment(0, OLD), Fragment(10, NEW)))
    assert isinstance(await store.update_ledger(changed, known.version), Ok)
    for name in OLD:
        cluster.bookies[name].kill()


async def on_old_bookies(cluster: MemoryCluster, client: Client) -> int:
    """A ledger of ten entries without a writer."""
    made = await client.create_unowned_ledger()
    store = cluster.metadata.client().store
    known = await store.read_ledger(made.ledger_id, linearizable=True)
    assert isinstance(await store.update_ledger(replace(made, fragments=(Fragment(0, OLD),)), known.version), Ok)
    for name in OLD:
        await cluster.bookies[name].write_lac(made.ledger_id, 9, b"")
    return made.ledger_id


@scenario(bookies=6)
async def test_a_ledger_that_moves_while_it_is_opened_is_found_where_it_went(
    cluster: MemoryCluster, client: Client
) -> None:
    ledger_id = await on_old_bookies(cluster, client)
    hook = ReadHook()
    async with cluster.client(SMALL, seen_through=hook) as other:
        hook.then = lambda: moved(cluster, ledger_id)
        reader = await other.open_ledger(ledger_id, recover=False)
        assert reader.last_add_confirmed == 19
        assert reader.metadata.last_fragment.bookies == NEW
        assert hook.reads == 2
        for name in NEW:
            cluster.bookies[name].kill()
        with pytest.raises(BookieUnavailable, match="bookie-3"):
            await reader.read_last_add_confirmed()
        assert hook.reads == 4, "read once to begin with, and once more before giving up"


@scenario(bookies=6)
async def test_a_ledger_that_moves_while_its_lac_is_read_is_found_where_it_went(
    cluster: MemoryCluster, client: Client
) -> None:
    ledger_id = await on_old_bookies(cluster, client)
    hook = ReadHook()
    async with cluster.client(SMALL, seen_through=hook) as other:
        reader = await other.open_ledger(ledger_id, recover=False)
        assert (reader.last_add_confirmed, hook.reads) == (9, 1), "one read of the metadata is enough to open"
        hook.then = lambda: moved(cluster, ledger_id)
        assert await reader.read_last_add_confirmed() == 19


@scenario()
async def test_a_ledger_that_is_closed_while_it_is_opened_ends_where_the_close_says(
    cluster: MemoryCluster, client: Client
) -> None:
    ledger = await written(cluster, client)
    hook = ReadHook()

    async def close() -> None:
        await ledger.close()
        for bookie in cluster.bookies.values():
            bookie.kill()

    async with cluster.client(SMALL, seen_through=hook) as other:
        hook.then = close
        reader = await other.open_ledger(ledger.id, recover=False)
        assert reader.closed
        assert reader.last_add_confirmed == 9


@scenario()
async def test_a_ledger_that_is_deleted_while_it_is_opened_is_no_such_ledger(
    cluster: MemoryCluster, client: Client
) -> None:
    ledger = await written(cluster, client)
    hook = ReadHook()

    async def delete() -> None:
        await client.delete_ledger(ledger.id)
        for bookie in cluster.bookies.values():
            bookie.kill()

    async with cluster.client(SMALL, seen_through=hook) as other:
        hook.then = delete
        with pytest.raises(NoSuchLedger):
            await other.open_ledger(ledger.id, recover=False)


@scenario()
async def test_while_the_metadata_cannot_be_read_again_the_silent_bookies_are_reported(
    cluster: MemoryCluster, client: Client
) -> None:
    ledger = await written(cluster, client)
    hook = ReadHook()

    async def go_away() -> None:
        async def no_answer() -> None:
            raise MetadataUnavailable("gone")

        hook.then = no_answer
        for bookie in cluster.bookies.values():
            bookie.kill()

    async with cluster.client(SMALL, seen_through=hook) as other:
        hook.then = go_away
        with pytest.raises(BookieUnavailable, match="too few bookies report"):
            await other.open_ledger(ledger.id, recover=False)


# -- a defect --------------------------------------------------------------------------------------


class OneIsDefect:
    """Connections to three bookies, one with a defect and two slow; and a list of those that answered."""

    def __init__(self) -> None:
        self.under_way = 0

    async def get(self, bookie_id: str) -> OneIsDefect:
        if bookie_id == "b0":
            raise InvariantViolation("this cannot be")
        return self

    async def close(self) -> None:
        pass

    async def read_lac(self, ledger_id: int, **_identity: bytes) -> LacAnswer:
        self.under_way += 1
        try:
            await asyncio.sleep(0.01)
        finally:
            self.under_way -= 1
        return LacAnswer(9, fenced=False)


@scenario()
async def test_no_question_outlives_the_search_for_the_lac(cluster: MemoryCluster, client: Client) -> None:
    connections, clock = OneIsDefect(), cluster.world.clock
    metadata = LedgerMetadata(1, Quorum(3, 3, 2), (Fragment(0, ("b0", "b1", "b2")),), "c", 0)
    before = asyncio.all_tasks()
    busy = Backoff(clock, cluster.world.rng, first_s=1.0, deadline=clock.monotonic() + 5)
    with pytest.raises(InvariantViolation):
        await highest_lac(metadata, connections, busy)
    assert connections.under_way == 0
    assert asyncio.all_tasks() == before
