"""Old writers against recoveries, whole clients on one seed. Test names carry ids of docs/lessons.md."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from tallybook.client.client import Client
from tallybook.client.reader.handle import LedgerReader
from tallybook.core.answers import ReadAnswer
from tallybook.core.errors import BookieUnavailable, LedgerFenced, NoSuchLedger, TallybookError, Unauthorized
from tallybook.metadata.model import LedgerMetadata
from tallybook.runtime.deterministic import World, run_seed
from tallybook.sim.stage.cluster import MemoryCluster
from tallybook.sim.stage.memory_bookie import MemoryBookie
from tallybook.sim.stage.scenario import SMALL, eventually, lines, read_all, scenario

PIPELINED = 1_000
TEN_MINUTES = 600.0


class HeldAdds:
    """Keeps what a writer sends to one bookie on its way, until ``deliver``."""

    def __init__(self, bookie: MemoryBookie) -> None:
        self._take = bookie.add
        self._held: list[Callable[[], None]] = []
        bookie.add = self._hold  # type: ignore[method-assign]

    def _hold(self, batch: bytes, key: bytes, on_answer: Any, *, recovery: bool = False, **options: Any) -> None:
        if recovery:
            self._take(batch, key, on_answer, recovery=True, **options)
        else:
            self._held.append(lambda: self._take(batch, key, on_answer, **options))

    def deliver(self) -> None:
        held, self._held = self._held, []
        for take in held:
            take()


async def race(world: World) -> tuple[bool, LedgerMetadata]:
    """The exact schedule: whether the writer heard that its entry is safe, and how the ledger was closed.

    Entry 0 reaches the first bookie, and is on its way to the two others. A recovery fences the first two bookies,
    which is coverage enough; its fence of the third one is lost. It reads entry 0: the second and the third bookie do
    not have it, and say so before the first one answers. That is the end of the ledger. Only now the entry arrives at
    the third.
    """
    cluster = MemoryCluster(world, bookies=3)
    await cluster.start()
    async with cluster.client(SMALL) as client, cluster.client(SMALL) as other:
        ledger = await client.create_ledger()
        first, second, third = (cluster.bookies[name] for name in ledger.metadata.last_fragment.bookies)
        to_second, to_third = HeldAdds(second), HeldAdds(third)
        first_answers = asyncio.Event()

        async def slow_reads(method: str, ledger_id: int) -> None:
            if method in ("recovery_read", "read_batches"):
                await first_answers.wait()

        async def lost(ledger_id: int, key: bytes) -> None:
            raise BookieUnavailable("the fence was lost on its way")

        first.gate = slow_reads
        third.fence = lost  # type: ignore[method-assign,assignment]
        pending = ledger.append_nowait(b"acked by two of three?")
        await eventually(lambda: bool(first.durable_batches(ledger.id)), cluster, seconds=1)
        closed = await other.recover_ledger(ledger.id)
        to_third.deliver()
        await world.clock.sleep(0.1)
        to_second.deliver()
        first_answers.set()
        (outcome,) = await asyncio.gather(pending, return_exceptions=True)
        told = outcome == 0
        assert told or isinstance(outcome, LedgerFenced)
        ledger.abandon()
    await cluster.stop()
    return told, closed


def test_f01_a_recovery_read_fences_who_missed_the_fence_so_nothing_acked_is_cut() -> None:
    told, closed = run_seed(1, race, deadline_seconds=60).value
    assert not told
    assert closed.last_entry_id == -1


def test_f01_without_the_fence_in_recovery_reads_an_acked_entry_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the schedule above is worth: with the rule off, it shows the loss."""

    async def without_fence(
        self: MemoryBookie, ledger_id: int, entry_id: int, key: bytes, max_bytes: int = 0
    ) -> ReadAnswer:
        return await self.read_batches(ledger_id, entry_id, entry_id, max_bytes)

    monkeypatch.setattr(MemoryBookie, "recovery_read", without_fence)
    told, closed = run_seed(1, race, deadline_seconds=60).value
    assert told
    assert closed.last_entry_id == -1, "it was told that entry 0 is safe, and the ledger ends before it"


