"""Before a query, bookies are asked how far each open ledger may be read, a few at a time."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tallybook.client.client import Client
from tallybook.core.errors import BookieUnavailable, NoSuchLedger, RequestTimeout
from tallybook.core.quorum import Quorum
from tallybook.core.ranges import LedgerEntryRange
from tallybook.metadata.ledger.model import Fragment, LedgerMetadata
from tallybook.metadata.transactions import EVERYTHING, View
from tallybook.spark.ledgers.planning import CONCURRENT_ENDS, END_SECONDS, resolve_snapshot
from tallybook.spark.options import LocationOptions, ReadOptions
from tallybook.spark.query.id_ranges import IdRanges

from ..simulated import scenario
from ..support.memory_cluster import MemoryCluster

ALL = ReadOptions(LocationOptions("x", None))


class OpenLedgers:
    """A location with open ledgers only.

    Args:
        answer: answer of their bookies, by ledger.
    """

    cluster_id = "c"

    def __init__(self, count: int, answer: Callable[[int], Awaitable[int]]) -> None:
        self.damaged: dict[str, str] = {}
        self.count = count
        self.answer = answer
        self.under_way = self.most = 0

    async def ledger_ids(self) -> list[int]:
        return list(range(self.count))

    async def metadata(self, ledger_id: int) -> LedgerMetadata:
        return LedgerMetadata(ledger_id, Quorum(1, 1, 1), (Fragment(0, ("b1",)),), "creator", 0)

    async def view(self) -> View:
        return EVERYTHING

    async def confirmed(self, metadata: LedgerMetadata) -> int:
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        try:
            return await self.answer(metadata.ledger_id)
        finally:
            self.under_way -= 1


async def settled(place: Any, options: ReadOptions = ALL) -> tuple[LedgerEntryRange, ...]:
    return (await resolve_snapshot(place, options))[0].ranges


@scenario()
async def test_open_ledgers_are_asked_side_by_side_and_not_all_at_once(cluster: MemoryCluster, client: Client) -> None:
    clock = cluster.world.clock

    async def slow(ledger_id: int) -> int:
        await clock.sleep(1)
        return ledger_id - 1

    place, begin = OpenLedgers(4 * CONCURRENT_ENDS, slow), clock.monotonic()
    assert await settled(place) == tuple(LedgerEntryRange(each, 0, each - 1) for each in range(1, place.count))
    assert place.most == CONCURRENT_ENDS
    assert clock.monotonic() - begin < 5


@scenario()
async def test_an_open_ledger_without_a_known_end_is_reported_with_the_option_that_leaves_it_out(
    cluster: MemoryCluster, client: Client
) -> None:
    clock = cluster.world.clock

    async def never(ledger_id: int) -> int:
        if ledger_id == 7:
            await asyncio.get_running_loop().create_future()
        return 0

    async def refused(ledger_id: int) -> int:
        if ledger_id == 7:
            raise BookieUnavailable("b1 and b2 do not answer")
        await clock.sleep(1_000)
        return 0

    place, begin = OpenLedgers(20, never), clock.monotonic()
    with pytest.raises(RequestTimeout, match=r"ledger 7 is open.*openLedgers=false"):
        await settled(place)
    assert clock.monotonic() - begin == pytest.approx(END_SECONDS, abs=1)
    place, begin = OpenLedgers(20, refused), clock.monotonic()
    with pytest.raises(BookieUnavailable, match=r"ledger 7 is open.*b1 and b2 do not answer.*openLedgers=false"):
        await settled(place)
    assert clock.monotonic() - begin < 1, "the others are not waited for"
    assert place.under_way == 0


@scenario()
async def test_an_open_ledger_that_is_deleted_meanwhile_matters_if_it_was_named(
    cluster: MemoryCluster, client: Client
) -> None:
    async def deleted(ledger_id: int) -> int:
        if ledger_id == 1:
            raise NoSuchLedger("ledger 1 does not exist")
        return 0

    assert await settled(OpenLedgers(3, deleted)) == (LedgerEntryRange(0, 0, 0), LedgerEntryRange(2, 0, 0))
    with pytest.raises(NoSuchLedger):
        await settled(OpenLedgers(3, deleted), ReadOptions(LocationOptions("x", None), ledgers=IdRanges.of([0, 1])))
