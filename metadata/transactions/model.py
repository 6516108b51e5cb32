"""Transactions: sets of marked ledgers that become visible together, or not at all (docs/understand/transactions.md).

A writer that may fail half-way, or run twice, marks its ledgers with a *sink* and a transaction number when it creates
them, and as *pending*. At its end one record of the sink lists the ledgers of the transaction: one compare-and-set,
which is the commit; a repeated one changes nothing. Then the ledgers lose the pending mark, at the latest before the
next commit of the sink. Transactions of a sink are committed in ascending order.

A reader with a consistent view reads the records first, then the ledgers. A marked ledger is visible if its transaction
is older than the last one and it is not pending, or if the last one lists it. Ledgers of failed attempts never become
visible.

This module is what readers need; ``commit_protocol`` publishes ledgers, ``abandoned`` deletes those never committed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from tallybook.core.errors import DamagedFile, InvalidArgument
from tallybook.core.ids import MAX_ID

from ..bounded_calls import map_bounded
from ..ledger.model import LedgerMetadata
from ..records.listing import record_names
from ..rules import check_record_name
from ..store import MetadataStore
from .sink_record import CLOCK, NOTHING, ONCE, SINKS, Committed, SinkRecord, attempt_name, is_once

SINK: Final = "tallybook.sink"
"""Custom metadata key of the mark: the name of the sink, a slash, the number of the transaction."""
PENDING: Final = "tallybook.pending"
SINCE: Final = "tallybook.since"
"""Custom metadata key of the clock tick from which the ledger is visible without its sink's record."""
STAGED: Final = "stream."
"""Prefix of sinks whose ledgers are staged for a stream. Sink names of users have no dot."""

_MAX_DIGITS: Final = 19


@dataclass(frozen=True, slots=True)
class Transaction:
    """One transaction of a sink.

    Args:
        owner: the process that numbers the transactions, such as the id of a query; other owners' numbers differ.
    """

    sink: str
    number: int
    owner: str = ""

    @classmethod
    def once(cls, name: str) -> Transaction:
        """The only transaction of a new sink, never repeated: its record is deleted in the end.

        Args:
            name: one that no other sink ever has.
        """
        return cls(ONCE + name, 0)

    @property
    def is_once(self) -> bool:
        """Whether it is the only transaction of its sink."""
        return is_once(self.sink)

    @property
    def marks(self) -> dict[str, bytes]:
        """Custom metadata for the ledgers of this transaction."""
        return {SINK: f"{self.sink}/{self.number}".encode(), PENDING: b"1"}

    def wrote(self, metadata: LedgerMetadata) -> bool:
        """Whether a ledger has this transaction's marks. An id alone may be that of a ledger in another cluster."""
        mark = transaction_of(metadata)
        return mark is not None and (mark.sink, mark.number) == (self.sink, self.number)


@dataclass(frozen=True, slots=True)
class View:
    """Which marked ledgers are visible: a snapshot of all sinks, by their names.

    Args:
        clock: the sinks' clock. A ledger with a later tick was committed after this view.
    """

    committed: Mapping[str, Committed]
    everything: bool = False
    """Whether marks are ignored."""
    clock: int = 0

    def sees(self, metadata: LedgerMetadata) -> bool:
        """Whether a ledger is visible; an unmarked one always is."""
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
    """A sink's record with its version for compare-and-set; ``None``: it does not exist."""

    record: SinkRecord
    version: int | None


class StoredClock(NamedTuple):
    """The sinks' clock, which starts at 0 and only grows, with the version of its record."""

    now: int
    version: int | None


def transaction_of(metadata: LedgerMetadata) -> Transaction | None:
    """The transaction that a ledger belongs to, if any.

    Any client may write custom metadata: a value that no transaction can have written is not a mark.
    """
    sink, _, number = metadata.custom.get(SINK, b"").decode(errors="replace").rpartition("/")
    if not (
        number.isascii() and number.isdigit() and len(number) <= _MAX_DIGITS and "/" not in sink.removeprefix(ONCE)
    ):
        return None
    try:
        check_record_name(SINKS + sink)
        check_record_name(attempt_name(sink, int(number), MAX_ID))
    except InvalidArgument:
        return None
    return Transaction(sink, int(number))


def is_pending(metadata: LedgerMetadata) -> bool:
    """Whether a ledger waits for the commit of its transaction, or was left by a failed attempt."""
    return PENDING in metadata.custom


def is_staged(metadata: LedgerMetadata) -> bool:
    """Whether a ledger has records that are staged for a stream: other readers must skip it."""
    mark = transaction_of(metadata)
    return mark is not None and mark.sink.startswith(STAGED)


def unmarked(metadata: LedgerMetadata) -> LedgerMetadata:
    """The ledger without marks."""
    custom = {key: value for key, value in metadata.custom.items() if key not in {SINK, PENDING, SINCE}}
    return replace(metadata, custom=custom)


def settled(metadata: LedgerMetadata, since: int | None = None) -> LedgerMetadata:
    """The ledger, no longer pending; it keeps its mark. Idempotent.

    Args:
        since: the tick from which it is visible without its sink's record.
    """
    custom = {key: value for key, value in metadata.custom.items() if key != PENDING}
    if since is not None:
        custom.setdefault(SINCE, str(since).encode())
    return metadata if custom == metadata.custom else replace(metadata, custom=custom)


async def read_view(store: MetadataStore) -> View:
    """A view of the current state.

    Raises:
        MetadataUnavailable: the store does not answer.
        DamagedFile: a record is unreadable.
    """
    before = (await read_clock(store)).now
    found = await _records(store, [name async for name in record_names(store, SINKS)])
    clock = (await read_clock(store)).now
    if clock != before:
        # A sink with a later tick may have been committed after the listing of its folder: docs/understand/protocol.md.
        found |= await _records(store, [name async for name in record_names(store, SINKS) if name not in found])
    committed = {name.removeprefix(SINKS): record.last for name, record in found.items()}
    return View(committed, clock=clock)


async def _records(store: MetadataStore, wanted: Iterable[str]) -> dict[str, SinkRecord]:
    found = await map_bounded(lambda name: read_sink(store, name.removeprefix(SINKS)), listed := list(wanted))
    return {name: stored.record for name, stored in zip(listed, found, strict=True) if stored.version is not None}


async def read_sink(store: MetadataStore, sink: str) -> StoredSink:
    """The record of a sink; an empty one if it does not exist.

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


def _since(metadata: LedgerMetadata) -> int | None:
    value = metadata.custom.get(SINCE, b"")
    return int(value) if _is_tick(value) else None


def _is_tick(value: bytes) -> bool:
    return value.isdigit() and len(value) <= _MAX_DIGITS