def test_f08_a_writer_that_wakes_up_after_ten_minutes_with_a_thousand_appends_gets_none_of_them_acked() -> None:
    async def play(world: World) -> None:
        cluster = MemoryCluster(world, bookies=3)
        await cluster.start()
        async with cluster.client(SMALL) as client, cluster.client(SMALL) as other:
            ledger = await client.create_ledger()
            await ledger.append_many(lines(10))
            assert await read_all(other, ledger.id) == lines(10)
            await world.clock.sleep(TEN_MINUTES)
            appends = [ledger.append_nowait(payload) for payload in lines(PIPELINED, 10)]
            results = await asyncio.gather(*appends, return_exceptions=True)
            assert {type(result) for result in results} == {LedgerFenced}
            assert await read_all(other, ledger.id) == lines(10)
        await cluster.stop()

    run_seed(1, play, deadline_seconds=3600)


@pytest.mark.parametrize("recovered", [True, False], ids=["closed by a recovery", "still open"])
def test_f09_machines_that_come_up_empty_at_the_same_addresses_ack_nothing_to_a_live_writer(recovered: bool) -> None:
    """They do not even know that they replace others, as no real bookie may be: the writer must not count them."""

    async def play(world: World) -> None:
        cluster = MemoryCluster(world, bookies=3)
        await cluster.start()
        async with cluster.client(SMALL) as client, cluster.client(SMALL) as other:
            ledger = await client.create_ledger()
            await ledger.append_many(lines(10))
            if recovered:
                await other.recover_ledger(ledger.id)
            for bookie in cluster.bookies.values():
                bookie.replace()
            appends = [ledger.append_nowait(payload) for payload in lines(50, 10)]
            results = await asyncio.gather(*appends, return_exceptions=True)
            assert all(isinstance(result, TallybookError) for result in results), results
            metadata = await other.ledger_metadata(ledger.id)
            assert not recovered or metadata.last_entry_id == 9
            ledger.abandon()
        await cluster.stop()

    run_seed(1, play, deadline_seconds=600)


# -- F11: each ends in one typed outcome, and nothing acked is lost ----------------------------------------------------


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("hung", [False, True])
def test_f11_many_opens_at_once_see_one_end_also_with_a_bookie_that_hangs_or_was_restarted(
    hung: bool, restarted: bool
) -> None:
    async def play(world: World) -> None:
        cluster = MemoryCluster(world, bookies=3)
        await cluster.start()
        async with cluster.client(SMALL) as client:
            ledger = await client.create_ledger()
            await ledger.append_many(lines(40))
            bookies = [cluster.bookies[name] for name in ledger.metadata.last_fragment.bookies]
            if hung:
                bookies[2].pause()
            others = [cluster.client(SMALL) for _ in range(8)]
            opening = [asyncio.ensure_future(other.open_ledger(ledger.id)) for other in others]
            if restarted:
                await world.clock.sleep(0.003)
                bookies[0].restart()
            readers = await asyncio.gather(*opening, return_exceptions=True)
            assert all(isinstance(reader, LedgerReader | TallybookError) for reader in readers)
            bookies[2].resume()
            ends = {(await other.recover_ledger(ledger.id)).last_entry_id for other in others}
            assert len(ends) == 1
            assert ends.pop() >= 39
            with pytest.raises(LedgerFenced):
                await ledger.append(b"late")
            assert (await read_all(others[0], ledger.id))[:40] == lines(40)
            for other in others:
                await other.close()
            ledger.abandon()
        await cluster.stop()

    run_seed(1, play, deadline_seconds=600)


@scenario()
async def test_f11_a_wrong_password_fences_nothing(cluster: MemoryCluster, client: Client) -> None:
    ledger = await client.create_ledger(password=b"right")
    await ledger.append_many(lines(5))
    async with cluster.client(SMALL) as other:
        for call in (other.recover_ledger, other.open_ledger):
            with pytest.raises(Unauthorized):
                await call(ledger.id, password=b"wrong")
    assert await ledger.append(b"still the writer") == 5
    await ledger.close()


@scenario()
async def test_f11_a_write_after_the_ledger_was_fenced_and_deleted_is_refused(
    cluster: MemoryCluster, client: Client
) -> None:
    ledger = await client.create_ledger()
    await ledger.append_many(lines(5))
    async with cluster.client(SMALL) as other:
        await other.recover_ledger(ledger.id)
        await other.delete_ledger(ledger.id)
        with pytest.raises(LedgerFenced):
            await ledger.append(b"late")
        with pytest.raises(NoSuchLedger):
            await other.open_ledger(ledger.id)
