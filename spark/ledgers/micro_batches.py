"""``readStream.format("tallybook")``: ledgers as they close, each entry once, in micro-batches of bounded size.

A ledger comes when its end is settled (a stream never waits for one that is still written), in the order of ids among
those that have closed. Ledgers of a transaction that is not committed are not there yet.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from tallybook.core.errors import InvalidConfig
from tallybook.core.ids import MAX_ID

from .gaps import Gap
from .id_ranges import IdRanges
from .kept import KeptPlace
from .options import NO_LIMIT, ReadOptions
from .places import LedgerPlace, lookups
from .plan import EntryPartition
from .planning import authorise, cut, is_wanted
from .snapshot import Snapshot
from .stream_offset import Admission, Closed, StreamOffset
from .task import read_rows

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


class LedgerStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads ledgers as a stream. Travels to executors, so it holds values, and a connection that stays behind."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        if options.snapshot or options.first_entry or options.last_entry != MAX_ID or options.tier == "bookies":
            raise InvalidConfig(
                "a stream reads whole ledgers, wherever they are: snapshot, startingEntry, endingEntry and "
                "tier=bookies are for batches"
            )
        if options.table != "entries" or options.place.metadata is None:
            raise InvalidConfig("a stream reads entries of a cluster: give its metadata URI, and no option table")
        self._options = options
        self._schema = schema
        self._target: IdRanges | None = None
        self._report: dict[str, Any] | None = None
        """What ``reportLatestOffset`` says, as of the last micro-batch that was planned."""
        self._place = KeptPlace(options.place)

    def initialOffset(self) -> dict[str, Any]:
        """Before everything, or behind what has closed by now: option ``startingPosition``."""
        nothing = StreamOffset(self._cluster_id())
        if self._options.start == "earliest":
            return nothing.json()
        return StreamOffset(nothing.cluster_id, IdRanges.of(each.ledger_id for each in self._closed(nothing))).json()

    def getDefaultReadLimit(self) -> ReadLimit:
        """What the options say; where they give two limits, both are kept."""
        options = self._options
        if options.max_entries_per_trigger < NO_LIMIT:
            return ReadMaxRows(options.max_entries_per_trigger)
        if options.max_bytes_per_trigger < NO_LIMIT:
            return ReadMaxBytes(options.max_bytes_per_trigger)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        """Remember what has closed by now: the query ends once it has read that."""
        self._target = IdRanges.of(each.ledger_id for each in self._closed(StreamOffset(self._cluster_id())))

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Where the next micro-batch ends."""
        offset = StreamOffset.parse(start)
        closed = found = self._closed(offset)
        if self._target is not None:
            found = [each for each in found if each.ledger_id in self._target]
        options = self._options
        bounds = Admission(options.max_entries_per_trigger, options.max_bytes_per_trigger)
        following = offset.advanced(found, None if isinstance(limit, ReadAllAvailable) else bounds)
        self._report = {"cluster": offset.cluster_id, "behind": following.lag(closed)}
        # The same object where nothing has come: Spark compares offsets as text.
        return start if following is offset else following.json()

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """For ``StreamingQueryProgress``: what has closed and comes after the micro-batch that was planned last."""
        return self._report

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[EntryPartition]:
        """What the tasks of the micro-batch that ends at ``end`` read."""
        offset = StreamOffset.parse(end)
        return self._place.ask(lambda place: _cut(place, self._options, offset))

    def read(self, partition: EntryPartition) -> Iterator[pa.RecordBatch]:  # type: ignore[override]
        """The rows of one partition."""
        return read_rows(self._options, self._schema, partition)

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing is kept for a stream that could be let go of."""

    def stop(self) -> None:
        """Leave the cluster."""
        self._place.close()

    def _closed(self, offset: StreamOffset) -> list[Closed]:
        return self._place.ask(lambda place: self._looked(place, offset))

    def _cluster_id(self) -> str:
        async def ask(place: LedgerPlace) -> str:
            return place.cluster_id

        return self._place.ask(ask)

    async def _looked(self, place: LedgerPlace, offset: StreamOffset) -> list[Closed]:
        options, found = self._options, []
        _check_cluster(place, offset)
        view = await place.view()
        wanted = [
            ledger_id
            for ledger_id in await place.ledger_ids()
            if offset.wants(ledger_id) and (options.ledgers is None or ledger_id in options.ledgers)
        ]
        for metadata in (await lookups(place, wanted)).values():
            if metadata is None or not metadata.closed:
                continue
            if view.sees(metadata) and is_wanted(metadata, options):
                authorise(metadata, options.place.password)
                found.append(Closed(metadata.ledger_id, metadata.last_entry_id, metadata.length))
        return found


def _check_cluster(place: LedgerPlace, offset: StreamOffset) -> None:
    """Ids of another cluster would look as if they had been read.

    Raises:
        InvalidConfig: the checkpoint is of another one.
    """
    if offset.cluster_id != place.cluster_id:
        raise InvalidConfig(f"the checkpoint is of cluster {offset.cluster_id}, and this is {place.cluster_id}")


async def _cut(place: LedgerPlace, options: ReadOptions, end: StreamOffset) -> list[EntryPartition]:
    _check_cluster(place, end)
    found = await lookups(place, [each.ledger_id for each in end.batch])
    known = {ledger_id: metadata for ledger_id, metadata in found.items() if metadata is not None}
    gaps = tuple(Gap.of_deleted(*each) for each in end.batch if each.ledger_id not in known)
    if gaps and options.fail_on_data_loss:
        raise gaps[0].error()
    snapshot = Snapshot(place.cluster_id, end.batch, options.written).only(known)
    planned = await cut(place, options, snapshot, known)
    return planned + ([EntryPartition((), gaps=gaps, cluster_id=place.cluster_id)] if gaps else [])
