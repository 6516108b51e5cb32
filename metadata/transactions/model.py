"""Ledgers that come into view together: those of one transaction, or none of them.

A writer that may fail half-way, or be run twice, marks its ledgers with a *sink* and the number of a transaction when
it creates them, and at its end one record of the sink says which ledgers the transaction has:

    ledger, marked "sales/17", pending          record sinks/sales: last 17, and its ledgers
        created, written, closed                       one compare-and-set: this is the commit
        no longer pending, once committed              a second commit of 17 finds it and changes nothing

Transactions of a sink are committed in ascending order. Who reads a consistent view reads the records first, then the
ledgers: a marked ledger belongs to the view if its transaction is older than the last one and it is not pending, or if
it is named by the last one. What a failed attempt left behind never gets into view.

This module is what readers need. ``commits`` brings ledgers into view, ``left_behind`` deletes what never came there.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from tallybook.core.errors import DamagedFile, InvalidArgument
from tallybook.core.ids import MAX_ID

from .at_once import each
from .model import LedgerMetadata
from .rules import check_record_name
from .sink_record import CLOCK, NOTHING, ONCE, SINKS, Committed, SinkRecord, attempt_name, is_once
from .store import MetadataStore

SINK: Final = "tallybook.sink"
"""Key of the mark among a ledger's custom metadata: the name of the sink, a slash, the number of the transaction."""
PENDING: Final = "tallybook.pending"
SINCE: Final = "tallybook.since"
"""Key of the tick of the sinks' clock from which on a ledger vouches for itself."""
STAGED: Final = "stream."
"""What names of sinks begin with whose ledgers are on their way into a stream. Those that users name have no dot."""

_MOST_DIGITS: Final = 19


@dataclass(frozen=True, slots=True)
class Transaction:
    """One transaction of a sink.

    Args:
        owner: who numbers the transactions, such as the id of a query; numbers of somebody else mean something else.
    """

    sink: str
    number: int
    owner: str = ""

    @classmethod
    def once(cls, name: str) -> Transaction:
        """The only transaction of a sink, which nobody is going to repeat: no record of it stays.

        Args:
            name: one that no other sink ever has.
        """
        return cls(ONCE + name, 0)

    @property
    def is_once(self) -> bool:
        """Whether its sink has no other one."""
        return is_once(self.sink)

    @property
    def marks(self) -> dict[str, bytes]:
        """Custom metadata of a ledger that it is to have."""
        return {SINK: f"{self.sink}/{self.number}".encode(), PENDING: b"1"}

    def wrote(self, metadata: LedgerMetadata) -> bool:
        """Whether a ledger carries its marks. An id alone may be that of another ledger, in another cluster."""
        mark = transaction_of(metadata)
        return mark is not None and (mark.sink, mark.number) == (self.sink, self.number)


@dataclass(frozen=True, slots=True)
class View:
    """Which marked ledgers are to be seen: a moment in the life of all sinks, by their names.

    Args:
        clock: the sinks' clock. A ledger that vouches for itself from a later tick on was committed after this view.
    """

    committed: Mapping[str, Committed]
    everything: bool = False
    """Whether marks do not matter."""
    clock: int = 0

    def sees(self, metadata: LedgerMetadata) -> bool:
        """Whether a ledger belongs to the view; one that is not marked always does."""
        mark = transaction_of(metadata)
        if mark is None or self.everything:
            return True
        last = self.committed.get(mark.sink, NOTHING)
        if mark.number > last.number:
            since = _since(metadata)
            return mark.is_once and since is not None and since <= self.clock
        if mark.number == last.number:
            return metadata.ledger_id in last.ledger_ids
        return not is_pending(metadata)


EVERYTHING: Final = View({}, everything=True)


class StoredSink(NamedTuple):
    """A sink's record, with the version that a compare-and-set on it must name; ``None`` if it is not there."""

    record: SinkRecord
    version: int | None


class StoredClock(NamedTuple):
    """The sinks' clock, which is at 0 first and only goes up, with the version of its record."""

    now: int
    version: int | None


