"""``read_ledgers`` of streams: archived segments with Spark's Parquet reader, all else with the data source.

    archive objects --FileScan parquet--> entries --mapInArrow--> records --.
                                                                            |-- union
    everything else --format("tallybook"), snapshot=...---------> records --'

An entry of a segment is an envelope of records, so the Parquet rows pass through a Python worker once, as Arrow
batches, where ``rows`` decodes the envelopes. Filters do not reach Parquet, and of the columns only option ``columns``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias

import pyarrow as pa

from tallybook.archive.scan import ID_COLUMNS
from tallybook.core.ranges import LedgerEntryRange
from tallybook.metadata.ledger.archived import Receipt

from ..columns import archived_columns, columns_for
from ..ledgers.row_selection import GONE, NOT_IN_ITS_OBJECT, ScannedObject, why_not_scanned
from ..locations import LedgerLocation, open_location
from ..options import ReadOptions
from ..query.record_snapshot import RecordRange, RecordSnapshot
from ..worker import settle_worker
from .planning import RecordPlan, plan_records, resolve_record_snapshot
from .ranges import PlannedRecordRange
from .rows import RecordRows
from .task import RecordShaper

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True, slots=True)
class NativeRecords:
    """How records are read.

    Args:
        scanned: the ranges read from the objects.
        rest: what Spark's Parquet reader cannot read, or is lost.
        url: URL of the archive; empty: nothing is read from it.
        reasons: for each segment that is not scanned, why.
    """

    objects: tuple[ScannedObject, ...]
    scanned: tuple[PlannedRecordRange, ...]
    rest: RecordSnapshot
    url: str
    reasons: tuple[str, ...] = ()


CheckObjects: TypeAlias = Callable[
    [LedgerLocation, Iterable[tuple[Receipt, Sequence[LedgerEntryRange]]]], Awaitable[Sequence[ScannedObject]]
]


async def plan_native(options: ReadOptions, check_objects: CheckObjects) -> NativeRecords:
    """Split a query into what Spark scans and the rest.

    Args:
        check_objects: returns the objects that match their receipts.

    Raises:
        As ``plan_records``.
    """
    async with open_location(options.location) as location:
        snapshot = await resolve_record_snapshot(location, options)
        plan = await plan_records(location, snapshot.ranges, fail=options.fail_on_data_loss)
        by_receipt: dict[str, tuple[Receipt, list[LedgerEntryRange]]] = {}
        reasons: dict[int, str] = {}
        for each in plan.planned_ranges:
            reason = why_not_scanned(each, options)
            if each.receipt is not None and not reason:
                by_receipt.setdefault(each.receipt.key, (each.receipt, []))[1].append(each.range)
            reasons[each.ledger_id] = reason or NOT_IN_ITS_OBJECT
        objects = await check_objects(location, by_receipt.values())
        ledgers = {wanted.ledger_id for found in objects for wanted in found.wanted}
        scanned = tuple(replace(each, receipt=None) for each in plan.planned_ranges if each.ledger_id in ledgers)
        rest = tuple(
            piece for rank, wanted in enumerate(snapshot.ranges) for piece in unscanned(wanted, rank, plan, ledgers)
        )
        url = await location.archive_url() if objects else ""
    why = tuple(reason for ledger_id, reason in reasons.items() if ledger_id not in ledgers)
    why += tuple(GONE[gap.kind] for gap in plan.gaps if gap.kind == "lost")
    return NativeRecords(tuple(objects), scanned, RecordSnapshot(snapshot.cluster_id, rest), url, why)


def unscanned(wanted: RecordRange, rank: int, plan: RecordPlan, ledgers: set[int]) -> Iterator[RecordRange]:
    """The parts of a range outside of the scanned segments, if any.

    Args:
        rank: index of the range in the plan.
        ledgers: ledgers of the scanned segments.
    """
    own = [each for each in plan.planned_ranges if each.rank == rank]
    left = [each.segment for each in own if each.ledger_id not in ledgers]
    left += [gap.at.segment for gap in plan.gaps if gap.at.tag == wanted.tag]
    at = wanted.first
    for segment in [*sorted(each.segment for each in own if each.ledger_id in ledgers), wanted.end[0] + 1]:
        begin, behind = (segment, 0, 0), (segment + 1, 0, 0)
        if any(at[0] <= number < segment for number in left):
            sequence = wanted.sequence if at == wanted.first else None
            yield replace(wanted, first=at, end=min(begin, wanted.end), sequence=sequence)
        at = max(at, behind)


def records_of(frame: DataFrame, scanned: Sequence[PlannedRecordRange], options: ReadOptions) -> DataFrame:
    """Decode the records in a table of entries.

    Args:
        frame: exactly the entries of ``scanned``, with the columns of an archive object, and column ``object`` if
            ``includeMetadata`` is set.
    """
    wanted = replace(options, snapshot=RecordSnapshot("", ()), records=None)
    needed = archived_columns(wanted) | ID_COLUMNS | {"object"}
    frame = frame.select(*(name for name in frame.columns if name in needed))
    return frame.mapInArrow(_Opened(wanted, tuple(scanned)), columns_for(wanted).ddl)


@dataclass(frozen=True, slots=True)
class _Opened:
    """Decodes the envelopes in Arrow batches. It is pickled to executors."""

    options: ReadOptions
    scanned: tuple[PlannedRecordRange, ...]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        shaper = RecordShaper(columns_for(self.options), self.options, None)
        by_ledger: dict[int, list[PlannedRecordRange]] = {}
        for each in self.scanned:
            by_ledger.setdefault(each.ledger_id, []).append(each)
        for batch in batches:
            for entries in _runs(pa.Table.from_batches([batch])):
                rows = RecordRows(by_ledger[entries["ledger_id"][0].as_py()], shaper.needed)
                key = entries["object"][0].as_py() if "object" in entries.column_names else None
                yield from shaper.shaped(rows.records(entries), key)
                yield from shaper.shaped(rows.rest(), key)
            settle_worker()


def _runs(entries: pa.Table) -> Iterator[pa.Table]:
    """Runs of consecutive entries of one ledger."""
    ledgers, ids = entries["ledger_id"].to_numpy(), entries["entry_id"].to_numpy()
    cuts = (((ledgers[1:] != ledgers[:-1]) | (ids[1:] != ids[:-1] + 1)).nonzero()[0] + 1).tolist()
    for begin, end in zip([0, *cuts], [*cuts, len(ids)], strict=True):
        if begin < end:
            yield entries.slice(begin, end - begin)
