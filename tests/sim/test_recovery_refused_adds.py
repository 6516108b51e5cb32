"""Errors of healthy bookies during a recovery: batch too large, metadata unavailable, or ledger dropped."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence

import pytest

from tallybook.client.client import Client
from tallybook.core.answers import AddAnswer, FenceAnswer
from tallybook.core.batch import decode_header
from tallybook.core.buffers import Buffer
from tallybook.core.errors import MetadataUnavailable, NoSuchLedger, RecoveryFailed, TallybookError
from tallybook.metadata.ledger.model import LedgerMetadata

from ..simulated import scenario
from ..support.ledger_scenario import read_all
from ..support.memory_cluster import MemoryCluster
from .test_recovery_write_back import hold
from .test_repair import metadata_of

LOWERED = 400
LARGE = [b"x" * 600]


async def held_by(cluster: MemoryCluster, client: Client, at: Sequence[int], batches: int = 5) -> tuple[int, list[str]]:
    """A ledger without a writer, whose members at these positions have batches, the second one large."""
    ledger = await client.create_ledger()
    ledger.abandon()
    members = list(ledger.metadata.last_fragment.bookies)
    for first in range(batches):
        for position in at:
            await hold(cluster, members[position], ledger.id, first, LARGE if first == 1 else [b"small"])
    return ledger.id, members


def away_at_first(cluster: MemoryCluster, name: str, seconds: float) -> None:
    """The bookie cannot reach the metadata store for a while, so it refuses adds of unknown ledgers."""
    bookie = cluster.bookies[name]
    right, until = bookie.add, cluster.world.clock.monotonic() + seconds

    def add(batch: Buffer, key: bytes, on_answer, **more) -> None:  # type: ignore[no-untyped-def]
        if cluster.world.clock.monotonic() < until:
            header = decode_header(batch)
            ids = (header.ledger_id, header.first_entry_id, header.entry_count)
            on_answer(AddAnswer(*ids, MetadataUnavailable.wire_code))
            return
        right(batch, key, on_answer, **more)

    bookie.add = add  # type: ignore[method-assign]


@pytest.mark.parametrize("small", [1, 2, 3])
@scenario(bookies=3)
async def test_a_limit_that_was_lowered_below_what_members_hold_stops_no_recovery(
    cluster: MemoryCluster, client: Client, *, small: int
) -> None:
    ledger_id, members = await held_by(cluster, client, range(3))
    for name in members[:small]:
        cluster.bookies[name].max_batch_bytes = LOWERED
    closed = await client.recover_ledger(ledger_id)
    assert (closed.last_entry_id, closed.missed) == (4, ())
    assert [list(fragment.bookies) for fragment in closed.fragments] == [members]


@scenario(bookies=3)
async def test_a_member_that_does_not_take_a_batch_because_of_its_size_gets_all_others(
    cluster: MemoryCluster, client: Client
) -> None:
    ledger_id, (small, *_) = await held_by(cluster, client, (1, 2), batches=600)
    cluster.bookies[small].max_batch_bytes = LOWERED
    closed = await client.recover_ledger(ledger_id)
    assert closed.last_entry_id == 599
    assert [(gap.bookie_id, gap.first_entry_id, gap.last_entry_id) for gap in closed.missed] == [(small, 1, 1)]
    assert set(range(600)) - cluster.bookies[small].durable_batches(ledger_id).keys() == {1}
    assert len(await read_all(client, ledger_id)) == 600


@scenario(bookies=4)
async def test_a_bookie_that_refuses_a_batch_as_too_large_is_replaced(cluster: MemoryCluster, client: Client) -> None:
    ledger_id, (small, *_) = await held_by(cluster, client, (1, 2))
    cluster.bookies[small].max_batch_bytes = LOWERED
    closed = await client.recover_ledger(ledger_id)
    assert (closed.last_entry_id, closed.missed) == (4, ())
    assert small in closed.fragments[0].bookies
    assert small not in closed.fragments[1].bookies
    assert closed.fragments[1].first_entry_id == 1


@scenario(bookies=3)
async def test_a_batch_that_too_few_members_take_because_of_its_size_fails_the_recovery(
    cluster: MemoryCluster, client: Client
) -> None:
    ledger_id, members = await held_by(cluster, client, (2,))
    for name in members[:2]:
        cluster.bookies[name].max_batch_bytes = LOWERED
    with pytest.raises(RecoveryFailed, match=r"entry 1 could not be written back: .*EntryTooLarge"):
        await client.recover_ledger(ledger_id)
    assert not (await metadata_of(cluster, ledger_id)).closed


@pytest.mark.parametrize(("bookies", "away"), [(4, 1), (3, 1), (3, 2), (3, 3)])
def test_a_member_that_does_not_reach_the_metadata_for_a_moment_is_waited_for(bookies: int, away: int) -> None:
    @scenario(bookies=bookies)
    async def play(cluster: MemoryCluster, client: Client) -> None:
        ledger_id, members = await held_by(cluster, client, (2,))
        for name in members[:away]:
            away_at_first(cluster, name, 0.2)
        closed = await client.recover_ledger(ledger_id)
        assert (closed.last_entry_id, closed.missed) == (4, ())
        assert [list(fragment.bookies) for fragment in closed.fragments] == [members]

    play()


async def outcome_of(recovery: Awaitable[LedgerMetadata]) -> LedgerMetadata | type[Exception]:
    """Metadata after the recovery, or the class of its error."""
    try:
        return await recovery
    except TallybookError as error:
        return type(error)


@pytest.mark.parametrize("deleted", [False, True], ids=["released", "deleted"])
@scenario(bookies=3)
async def test_a_recovery_whose_bookies_dropped_the_ledger_meanwhile_reports_its_state_in_the_metadata(
    cluster: MemoryCluster, client: Client, *, deleted: bool
) -> None:
    ledger_id, members = await held_by(cluster, client, range(3))
    dropped = asyncio.Event()

    async def fence(ledger_id: int, _key: bytes) -> FenceAnswer:
        await dropped.wait()
        raise NoSuchLedger(f"ledger {ledger_id} was deleted")

    rights = {name: cluster.bookies[name].fence for name in members}
    for name in members:
        cluster.bookies[name].fence = fence  # type: ignore[method-assign]
    async with asyncio.TaskGroup() as group, cluster.client() as other:
        overtaken = group.create_task(outcome_of(client.recover_ledger(ledger_id)))
        await cluster.world.clock.sleep(0.01)
        for name in members:
            cluster.bookies[name].fence = rights[name]  # type: ignore[method-assign]
        end = await other.recover_ledger(ledger_id)
        if deleted:
            await other.delete_ledger(ledger_id)
        dropped.set()
    assert overtaken.result() == (NoSuchLedger if deleted else end)
