"""The number of ledgers that a bookie answers UNKNOWN for, including those of which it has no entries left."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tallybook.bookie.directories.limbo import Limbo
from tallybook.bookie.ledgers.state import LedgerRow
from tallybook.bookie.ledgers.table import LedgerTable
from tallybook.bookie.recovery.limbo_count import LimboCount, named_ledgers
from tallybook.core.errors import MetadataUnavailable
from tallybook.core.quorum import Quorum
from tallybook.metadata.ledger.model import Fragment, LedgerMetadata, LedgerState
from tallybook.metadata.memory import MemoryMetadata
from tallybook.metadata.store import LedgerPage
from tallybook.runtime.concurrency.rate_limit import RateLimiter
from tallybook.runtime.rng import SeededRng
from tallybook.sim.deterministic import World

from ..simulated import simulated

TWO = Quorum(2, 2, 1)
REPLACED = Limbo(events=1, below=9)


def ledger(ledger_id: int, *ensembles: str, last: int | None = None) -> LedgerMetadata:
    """An open ledger, or one that ends at ``last``, with one fragment of ten entries for each ensemble."""
    fragments = tuple(Fragment(10 * at, tuple(names.split())) for at, names in enumerate(ensembles))
    if last is None:
        return LedgerMetadata(ledger_id, TWO, fragments, "creator", 0)
    return LedgerMetadata(
        ledger_id, TWO, fragments, "creator", 0, LedgerState.CLOSED, last_entry_id=last, length=last + 1
    )


def table(rows: dict[int, LedgerRow], limbo: Limbo = REPLACED) -> LedgerTable:
    async def load(ledger_id: int) -> LedgerRow | None:
        return rows.get(ledger_id)

    return LedgerTable(load, limbo, max_idle=4)


@simulated
async def test_ledgers_are_named_whose_entries_a_bookie_is_to_have_or_may_be(world: World) -> None:
    client = MemoryMetadata(SeededRng(1)).client()
    for each in (
        ledger(0, "b1 b2", last=9),
        ledger(1, "b2 b3", last=9),
        ledger(2, "b1 b2"),
        ledger(3, "b1 b2", "b2 b3"),
        ledger(4, "b2 b3", "b1 b2", last=9),
        ledger(5, "b1 b2", last=-1),
        ledger(6, "b1 b2", last=9),
    ):
        await client.store.create_ledger(each)
    pace = RateLimiter(world.clock, 0)
    assert [each async for each in named_ledgers(client.store, "b1", 6, pace)] == [0, 2, 3]


@simulated
async def test_a_listing_that_was_cut_off_is_no_count_and_the_index_stays_in_doubt(world: World) -> None:
    client = MemoryMetadata(SeededRng(1)).client()
    await client.store.create_ledger(ledger(0, "b1 b2"))
    listed = client.store.list_ledgers

    async def cut_off(after: int = -1, limit: int = 1000) -> LedgerPage:
        return LedgerPage((), complete=False)

    client.store.list_ledgers = cut_off  # type: ignore[method-assign]
    count = LimboCount(
        table({}), lambda below, pace: named_ledgers(client.store, "b1", below, pace), RateLimiter(world.clock, 0)
    )
    await count.count(held=0)
    assert count.index_in_doubt
    client.store.list_ledgers = listed  # type: ignore[method-assign]
    await count.count(held=0)
    assert count.ledgers == 1


@simulated
async def test_entries_without_a_row_count_until_they_are_restored_and_are_not_searched_again(world: World) -> None:
    rows: dict[int, LedgerRow] = {}
    walks = 0

    async def named(below: int, _pace: RateLimiter) -> AsyncIterator[int]:
        nonlocal walks
        walks += 1
        for ledger_id in range(below - 2, below):
            yield ledger_id

    count = LimboCount(table(rows), named, RateLimiter(world.clock, 0))
    assert count.index_in_doubt, "nothing was counted yet"
    await count.count(held=0)
    assert count.ledgers == 2
    rows[7] = LedgerRow(repaired_limbo=1)
    await count.count(held=0)
    assert count.ledgers == 1
    rows[8] = LedgerRow(repaired_limbo=1)
    await count.count(held=0)
    await count.count(held=0)
    assert (count.ledgers, walks) == (0, 3)
    assert not count.index_in_doubt


@simulated
async def test_while_the_metadata_do_not_answer_the_last_count_stands(world: World) -> None:
    away = False

    async def named(_below: int, _pace: RateLimiter) -> AsyncIterator[int]:
        yield 1
        if away:
            raise MetadataUnavailable("away")
        yield 2

    count = LimboCount(table({}), named, RateLimiter(world.clock, 0))
    await count.count(held=1)
    away = True
    await count.count(held=1)
    assert count.ledgers == 2


@pytest.mark.parametrize("why", ["the metadata are away", "the metadata are an older copy"])
@simulated
async def test_the_index_is_in_doubt_until_a_count_by_metadata_that_are_believed_finds_no_ledger_in_limbo(
    world: World, *, why: str
) -> None:
    away = why == "the metadata are away"

    async def named(_below: int, _pace: RateLimiter) -> AsyncIterator[int]:
        if away:
            raise MetadataUnavailable("away")
        for ledger_id in ():
            yield ledger_id

    count = LimboCount(table({}), named, RateLimiter(world.clock, 0))
    for _ in range(2):
        await count.count(held=0, believed=away)
        assert (count.ledgers, count.index_in_doubt) == (0, True)
    away = False
    await count.count(held=0)
    assert not count.index_in_doubt


@simulated
async def test_a_bookie_that_never_lost_anything_sends_no_requests(world: World) -> None:
    def named(_below: int, _pace: RateLimiter) -> AsyncIterator[int]:
        raise AssertionError

    count = LimboCount(table({}, Limbo()), named, RateLimiter(world.clock, 0))
    await count.count(held=0)
    assert (count.ledgers, count.index_in_doubt) == (0, False)
