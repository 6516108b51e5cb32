"""Reads one partition in a task: rows from archive objects or bookies, and gaps.

The fast path scans archive objects. If an object has changed (compaction moved the ledger, or the object is damaged),
and for ledgers in no object, verified reads continue at the next entry: the metadata are read again, and each batch is
read from any location with an intact copy.

Entries count as lost only if no retry can succeed. Any other failure is an error, and Spark retries the task.
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

from tallybook.archive.format.batch_rows import PayloadBuffer, RowGroupBuilder
from tallybook.archive.format.schema import SCHEMA
from tallybook.core.errors import (
    ArchiveKeyMissing,
    DataMissing,
    EntryAbsent,
    EntryCorrupt,
    NoSuchLedger,
    ObjectDamaged,
    ObjectMissing,
)
from tallybook.metadata.ledger.archived import Receipt
from tallybook.metadata.ledger.model import LedgerMetadata

from ..locations import LedgerBatches, LedgerLocation
from ..query.gaps import EntryGap
from ..query.partitions import EntryPartition, PlannedRange
from ..query.snapshot import ALL_TIMES, TimeRange

LOST: Final = (DataMissing, EntryCorrupt, EntryAbsent, ObjectMissing, ObjectDamaged)
"""Errors of lost entries, if ``error.settled``."""

MAX_MOVES: Final = 3
"""Maximum objects tried for one ledger. Compaction moves a ledger at most once in hours."""

PROBES: Final = 32
"""Entries read concurrently to find the end of a gap."""


@dataclass(frozen=True, slots=True)
class EntryRows:
    """Entries with the needed columns of an archive object (``archive/format/schema.py``), and the object's key."""

    table: pa.Table
    object_key: str | None


@dataclass(frozen=True, slots=True)
class _Remaining:
    """A planned range, and how far it has been read."""

    planned_range: PlannedRange
    first: int


@dataclass(frozen=True, slots=True)
class _Needs:
    """Needs of the caller of ``read_partition``."""

    columns: frozenset[str]
    whole_gaps: bool


async def read_partition(
    location: LedgerLocation,
    partition: EntryPartition,
    *,
    columns: frozenset[str] = frozenset(SCHEMA.names),
    whole_gaps: bool = True,
) -> AsyncGenerator[EntryRows | EntryGap, None]:
    """The rows and gaps of a partition, in order.

    Args:
        columns: the needed columns; no others are read from archive objects, except the ids. Tables may have more.
        whole_gaps: whether to find the end of a gap. If not, a gap has only its first entry, which is enough to fail
            the query.

    Raises:
        TallybookError: entries that may exist cannot be read now.
    """
    for gap in partition.gaps:
        yield gap
    if partition.written != ALL_TIMES:
        columns = columns | {"written_at"}
    needs = _Needs(columns, whole_gaps)
    for key, group in groupby(partition.planned_ranges, key=_key_of):
        planned_ranges = list(group)
        source = _scanned(location, planned_ranges, needs) if key else _careful(location, planned_ranges, needs)
        async with aclosing(source) as found:
            async for item in found:
                if isinstance(item, EntryGap):
                    yield item
                    continue
                kept = _written(item.table, partition.written)
                if kept.num_rows:
                    yield EntryRows(kept, item.object_key)


def _key_of(planned_range: PlannedRange) -> str:
    """The key of the object to scan; empty: verified reads are needed."""
    return planned_range.receipt.key if planned_range.receipt is not None and planned_range.scannable else ""


def _written(table: pa.Table, wanted: TimeRange) -> pa.Table:
    """The rows written within a time range."""
    for bound, fits in ((wanted.first_us, pc.greater_equal), (wanted.end_us, pc.less)):
        if bound is not None:
            table = table.filter(fits(table["written_at"].cast(pa.int64()), bound))
    return table


