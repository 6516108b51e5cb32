"""Streaming reader of ledgers: reads each ledger after it closes, each entry once, in micro-batches of bounded size.

Closed ledgers are read in the order of their ids; the query never waits for an open one. Ledgers of an uncommitted
transaction are not visible.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit

from tallybook.core.errors import InvalidConfig
from tallybook.core.ids import MAX_ID

from ..locations import LedgerLocation, read_metadata
from ..micro_batch_reader import MicroBatchReader, check_checkpoint
from ..options import ReadOptions
from ..query.gaps import EntryGap
from ..query.id_ranges import IdRanges
from ..query.partitions import EntryPartition
from ..query.snapshot import Snapshot
from .batch import read_rows
from .offset import BatchLimit, ClosedLedger, StreamOffset
from .planning import check_password, cut, is_wanted

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


class LedgerStreamReader(MicroBatchReader):
    """Reads ledgers as a stream."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        if options.snapshot or options.first_entry or options.last_entry != MAX_ID or options.tier == "bookies":
            raise InvalidConfig(
                "readStream reads whole ledgers from any tier: use snapshot, startingEntry, endingEntry and "
                "tier=bookies in batches only"
            )
        if options.table != "entries" or options.location.metadata is None:
            raise InvalidConfig("readStream reads entries of a cluster: give its metadata URI, and no option table")
        super().__init__(options, schema)
        self._target: IdRanges | None = None

    def initialOffset(self) -> dict[str, Any]:
        """The offset before all ledgers, or after those closed by now: option ``startingPosition``."""
        nothing = StreamOffset(self._cluster_id())
        if self._options.start == "earliest":
            return nothing.json()
        return StreamOffset(nothing.cluster_id, IdRanges.of(each.ledger_id for each in self._closed(nothing))).json()

    def prepareForTriggerAvailableNow(self) -> None:
        """Note the ledgers closed by now: the query ends when it has read them."""
        self._target = IdRanges.of(each.ledger_id for each in self._closed(StreamOffset(self._cluster_id())))

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """The end of the next micro-batch."""
        offset = StreamOffset.parse(start)
        closed = found = self._closed(offset)
        if self._target is not None:
            found = [each for each in found if each.ledger_id in self._target]
        options = self._options
        bounds = BatchLimit(options.max_entries_per_trigger, options.max_bytes_per_trigger)
        following = offset.advanced(found, None if isinstance(limit, ReadAllAvailable) else bounds)
        self._report = {"cluster": offset.cluster_id, "behind": following.lag(closed)}
        # The same object if there is nothing new: Spark compares offsets as text.
        return start if following is offset else following.json()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[EntryPartition]:
        """The partitions of the micro-batch that ends at ``end``."""
        offset = StreamOffset.parse(end)
        return self._location.ask(lambda location: _cut(location, self._options, offset))

    def read(self, partition: EntryPartition) -> Iterator[pa.RecordBatch]:  # type: ignore[override]
        """The rows of one partition."""
        return read_rows(self._options, self._schema, partition)

    def _closed(self, offset: StreamOffset) -> list[ClosedLedger]:
        return self._location.ask(lambda location: self._closed_ledgers(location, offset))

    def _cluster_id(self) -> str:
        async def ask(location: LedgerLocation) -> str:
            return location.cluster_id

        return self._location.ask(ask)

    async def _closed_ledgers(self, location: LedgerLocation, offset: StreamOffset) -> list[ClosedLedger]:
        options, found = self._options, []
        check_checkpoint(location, offset.cluster_id)
        view = await location.view()
        wanted = [
            ledger_id
            for ledger_id in await location.ledger_ids()
            if offset.wants(ledger_id) and (options.ledgers is None or ledger_id in options.ledgers)
        ]
        for metadata in (await read_metadata(location, wanted)).values():
            if metadata is None or not metadata.closed:
                continue
            if view.sees(metadata) and is_wanted(metadata, options):
                check_password(metadata, options.location.password)
                found.append(ClosedLedger(metadata.ledger_id, metadata.last_entry_id, metadata.length))
        return found


async def _cut(location: LedgerLocation, options: ReadOptions, end: StreamOffset) -> list[EntryPartition]:
    check_checkpoint(location, end.cluster_id)
    found = await read_metadata(location, [each.ledger_id for each in end.batch])
    known = {ledger_id: metadata for ledger_id, metadata in found.items() if metadata is not None}
    gaps = tuple(EntryGap.of_deleted(*each) for each in end.batch if each.ledger_id not in known)
    if gaps and options.fail_on_data_loss:
        raise gaps[0].error()
    snapshot = Snapshot(location.cluster_id, end.batch, options.written).only(known)
    planned = await cut(location, options, snapshot, known)
    return planned + ([EntryPartition((), gaps=gaps, cluster_id=location.cluster_id)] if gaps else [])
