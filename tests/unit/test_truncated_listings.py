"""A page of a listing that was cut off, or repeats what was listed: an error for all who list, never the end."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

import pytest

from tallybook.bookie.limbo_count import named_ledgers
from tallybook.core.answers import DamagedBatch, HeldLedger, HeldLedgers
from tallybook.core.errors import MetadataUnavailable, ProtocolViolation
from tallybook.metadata.bookie_modes import wanted_modes
from tallybook.metadata.commits import was_committed
from tallybook.metadata.memory import MemoryMetadata
from tallybook.metadata.store import LedgerPage, MetadataStore, RecordPage
from tallybook.metadata.transactions import Transaction, names
from tallybook.repair.tasks import TaskBoard
from tallybook.runtime.deterministic import World, run_seed
from tallybook.runtime.grpc_inspection import DamagedAnswer
from tallybook.runtime.pace import Pace
from tallybook.runtime.transport import Lane
from tallybook.stream.later_segments import LaterSegments

from .test_wire_client import Scripted, scripted


async def all_names(store: MetadataStore, world: World) -> None:
    [name async for name in names(store, "sinks/")]


async def all_named(store: MetadataStore, world: World) -> None:
    [ledger_id async for ledger_id in named_ledgers(store, "b1", 9, Pace(world.clock, 0))]


async def all_modes(store: MetadataStore, world: World) -> None:
    await wanted_modes(store)


async def all_committed(store: MetadataStore, world: World) -> None:
    await was_committed(store, Transaction("sales", 1))


async def all_tasks(store: MetadataStore, world: World) -> None:
    await TaskBoard(store, world.clock, world.rng, lease_s=10).names()


async def any_task(store: MetadataStore, world: World) -> None:
    await TaskBoard(store, world.clock, world.rng, lease_s=10).take()


async def all_segments(store: MetadataStore, world: World) -> None:
    await LaterSegments(store).load()


LISTERS: Final = (all_names, all_named, all_modes, all_committed, all_tasks, any_task, all_segments)


@pytest.mark.parametrize("list_all", LISTERS)
def test_who_lists_does_not_take_a_page_that_was_cut_off_for_the_end(
    list_all: Callable[[MetadataStore, World], Awaitable[None]],
) -> None:
    async def scenario(world: World) -> None:
        store = MemoryMetadata(world.rng).client().store
        await list_all(store, world)

        async def no_ledgers(after: int = -1, limit: int = 1000) -> LedgerPage:
            return LedgerPage((), complete=False)

        async def no_records(prefix: str = "", after: str = "", limit: int = 1000) -> RecordPage:
            return RecordPage((), complete=False)

        store.list_ledgers, store.list_records = no_ledgers, no_records  # type: ignore[method-assign]
        with pytest.raises(MetadataUnavailable, match="cut off"):
            await list_all(store, world)

    run_seed(1, scenario)


def test_a_listing_goes_on_behind_its_last_item_unless_it_was_all() -> None:
    assert [LedgerPage((3, 7), complete).next_after() for complete in (True, False)] == [None, 7]
    assert [RecordPage(("a", "b"), complete).next_after() for complete in (True, False)] == [None, "b"]
    held = HeldLedger(7, fenced=False, limbo=False, identity=b"")
    assert [HeldLedgers((held,), complete).next_after() for complete in (True, False)] == [None, 7]
    with pytest.raises(ProtocolViolation):
        HeldLedgers((), complete=False).next_after()


@pytest.mark.parametrize("found", [(6, 7), (7,), (8, 8), (9, 8)], ids=["before", "the same", "twice", "not in order"])
@scripted
async def test_a_page_of_a_bookie_that_does_not_go_on_behind_the_one_before_is_a_violation(
    bookie: Scripted, found: tuple[int, ...]
) -> None:
    connection = await bookie.open()
    held = HeldLedgers(tuple(HeldLedger(each, fenced=False, limbo=False) for each in found), complete=False)
    damaged = DamagedAnswer(tuple(DamagedBatch(1, each, each) for each in found))
    for question, answer in ((connection.held_ledgers(7, 10), held), (connection.damaged((1, 7), 10), damaged)):
        call = bookie.call(question)
        await bookie.reply(Lane.CONTROL, (await bookie.asked(Lane.CONTROL)).request_id, answer)
        with pytest.raises(ProtocolViolation, match="behind"):
            await call
    await connection.close()