async def _scanned(
    location: LedgerLocation, planned_ranges: Sequence[PlannedRange], needs: _Needs
) -> AsyncGenerator[EntryRows | EntryGap, None]:
    """Ranges of one object, by a scan of it; entries that the scan does not return are read one ledger at a time."""
    # One ledger may have several ranges, one after the other.
    rest = [_Remaining(planned_range, planned_range.first) for planned_range in planned_ranges]
    receipt = planned_ranges[0].receipt
    if receipt is not None:
        try:
            ranges = [planned_range.range for planned_range in planned_ranges]
            scan = (await location.scan(receipt)).rows(ranges, needs.columns)
            async with aclosing(scan) as tables:
                async for table in tables:
                    yield EntryRows(table, receipt.key)
                    rest = _without(rest, table)
        except (ObjectMissing, ObjectDamaged, ArchiveKeyMissing):
            pass  # the rest is read below, or reported as a gap
    for wanted in rest:
        async with aclosing(_ledger(location, wanted, receipt, needs)) as found:
            async for item in found:
                yield item


def _without(rest: list[_Remaining], table: pa.Table) -> list[_Remaining]:
    """The rest without the rows of ``table``, which are consecutive entries of one ledger."""
    ledger_id, first = table["ledger_id"][0].as_py(), table["entry_id"][0].as_py()
    end = first + table.num_rows
    left = [
        _Remaining(each.planned_range, end)
        if each.planned_range.ledger_id == ledger_id and each.first == first
        else each
        for each in rest
    ]
    return [each for each in left if each.first <= each.planned_range.last]


async def _careful(
    location: LedgerLocation, planned_ranges: Sequence[PlannedRange], needs: _Needs
) -> AsyncGenerator[EntryRows | EntryGap, None]:
    for planned_range in planned_ranges:
        async with aclosing(_ledger(location, _Remaining(planned_range, planned_range.first), None, needs)) as found:
            async for item in found:
                yield item


async def _ledger(
    location: LedgerLocation, wanted: _Remaining, tried: Receipt | None, needs: _Needs
) -> AsyncGenerator[EntryRows | EntryGap, None]:
    """Read one ledger from its current object, if that has changed, or with verified reads."""
    planned_range, first = wanted.planned_range, wanted.first
    metadata = await location.metadata(planned_range.ledger_id)
    for _ in range(MAX_MOVES):
        if metadata is None or metadata.archived in {None, tried} or not planned_range.scannable:
            break
        tried = metadata.archived
        try:
            scan = (await location.scan(tried)).rows([planned_range.range._replace(first=first)], needs.columns)
            async with aclosing(scan) as tables:
                async for table in tables:
                    yield EntryRows(table, tried.key)
                    first += table.num_rows
        except (ObjectMissing, ObjectDamaged, ArchiveKeyMissing):
            metadata = await location.metadata(planned_range.ledger_id)
            continue
        return
    if metadata is None:
        yield location.missing(planned_range.ledger_id, first, planned_range.last)
        return
    async with aclosing(_batches(location, metadata, first, planned_range.last, needs)) as found:
        async for item in found:
            yield item


async def _batches(
    location: LedgerLocation, metadata: LedgerMetadata, first: int, last: int, needs: _Needs
) -> AsyncGenerator[EntryRows | EntryGap, None]:
    """Verified reads, batch by batch; continues after lost entries."""
    released = metadata.archived if metadata.copies_released else None
    try:
        ledger = await location.verified_ledger(metadata)
        while first <= last:
            try:
                async with aclosing(ledger.read_sealed(first, last)) as sealed:
                    async for batches in sealed:
                        gathered = RowGroupBuilder(PayloadBuffer(sum(header.payload_bytes for header, _ in batches)))
                        for header, batch in batches:
                            gathered.add(batch, header)
                        begin, end = batches[0][0].first_entry_id, min(batches[-1][0].last_entry_id, last)
                        rows = gathered.table().slice(first - begin, end - first + 1)
                        yield EntryRows(rows, released.key if released else None)
                        first = end + 1
            except LOST as error:
                if not error.settled:
                    raise
                end = first
                if needs.whole_gaps:
                    # If the object is missing, all entries are.
                    end = last if isinstance(error, ObjectMissing) else await _end_of_gap(ledger, first, last)
                yield EntryGap(metadata.ledger_id, first, end, "lost", error.message)
                first = end + 1
    except NoSuchLedger:
        yield location.missing(metadata.ledger_id, first, last)


async def _end_of_gap(ledger: LedgerBatches, first: int, last: int) -> int:
    """The last entry of a gap that begins at ``first``: tries each following entry."""

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
