"""Ledgers that come into view together: those of one transaction, or none of them.

A writer that may fail half-way, or be run twice, marks its ledgers with a *sink* and the number of a transaction when
it creates them, and at its end one record of the sink says which ledgers the transaction has:

    ledger, marked "sales/17", pending          record sinks/sales: {"last": 17, "ledgers": [...]}
        created, written, closed                       one compare-and-set: this is the commit
        no longer pending, once committed              a second commit of 17 finds it and changes nothing

Transactions of a sink are committed in ascending order. Who reads a consistent view reads the records first, then the
ledgers: a marked ledger belongs to the view if its transaction is older than the last one and it is not pending, or if
it is named by the last one. What a failed attempt left behind never gets into view; its writer, or the next commit,
deletes it.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from tallybook.core.errors import (
    Conflict,
    DamagedFile,
    InvalidArgument,
    MetadataConflict,
    MetadataOutcomeUnknown,
    MetadataUnavailable,
    NoSuchLedger,
)
from tallybook.core.ids import MAX_ID

from .model import LedgerMetadata
from .store import MetadataStore, Ok
from .update import LedgerUpdater

FORMAT: Final = 1
SINK: Final = "tallybook.sink"
"""Key of the mark among a ledger's custom metadata: the name of the sink, a slash, the number of the transaction."""
PENDING: Final = "tallybook.pending"

_COMMITS: Final = "sinks/"
_ATTEMPTS: Final = "sink-attempts/"
_MOST_TRIES: Final = 20
MAX_LEDGERS: Final = 3_000
"""Of one transaction: its record has at most 64 KiB."""


@dataclass(frozen=True, slots=True)
class Transaction:
    """One transaction of a sink.

    Args:
        owner: who numbers the transactions, such as the id of a query; numbers of somebody else mean something else.
    """

    sink: str
    number: int
    owner: str = ""

    @property
    def marks(self) -> dict[str, bytes]:
        """Custom metadata of a ledger that it is to have."""
        return {SINK: f"{self.sink}/{self.number}".encode(), PENDING: b"1"}


@dataclass(frozen=True, slots=True)
class Committed:
    """The last transaction of a sink, and its ledgers."""

    number: int
    ledger_ids: tuple[int, ...]
    owner: str = ""


@dataclass(frozen=True, slots=True)
class View:
    """Which marked ledgers are to be seen: a moment in the life of all sinks, by their names."""

    committed: Mapping[str, Committed]
    everything: bool = False
    """Whether marks do not matter."""

    def sees(self, metadata: LedgerMetadata) -> bool:
        """Whether a ledger belongs to the view; one that is not marked always does."""
        mark = transaction_of(metadata)
        if mark is None or self.everything:
            return True
        last = self.committed.get(mark.sink)
        if last is None or mark.number > last.number:
            return False
        if mark.number == last.number:
            return metadata.ledger_id in last.ledger_ids
        return not is_pending(metadata)


EVERYTHING: Final = View({}, everything=True)

_NOTHING: Final = Committed(-1, ())
"""Before the first transaction of a sink: no record, or one that was written by ``abandon``."""


def transaction_of(metadata: LedgerMetadata) -> Transaction | None:
    """The transaction that a ledger was written by, if any."""
    sink, _, number = metadata.custom.get(SINK, b"").decode(errors="replace").rpartition("/")
    return Transaction(sink, int(number)) if sink and number.isdecimal() else None


def is_pending(metadata: LedgerMetadata) -> bool:
    """Whether a ledger waits for the commit of its transaction, or was left behind by an attempt."""
    return PENDING in metadata.custom


def settled(metadata: LedgerMetadata) -> LedgerMetadata:
    """The ledger, no longer pending; it keeps its mark. Doing so again changes nothing."""
    if not is_pending(metadata):
        return metadata
    return replace(metadata, custom={key: value for key, value in metadata.custom.items() if key != PENDING})


async def read_view(store: MetadataStore) -> View:
    """The view of this moment.

    Raises:
        MetadataUnavailable: the store does not answer.
        DamagedFile: a record cannot be understood.
    """
    found = {}
    async for name in _names(store, _COMMITS):
        record = await store.read_record(name, linearizable=True)
        if record is not None:
            found[name.removeprefix(_COMMITS)] = _decoded(name, record.value)
    return View(found)


