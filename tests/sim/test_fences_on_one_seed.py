"""Old writers against recoveries, with whole clients. Test names carry ids of docs/project/lessons.md."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from tallybook.client.client import Client
from tallybook.client.reader.handle import LedgerReader
from tallybook.core.add_kind import AddKind
from tallybook.core.answers import ReadAnswer
from tallybook.core.errors import BookieUnavailable, LedgerFenced, NoSuchLedger, TallybookError, Unauthorized
from tallybook.metadata.ledger.model import LedgerMetadata, LedgerState
from tallybook.sim.deterministic import World, run_seed
from tallybook.sim.memory_bookie.bookie import MemoryBookie

from ..simulated import scenario
from ..support.ledger_scenario import SMALL, eventually, lines, read_all
from ..support.memory_cluster import MemoryCluster
from .parts import written_ledger

PIPELINED = 1_000
TEN_MINUTES = 600.0


class HeldAdds:
    """Holds the adds of a writer to one bookie until ``deliver``."""

    def __init__(self, bookie: MemoryBookie) -> None:
        self._take = bookie.add
        self._held: list[Callable[[], None]] = []
        bookie.add = self._hold  # type: ignore[method-assign]

    def _hold(
        self, batch: bytes, key: bytes, on_answer: Any, *, kind: AddKind = AddKind.ORDINARY, **options: Any
    ) -> None:
        if kind.from_recovery:
            self._take(batch, key, on_answer, kind=kind, **options)
        else:
            self._held.append(lambda: self._take(batch, key, on_answer, **options))

    def deliver(self) -> None:
        held, self._held = self._held, []
        for take in held:
            take()


async def race(world: World) -> tuple[bool, LedgerMetadata]:
    """Run one exact schedule; return whether the writer's entry was confirmed, and how the ledger was closed.

    Entry 0 reaches the first bookie and is in flight to the two others. A recovery fences the first two bookies, which
    is enough coverage; its fence of the third one is lost. It reads entry 0: the second and the third bookie do not
    have it, and answer before the first one. So it closes the ledger. Only now the entry arrives at the third bookie.
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


def test_f01_a_recovery_read_fences_a_bookie_that_missed_the_fence_so_nothing_acked_is_cut() -> None:
    told, closed = run_seed(1, race, deadline_seconds=60).value
    assert not told
    assert closed.last_entry_id == -1


def test_f01_without_the_fence_in_recovery_reads_an_acked_entry_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """The schedule above is effective: without the rule it shows the loss."""

    async def without_fence(
        self: MemoryBookie, ledger_id: int, entry_id: int, key: bytes, max_bytes: int = 0
    ) -> ReadAnswer:
        return await self.read_batches(ledger_id, entry_id, entry_id, max_bytes)

    monkeypatch.setattr(MemoryBookie, "recovery_read", without_fence)
    told, closed = run_seed(1, race, deadline_seconds=60).value
    assert told
    assert closed.last_entry_id == -1, "it was told that entry 0 is safe, and the ledger ends before it"


@scenario(deadline_seconds=3600)
async def test_f08_a_writer_that_wakes_up_after_ten_minutes_with_a_thousand_appends_gets_none_of_them_acked(
    cluster: MemoryCluster, client: Client
) -> None:
    async with cluster.client(SMALL) as other:
        ledger = await written_ledger(client, 10)
        assert await read_all(other, ledger.id) == lines(10)
        await cluster.world.clock.sleep(TEN_MINUTES)
        appends = [ledger.append_nowait(payload) for payload in lines(PIPELINED, 10)]
        results = await asyncio.gather(*appends, return_exceptions=True)
        assert {type(result) for result in results} == {LedgerFenced}
        assert await read_all(other, ledger.id) == lines(10)


@pytest.mark.parametrize("recovered", [True, False], ids=["closed by a recovery", "still open"])
@scenario()
async def test_f09_machines_that_come_up_empty_at_the_same_addresses_ack_nothing_to_a_live_writer(
    cluster: MemoryCluster, client: Client, *, recovered: bool
) -> None:
    """The replacements do not know of their predecessors, unlike real bookies: the writer must not count their acks."""
    async with cluster.client(SMALL) as other:
        ledger = await written_ledger(client, 10)
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


# -- F11: each ends in one typed outcome, and nothing acked is lost ----------------------------------------------------


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("hung", [False, True])
@scenario()
async def test_f11_many_opens_at_once_see_one_end_also_with_a_bookie_that_hangs_or_was_restarted(
    cluster: MemoryCluster, client: Client, *, hung: bool, restarted: bool
) -> None:
    ledger = await written_ledger(client, 40)
    bookies = [cluster.bookies[name] for name in ledger.metadata.last_fragment.bookies]
    if hung:
        bookies[2].pause()
    others = [cluster.client(SMALL) for _ in range(8)]
    opening = [asyncio.ensure_future(other.open_ledger(ledger.id)) for other in others]
    if restarted:
        await cluster.world.clock.sleep(0.003)
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


@scenario()
async def test_f11_a_wrong_password_fences_nothing(cluster: MemoryCluster, client: Client) -> None:
    ledger = await written_ledger(client, 5, password=b"right")
    async with cluster.client(SMALL) as other:
        for call in (other.recover_ledger, other.open_ledger):
            for wrong in (b"", b"wrong", b"righ", b"right "):
                with pytest.raises(Unauthorized, match=f"ledger {ledger.id}"):
                    await call(ledger.id, password=wrong)
    assert (await client.ledger_metadata(ledger.id)).state is LedgerState.OPEN
    assert await ledger.append(b"still the writer") == 5
    await ledger.close()


@scenario()
async def test_f11_a_write_after_the_ledger_was_fenced_and_deleted_is_refused(
    cluster: MemoryCluster, client: Client
) -> None:
    ledger = await written_ledger(client, 5)
    async with cluster.client(SMALL) as other:
        await other.recover_ledger(ledger.id)
        await other.delete_ledger(ledger.id)
        with pytest.raises(LedgerFenced):
            await ledger.append(b"late")
        with pytest.raises(NoSuchLedger):
            await other.open_ledger(ledger.id)
