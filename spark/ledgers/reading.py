"""What one task does: the rows of its partition, out of the archive or from bookies, and what cannot be had.

The fast way is a scan of archive objects. Where an object is not what it was (compaction has moved the ledger, or the
object is damaged) and for ledgers that are in no object, the careful way takes over at the entry that is next: the
metadata are read again, and batches are taken from whoever has a good copy.

Only what is settled counts as lost: an answer that may be another one later is an error, and Spark tries again.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from itertools import groupby
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from tallybook.archive.batch_rows import GatheredRows, Room
from tallybook.core.errors import (
    ArchiveKeyMissing,
    DataMissing,
    EntryAbsent,
    EntryCorrupt,
    NoSuchLedger,
    ObjectDamaged,
    ObjectMissing,
)
from tallybook.metadata.archived import Receipt
from tallybook.metadata.model import LedgerMetadata

from .gaps import Gap
from .places import LedgerPlace, SealedLedger
from .plan import EntryPartition, Stretch
from .snapshot import TimeRange

LOST: Final = (DataMissing, EntryCorrupt, EntryAbsent, ObjectMissing, ObjectDamaged)
"""What no retry will bring back."""

MOST_MOVES: Final = 3
"""Objects that a ledger is looked for in. Compaction moves one once in hours."""

PROBES: Final = 32
"""Entries that are tried at once behind one that is lost."""


@dataclass(frozen=True, slots=True)
class Rows:
    """Entries, with the columns of an archive object (``archive/schema.py``), and the object they came out of."""

    table: pa.Table
    object_key: str | None


@dataclass(frozen=True, slots=True)
class _Wanted:
    """A stretch, and how far it has been read."""

    stretch: Stretch
    first: int


async def read_partition(
    place: LedgerPlace, partition: EntryPartition, *, whole_gaps: bool = True
) -> AsyncGenerator[Rows | Gap, None]:
    """Everything of a partition, in its order.

    Args:
        whole_gaps: whether the end of a gap is looked for. Else its first entry is told at once, for whom that is the
            end of the query.

    Raises:
        TallybookError: what may be there cannot be had now.
    """
    for gap in partition.gaps:
        yield gap
    for key, group in groupby(partition.stretches, key=_key_of):
        stretches = list(group)
        source = _scanned(place, stretches, whole_gaps) if key else _careful(place, stretches, whole_gaps)
        async with aclosing(source) as found:
            async for item in found:
                if isinstance(item, Gap):
                    yield item
                    continue
                kept = _written(item.table, partition.written)
                if kept.num_rows:
                    yield Rows(kept, item.object_key)


def _key_of(stretch: Stretch) -> str:
    """The object to scan; none for what has to be read batch by batch."""
    return stretch.receipt.key if stretch.receipt is not None and stretch.scannable else ""


def _written(table: pa.Table, wanted: TimeRange) -> pa.Table:
    """The rows of these times."""
    for bound, fits in ((wanted.first_us, pc.greater_equal), (wanted.end_us, pc.less)):
        if bound is not None:
            table = table.filter(fits(table["written_at"].cast(pa.int64()), bound))
    return table


async def _scanned(
    place: LedgerPlace, stretches: Sequence[Stretch], whole_gaps: bool
) -> AsyncGenerator[Rows | Gap, None]:
    """Stretches of one object, by a scan of it; what it does not give, the careful way."""
    # Of one ledger there may be several stretches, one behind the other.
    rest = [_Wanted(stretch, stretch.first) for stretch in stretches]
    receipt = stretches[0].receipt
    if receipt is not None:
        try:
            scan = (await place.scan(receipt)).rows([stretch.range for stretch in stretches])
            async with aclosing(scan) as tables:
                async for table in tables:
                    yield Rows(table, receipt.key)
                    rest = _without(rest, table)
        except (ObjectMissing, ObjectDamaged, ArchiveKeyMissing):
            pass  # what is missing is read below, and told if it cannot be
    for wanted in rest:
        async with aclosing(_ledger(place, wanted, receipt, whole_gaps)) as found:
            async for item in found:
                yield item


def _without(rest: list[_Wanted], table: pa.Table) -> list[_Wanted]:
    """What is still wanted after the rows of ``table``, which are entries of one ledger in a row."""
    ledger_id, first = table["ledger_id"][0].as_py(), table["entry_id"][0].as_py()
    end = first + table.num_rows
    left = [
        _Wanted(each.stretch, end) if each.stretch.ledger_id == ledger_id and each.first == first else each
        for each in rest
    ]
    return [each for each in left if each.first <= each.stretch.last]


async def _careful(
    place: LedgerPlace, stretches: Sequence[Stretch], whole_gaps: bool
) -> AsyncGenerator[Rows | Gap, None]:
    for stretch in stretches:
        async with aclosing(_ledger(place, _Wanted(stretch, stretch.first), None, whole_gaps)) as found:
            async for item in found:
                yield item


async def _ledger(
    place: LedgerPlace, wanted: _Wanted, tried: Receipt | None, whole_gaps: bool
) -> AsyncGenerator[Rows | Gap, None]:
    """One ledger: out of the object it is in by now, if that is another one; or batch by batch."""
    stretch, first = wanted.stretch, wanted.first
    metadata = await place.metadata(stretch.ledger_id)
    for _ in range(MOST_MOVES):
        if metadata is None or metadata.archived in {None, tried} or not stretch.scannable:
            break
        tried = metadata.archived
        try:
            scan = (await place.scan(tried)).rows([stretch.range._replace(first=first)])
            async with aclosing(scan) as tables:
                async for table in tables:
                    yield Rows(table, tried.key)
                    first += table.num_rows
        except (ObjectMissing, ObjectDamaged, ArchiveKeyMissing):
            metadata = await place.metadata(stretch.ledger_id)
            continue
        return
    if metadata is None:
        yield place.missing(stretch.ledger_id, first, stretch.last)
        return
    async with aclosing(_batches(place, metadata, first, stretch.last, whole_gaps)) as found:
        async for item in found:
            yield item


async def _batches(
    place: LedgerPlace, metadata: LedgerMetadata, first: int, last: int, whole_gaps: bool
) -> AsyncGenerator[Rows | Gap, None]:
    """Batch by batch, over what is lost."""
    released = metadata.archived if metadata.copies_released else None
    try:
        ledger = await place.sealed(metadata)
        while first <= last:
            try:
                async with aclosing(ledger.read_sealed(first, last)) as sealed:
                    async for batches in sealed:
                        gathered = GatheredRows(Room(sum(header.payload_bytes for header, _ in batches)))
                        for header, batch in batches:
                            gathered.add(batch, header)
                        begin, end = batches[0][0].first_entry_id, min(batches[-1][0].last_entry_id, last)
                        rows = gathered.table().slice(first - begin, end - first + 1)
                        yield Rows(rows, released.key if released else None)
                        first = end + 1
            except LOST as error:
                if not error.settled:
                    raise
                end = first
                if whole_gaps:
                    # What is missing as a whole need not be tried entry by entry.
                    end = last if isinstance(error, ObjectMissing) else await _end_of_gap(ledger, first, last)
                yield Gap(metadata.ledger_id, first, end, "lost", error.message)
                first = end + 1
    except NoSuchLedger:
        yield place.missing(metadata.ledger_id, first, last)


async def _end_of_gap(ledger: SealedLedger, first: int, last: int) -> int:
    """The last entry of a gap that begins at ``first``: every one behind it is tried."""

    async def there(entry_id: int) -> bool:
        try:
            await ledger.read_batch(entry_id)
        except LOST as error:
            if not error.settled:
                raise
            return False
        return True

    at = first + 1
    while at <= last:
        tried = range(at, min(at + PROBES, last + 1))
        answers = await asyncio.gather(*map(there, tried))
        if True in answers:
            return at + answers.index(True) - 1
        at = tried.stop
    return last