async def last_committed(store: MetadataStore, sink: str) -> Committed | None:
    """The last transaction of a sink; ``None`` before the first.

    Raises:
        MetadataUnavailable, DamagedFile: as ``read_view``.
    """
    record = await store.read_record(_COMMITS + sink, linearizable=True)
    last = _NOTHING if record is None else _decoded(_COMMITS + sink, record.value)
    return None if last == _NOTHING else last


async def note_attempt(store: MetadataStore, transaction: Transaction, ledger_id: int) -> None:
    """Leave word of a ledger, so that whoever commits can delete it if it is not among those committed.

    Raises:
        MetadataUnavailable, MetadataOutcomeUnknown: it may be without.
    """
    name = f"{_ATTEMPTS}{transaction.sink}/{transaction.number}-{ledger_id}"
    for _ in range(_MOST_TRIES):
        result = await store.write_record(name, b"", None)
        if isinstance(result, Ok) or await store.read_record(name, linearizable=True) is not None:
            return
    raise MetadataOutcomeUnknown(f"the record {name} may or may not be there")


async def commit(
    store: MetadataStore, updater: LedgerUpdater, transaction: Transaction, ledger_ids: Iterable[int]
) -> bool:
    """Bring the ledgers of a transaction into view; ``False`` if it was committed before, and nothing has changed.

    The ledgers of other attempts at this and at older transactions are deleted.

    Raises:
        InvalidArgument: too many ledgers.
        Conflict: the sink belongs to another owner; nothing has changed.
        MetadataConflict, MetadataOutcomeUnknown, MetadataUnavailable: it may be committed; the same call settles it.
        DamagedFile: the record cannot be understood.
    """
    wanted = Committed(transaction.number, tuple(sorted(ledger_ids)), transaction.owner)
    if len(wanted.ledger_ids) > MAX_LEDGERS:
        raise InvalidArgument(f"a transaction has up to {MAX_LEDGERS} ledgers, not {len(wanted.ledger_ids)}")
    name, done = _COMMITS + transaction.sink, False
    for _ in range(_MOST_TRIES):
        record = await store.read_record(name, linearizable=True)
        last = _NOTHING if record is None else _decoded(name, record.value)
        if last != _NOTHING and last.owner != transaction.owner:
            # Its numbers would make ours look like repetitions, and they would be dropped without a word.
            raise Conflict(
                f"sink {transaction.sink} belongs to another writer (with a new checkpoint, a stream is another one): "
                "choose another name"
            )
        if last.number >= transaction.number:
            # Ours, if it is the same to the last ledger: then an attempt whose outcome was not known has landed.
            done = last == wanted or (last.number > wanted.number and await _any_settled(store, wanted))
            break
        # A view that has a younger transaction takes those before it for settled.
        await _settle(updater, last)
        result = await store.write_record(name, _encoded(wanted), record.version if record else None)
        if isinstance(result, Ok):
            last, done = wanted, True
            break
    else:
        raise MetadataConflict(f"sink {transaction.sink}: others commit to it all the time")
    # Whoever committed them may have stopped before: what is still pending below would be swept away.
    await _settle(updater, last)
    await _sweep(store, updater, transaction, last)
    return done


async def was_committed(store: MetadataStore, transaction: Transaction) -> bool:
    """Whether a ledger of this transaction has ever come into view and is still there; looks at all ledgers.

    Raises:
        MetadataUnavailable, DamagedFile: the ledgers cannot be looked at.
    """
    after = -1
    while True:
        page = await store.list_ledgers(after)
        for ledger_id in page.ledger_ids:
            try:
                metadata = (await store.read_ledger(ledger_id, linearizable=True)).value
            except NoSuchLedger:
                continue
            mark = transaction_of(metadata)
            if mark and (mark.sink, mark.number) == (transaction.sink, transaction.number) and not is_pending(metadata):
                return True
        if page.complete:
            return False
        if not page.ledger_ids:
            raise MetadataUnavailable("a listing of ledgers was cut off")
        after = page.ledger_ids[-1]


