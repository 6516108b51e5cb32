"""A page of a listing that is truncated or repeats earlier items: an error for all callers, never the end."""

from __future__ import annotations

from typing import Final

import pytest

from tallybook.bookie.recovery.limbo_count import named_ledgers
from tallybook.core.answers import DamagedBatch, HeldLedger, HeldLedgers
from tallybook.core.errors import MetadataUnavailable, ProtocolViolation
from tallybook.metadata.memory import MemoryMetadata
from tallybook.metadata.records.bookie_modes import requested_modes
from tallybook.metadata.records.listing import record_names
from tallybook.metadata.store import LedgerPage, MetadataStore, RecordPage
from tallybook.metadata.transactions import Transaction, was_committed
from tallybook.repair.tasks import TaskBoard
from tallybook.runtime.concurrency.rate_limit import RateLimiter
from tallybook.sim.deterministic import World
from tallybook.stream.restore.later_segments import LaterSegments
from tallybook.wire.inspection import DamagedAnswer
from tallybook.wire.lanes import Lane

from ..simulated import simulated
from .test_wire_client import connected


async def all_names(store: MetadataStore, world: World) -> None:
    [name async for name in record_names(store, "sinks/")]


async def all_named(store: MetadataStore, world: World) -> None:
    [ledger_id async for ledger_id in named_ledgers(store, "b1", 9, RateLimiter(world.clock, 0))]


async def all_modes(store: MetadataStore, world: World) -> None:
    await requested_modes(store)


async def all_committed(store: MetadataStore, world: World) -> None:
    await was_committed(store, Transaction("sales", 1))


async def all_tasks(store: MetadataStore, world: World) -> None:
    await TaskBoard(store, world.clock, world.rng, lease_s=10).names()


async def any_task(store: MetadataStore, world: World) -> None:
    await TaskBoard(store, world.clock, world.rng, lease_s=10).claim()


async def all_segments(store: MetadataStore, world: World) -> None:
    await LaterSegments(store).load()


LISTERS: Final = (all_names, all_named, all_modes, all_committed, all_tasks, any_task, all_segments)


@pytest.mark.parametrize("list_all", LISTERS)
@simulated
async def test_a_truncated_page_is_not_taken_for_the_end_of_a_listing(world, *, list_all):
    store = MemoryMetadata(world.rng).client().store
    await list_all(store, world)

    async def no_ledgers(after: int = -1, limit: int = 1000) -> LedgerPage:
        return LedgerPage((), complete=False)

    async def no_records(prefix: str = "", after: str = "", limit: int = 1000) -> RecordPage:
        return RecordPage((), complete=False)

    store.list_ledgers, store.list_records = no_ledgers, no_records
    with pytest.raises(MetadataUnavailable, match="incomplete"):
        await list_all(store, world)


def test_a_listing_goes_on_behind_its_last_item_unless_it_was_all() -> None:
    assert [LedgerPage((3, 7), complete).next_after() for complete in (True, False)] == [None, 7]
    assert [RecordPage(("a", "b"), complete).next_after() for complete in (True, False)] == [None, "b"]
    held = HeldLedger(7, fenced=False, limbo=False, identity=b"")
    assert [HeldLedgers((held,), complete).next_after() for complete in (True, False)] == [None, 7]
    with pytest.raises(ProtocolViolation):
        HeldLedgers((), complete=False).next_after()


@pytest.mark.parametrize("found", [(6, 7), (7,), (8, 8), (9, 8)], ids=["before", "the same", "twice", "not in order"])
@connected()
async def test_a_page_of_a_bookie_that_does_not_go_on_behind_the_one_before_is_a_violation(
    bookie, connection, *, found
):
    held = HeldLedgers(tuple(HeldLedger(each, fenced=False, limbo=False) for each in found), complete=False)
    damaged = DamagedAnswer(tuple(DamagedBatch(1, each, each) for each in found))
    for question, answer in ((connection.held_ledgers(7, 10), held), (connection.damaged((1, 7), 10), damaged)):
        call = bookie.call(question)
        await bookie.reply(Lane.CONTROL, (await bookie.asked(Lane.CONTROL)).request_id, answer)
        with pytest.raises(ProtocolViolation, match="the request was after"):
            await call
