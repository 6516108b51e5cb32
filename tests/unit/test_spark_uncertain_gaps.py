"""Entries that may still exist are an error of a query, and never a gap."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import pytest

from tallybook.core.errors import EntryCorrupt
from tallybook.core.quorum import Quorum
from tallybook.metadata.ledger.model import Fragment, LedgerMetadata, LedgerState
from tallybook.spark.ledgers.reading import read_partition
from tallybook.spark.query.gaps import EntryGap
from tallybook.spark.query.partitions import EntryPartition, PlannedRange

LEDGER = LedgerMetadata(
    7, Quorum(1, 1, 1), (Fragment(0, ("b1",)),), "creator", 0, state=LedgerState.CLOSED, last_entry_id=9, length=90
)


class Damaged:
    """A ledger and its location: every known copy is damaged."""

    def __init__(self, *, settled: bool) -> None:
        self.error = EntryCorrupt("flipped")
        self.error.settled = settled
        self.probes = 0

    async def metadata(self, ledger_id: int) -> LedgerMetadata:
        return LEDGER

    async def verified_ledger(self, metadata: LedgerMetadata) -> Any:
        return self

    async def read_sealed(self, first: int, last: int) -> AsyncGenerator[Any, None]:
        raise self.error
        yield

    async def read_batch(self, entry_id: int) -> Any:
        self.probes += 1
        raise self.error


async def gaps_of(place: Damaged, *, whole_gaps: bool) -> list[tuple[int, int]]:
    partition, found = EntryPartition((PlannedRange(7, 2, 6, 50),)), []
    async with aclosing(read_partition(place, partition, whole_gaps=whole_gaps)) as items:  # type: ignore[arg-type]
        async for item in items:
            assert isinstance(item, EntryGap)
            found.append((item.first, item.last))
            if not whole_gaps:
                break
    return found


async def test_a_damaged_copy_is_no_gap_while_a_bookie_did_not_respond() -> None:
    for whole_gaps in (False, True):
        with pytest.raises(EntryCorrupt):
            await gaps_of(Damaged(settled=False), whole_gaps=whole_gaps)


async def test_a_query_without_gaps_fails_at_one_before_its_end_is_resolved() -> None:
    place = Damaged(settled=True)
    assert await gaps_of(place, whole_gaps=False) == [(2, 2)]
    assert place.probes == 0
    assert await gaps_of(place, whole_gaps=True) == [(2, 6)]