async def abandon(
    store: MetadataStore, updater: LedgerUpdater, transaction: Transaction, ledger_ids: Iterable[int]
) -> None:
    """Delete the ledgers of an attempt that is given up, unless they are committed: who gives up may not know that.

    A write of its commit that is still under way comes to nothing.

    Raises:
        As ``commit``; some may be left, for the next commit to delete.
    """
    name = _COMMITS + transaction.sink
    for _ in range(_MOST_TRIES):
        record = await store.read_record(name, linearizable=True)
        last = _NOTHING if record is None else _decoded(name, record.value)
        if last.number >= transaction.number:
            break
        # The same again, at another version: what was to replace the one before cannot land any more.
        result = await store.write_record(name, _encoded(last), record.version if record else None)
        if isinstance(result, Ok):
            break
    else:
        raise MetadataConflict(f"sink {transaction.sink}: others commit to it all the time")
    await _settle(updater, last)
    for ledger_id in ledger_ids:
        await _discard_pending(updater, ledger_id)


async def discard(updater: LedgerUpdater, ledger_ids: Iterable[int]) -> None:
    """Delete the ledgers of a task that failed, and that nobody can have committed.

    Raises:
        MetadataUnavailable, MetadataOutcomeUnknown, MetadataConflict: some may be left, for the next commit to delete.
    """
    for ledger_id in ledger_ids:
        try:
            await updater.delete(ledger_id)
        except NoSuchLedger:
            continue


async def _any_settled(store: MetadataStore, committed: Committed) -> bool:
    """Whether ledgers were committed by a transaction that others have followed since."""
    for ledger_id in committed.ledger_ids:
        try:
            if not is_pending((await store.read_ledger(ledger_id, linearizable=True)).value):
                return True
        except NoSuchLedger:
            continue
    return False


async def _settle(updater: LedgerUpdater, committed: Committed) -> None:
    for ledger_id in committed.ledger_ids:
        try:
            await updater.update(ledger_id, settled)
        except NoSuchLedger:
            continue  # somebody has deleted it since


async def _sweep(store: MetadataStore, updater: LedgerUpdater, transaction: Transaction, last: Committed) -> None:
    """Delete what attempts up to this transaction have left behind."""
    prefix = f"{_ATTEMPTS}{transaction.sink}/"
    names = [name async for name in _names(store, prefix)]
    for name in names:
        number, _, ledger_id = name.removeprefix(prefix).partition("-")
        if int(number) > last.number:
            continue
        await _discard_pending(updater, int(ledger_id))
        record = await store.read_record(name, linearizable=True)
        if record is not None:
            await store.delete_record(name, record.version)


async def _discard_pending(updater: LedgerUpdater, ledger_id: int) -> None:
    """Delete a ledger, unless it is settled."""
    try:
        await updater.update(ledger_id, _not_left_behind)
    except Conflict:
        await discard(updater, [ledger_id])
    except NoSuchLedger:
        return


def _not_left_behind(metadata: LedgerMetadata) -> LedgerMetadata:
    if is_pending(metadata):
        raise Conflict(f"ledger {metadata.ledger_id} belongs to no transaction that was committed")
    return metadata


async def _names(store: MetadataStore, prefix: str) -> AsyncIterator[str]:
    after = ""
    while True:
        page = await store.list_records(prefix, after)
        for name in page.names:
            yield name
        if page.complete:
            return
        if not page.names:
            raise MetadataUnavailable(f"a listing of {prefix} was cut off")
        after = page.names[-1]


def _encoded(committed: Committed) -> bytes:
    found: dict[str, object] = {"format": FORMAT, "last": committed.number, "ledgers": list(committed.ledger_ids)}
    if committed.owner:
        found["owner"] = committed.owner
    return json.dumps(found, separators=(",", ":")).encode()


def _decoded(name: str, value: bytes) -> Committed:
    try:
        found = json.loads(value)
        version, number, ledger_ids, owner = found["format"], found["last"], found["ledgers"], found.get("owner", "")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DamagedFile(f"the record {name} cannot be understood: {error}") from error
    if (version, number, ledger_ids) == (FORMAT, _NOTHING.number, []):
        return _NOTHING
    numbers = [number, *ledger_ids] if isinstance(ledger_ids, list) else [None]
    sound = isinstance(owner, str) and all(type(each) is int and 0 <= each <= MAX_ID for each in numbers)
    if version != FORMAT or not sound:
        raise DamagedFile(f"the record {name} is of format {version}, or damaged; this Tallybook knows {FORMAT}")
    return Committed(number, tuple(ledger_ids), owner)
