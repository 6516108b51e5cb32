"""``read_ledgers`` of streams: archived segments by Spark's own Parquet reader, the rest beside it, each record once.

    archive objects --FileScan parquet--> entries --mapInArrow--> records --.
                                                                            |-- union
    what is in none --format("tallybook"), snapshot=...---------> records --'

An entry of a segment holds an envelope of records, so what Parquet gives goes through a Python beside Spark once, in
Arrow batches, where ``rows`` opens the envelopes. Columns and filters reach Parquet only as far as entries go.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias

import pyarrow as pa

from tallybook.archive.entry_range import EntryRange
from tallybook.metadata.archived import Receipt

from ..choosing import WantedObject
from ..columns import columns_for
from ..options import ReadOptions
from ..places import LedgerPlace, opened
from .planning import RecordPlan, plan_records, settled_snapshot
from .rows import RecordRows
from .snapshot import RecordRange, RecordSnapshot
from .stretches import RecordStretch
from .task import RecordShaper

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True, slots=True)
class NativeRecords:
    """How records are read.

    Args:
        scanned: what is read from the objects.
        rest: what Spark cannot scan by itself, or is gone.
        url: of the archive; empty where nothing of it is read.
    """

    objects: tuple[WantedObject, ...]
    scanned: tuple[RecordStretch, ...]
    rest: RecordSnapshot
    url: str


LookAt: TypeAlias = Callable[
    [LedgerPlace, Iterable[tuple[Receipt, Sequence[EntryRange]]]], Awaitable[Sequence[WantedObject]]
]


async def plan_native(options: ReadOptions, look: LookAt) -> NativeRecords:
    """What of a query Spark scans, and what it does not.

    Args:
        look: which objects are what their receipts say.

    Raises:
        As ``plan_records``.
    """
    async with opened(options.place) as place:
        snapshot = await settled_snapshot(place, options)
        plan = await plan_records(place, snapshot.ranges, fail=options.fail_on_data_loss)
        by_receipt: dict[str, tuple[Receipt, list[EntryRange]]] = {}
        for each in plan.stretches:
            if each.receipt is not None and each.scannable and options.leaves_archive_to_spark:
                by_receipt.setdefault(each.receipt.key, (each.receipt, []))[1].append(each.range)
        objects = await look(place, by_receipt.values())
        ledgers = {wanted.ledger_id for found in objects for wanted in found.wanted}
        scanned = tuple(replace(each, receipt=None) for each in plan.stretches if each.ledger_id in ledgers)
        rest = tuple(
            piece for rank, wanted in enumerate(snapshot.ranges) for piece in unscanned(wanted, rank, plan, ledgers)
        )
        url = await place.archive_url() if objects else ""
    return NativeRecords(tuple(objects), scanned, RecordSnapshot(snapshot.cluster_id, rest), url)


def unscanned(wanted: RecordRange, rank: int, plan: RecordPlan, ledgers: set[int]) -> Iterator[RecordRange]:
    """What is left of a range besides the segments that are scanned, where there is anything.

    Args:
        rank: of the range in the plan.
        ledgers: those of the segments that are scanned.
    """
    own = [each for each in plan.stretches if each.rank == rank]
    left = [each.segment for each in own if each.ledger_id not in ledgers]
    left += [gap.at.segment for gap in plan.gaps if gap.at.tag == wanted.tag]
    at = wanted.first
    for segment in [*sorted(each.segment for each in own if each.ledger_id in ledgers), wanted.end[0] + 1]:
        begin, behind = (segment, 0, 0), (segment + 1, 0, 0)
        if any(at[0] <= number < segment for number in left):
            sequence = wanted.sequence if at == wanted.first else None
            yield replace(wanted, first=at, end=min(begin, wanted.end), sequence=sequence)
        at = max(at, behind)


def records_of(frame: DataFrame, scanned: Sequence[RecordStretch], options: ReadOptions) -> DataFrame:
    """The records in a table of entries.

    Args:
        frame: entries of the stretches, and no others, with the columns of an archive object; with column ``object`` if
            metadata are wanted.
    """
    wanted = replace(options, snapshot=RecordSnapshot("", ()), records=None)
    return frame.mapInArrow(_Opened(wanted, tuple(scanned)), columns_for(wanted).ddl)


@dataclass(frozen=True, slots=True)
class _Opened:
    """Opens the envelopes of Arrow batches. It travels."""

    options: ReadOptions
    scanned: tuple[RecordStretch, ...]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        shaper = RecordShaper(columns_for(self.options), self.options, None)
        by_ledger: dict[int, list[RecordStretch]] = {}
        for each in self.scanned:
            by_ledger.setdefault(each.ledger_id, []).append(each)
        for batch in batches:
            for entries in _runs(pa.Table.from_batches([batch])):
                rows = RecordRows(by_ledger[entries["ledger_id"][0].as_py()])
                key = entries["object"][0].as_py() if "object" in entries.column_names else None
                yield from shaper.shaped(rows.records(entries), key)
                yield from shaper.shaped(rows.rest(), key)


def _runs(entries: pa.Table) -> Iterator[pa.Table]:
    """The entries of each ledger that are in a row."""
    ledgers, ids = entries["ledger_id"].to_numpy(), entries["entry_id"].to_numpy()
    cuts = (((ledgers[1:] != ledgers[:-1]) | (ids[1:] != ids[:-1] + 1)).nonzero()[0] + 1).tolist()
    for begin, end in zip([0, *cuts], [*cuts, len(ids)], strict=True):
        if begin < end:
            yield entries.slice(begin, end - begin)