def transaction_of(metadata: LedgerMetadata) -> Transaction | None:
    """The transaction that a ledger was written by, if any.

    Custom metadata are anybody's: what no writer of transactions can have put there is no mark.
    """
    sink, _, number = metadata.custom.get(SINK, b"").decode(errors="replace").rpartition("/")
    if not (
        number.isascii() and number.isdigit() and len(number) <= _MOST_DIGITS and "/" not in sink.removeprefix(ONCE)
    ):
        return None
    try:
        check_record_name(SINKS + sink)
        check_record_name(attempt_name(sink, int(number), MAX_ID))
    except InvalidArgument:
        return None
    return Transaction(sink, int(number))


def is_pending(metadata: LedgerMetadata) -> bool:
    """Whether a ledger waits for the commit of its transaction, or was left behind by an attempt."""
    return PENDING in metadata.custom


def is_staged(metadata: LedgerMetadata) -> bool:
    """Whether a ledger has records that are on their way into a stream: nobody else's business."""
    mark = transaction_of(metadata)
    return mark is not None and mark.sink.startswith(STAGED)


def unmarked(metadata: LedgerMetadata) -> LedgerMetadata:
    """The ledger as one of no transaction."""
    custom = {key: value for key, value in metadata.custom.items() if key not in {SINK, PENDING, SINCE}}
    return replace(metadata, custom=custom)


def settled(metadata: LedgerMetadata, since: int | None = None) -> LedgerMetadata:
    """The ledger, no longer pending; it keeps its mark. Doing so again changes nothing.

    Args:
        since: the tick from which on it vouches for itself.
    """
    custom = {key: value for key, value in metadata.custom.items() if key != PENDING}
    if since is not None:
        custom.setdefault(SINCE, str(since).encode())
    return metadata if custom == metadata.custom else replace(metadata, custom=custom)


async def read_view(store: MetadataStore) -> View:
    """The view of this moment.

    Raises:
        MetadataUnavailable: the store does not answer.
        DamagedFile: a record cannot be understood.
    """
    before = (await read_clock(store)).now
    found = await _records(store, [name async for name in names(store, SINKS)])
    clock = (await read_clock(store)).now
    if clock != before:
        # What ticked since then may have been committed after its folder was listed: docs/protocol.md.
        found |= await _records(store, [name async for name in names(store, SINKS) if name not in found])
    committed = {name.removeprefix(SINKS): record.last for name, record in found.items()}
    return View(committed, clock=clock)


async def _records(store: MetadataStore, wanted: Iterable[str]) -> dict[str, SinkRecord]:
    found = await each(lambda name: read_sink(store, name.removeprefix(SINKS)), listed := list(wanted))
    return {name: stored.record for name, stored in zip(listed, found, strict=True) if stored.version is not None}


async def read_sink(store: MetadataStore, sink: str) -> StoredSink:
    """The record of a sink, an empty one if it is not there.

    Raises:
        MetadataUnavailable, DamagedFile: as ``read_view``.
    """
    record = await store.read_record(SINKS + sink, linearizable=True)
    if record is None:
        return StoredSink(SinkRecord(), None)
    return StoredSink(SinkRecord.decode(SINKS + sink, record.value), record.version)


async def last_committed(store: MetadataStore, sink: str) -> Committed | None:
    """The last transaction of a sink; ``None`` before the first.

    Raises:
        MetadataUnavailable, DamagedFile: as ``read_view``.
    """
    last = (await read_sink(store, sink)).record.last
    return None if last == NOTHING else last


async def read_clock(store: MetadataStore) -> StoredClock:
    """The sinks' clock.

    Raises:
        MetadataUnavailable, DamagedFile: as ``read_view``.
    """
    record = await store.read_record(CLOCK, linearizable=True)
    if record is None:
        return StoredClock(0, None)
    if not _is_tick(record.value):
        raise DamagedFile(f"the record {CLOCK} is not a number")
    return StoredClock(int(record.value), record.version)


async def names(store: MetadataStore, prefix: str, after: str = "") -> AsyncIterator[str]:
    """Names of records that begin with ``prefix`` and come after ``after``.

    Raises:
        MetadataUnavailable: there may be more than the store tells.
    """
    start: str | None = after
    while start is not None:
        page = await store.list_records(prefix, start)
        for name in page.names:
            yield name
        start = page.next_after()


def _since(metadata: LedgerMetadata) -> int | None:
    value = metadata.custom.get(SINCE, b"")
    return int(value) if _is_tick(value) else None


def _is_tick(value: bytes) -> bool:
    return value.isdigit() and len(value) <= _MOST_DIGITS
