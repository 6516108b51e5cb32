"""Bringing the ledgers of a transaction into view, or giving them up: what writers of ledgers in parallel need.

``transactions`` says what a transaction is, docs/protocol.md why each step is safe to be cut off, or done twice.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Final

from tallybook.core.errors import (
    Conflict,
    MetadataConflict,
    MetadataOutcomeUnknown,
    NoSuchLedger,
    PeerError,
    StorageError,
)
from tallybook.runtime.logging import logger

from .at_once import each
from .model import LedgerMetadata
from .sink_record import (
    CLOCK,
    NOTHING,
    SINKS,
    Committed,
    SinkRecord,
    attempt_name,
    attempt_of,
    attempts_of,
    check_fits,
    is_once,
)
from .store import MetadataStore, Ok, Versioned, WriteResult
from .transactions import StoredSink, Transaction, is_pending, names, read_clock, read_sink, settled
from .update import LedgerUpdater

_log = logger("transactions")

MOST_TRIES: Final = 20


async def note_attempt(store: MetadataStore, transaction: Transaction, ledger_id: int) -> None:
    """Leave word of a ledger, so that whoever commits can delete it if it is not among those committed.

    Raises:
        MetadataUnavailable, MetadataOutcomeUnknown: it may be without.
    """
    name = attempt_name(transaction.sink, transaction.number, ledger_id)
    for _ in range(MOST_TRIES):
        result = await store.write_record(name, b"", None)
        if isinstance(result, Ok) or await store.read_record(name, linearizable=True) is not None:
            return
    raise MetadataOutcomeUnknown(f"the record {name} may or may not be there")


async def commit(
    store: MetadataStore, updater: LedgerUpdater, transaction: Transaction, ledger_ids: Iterable[int],
    allowed: Callable[[], Awaitable[None]] | None = None,
) -> bool:  # fmt: skip
    """Bring the ledgers of a transaction into view; ``False`` if it was committed before, and nothing has changed.

    The ledgers of other attempts at this and at older transactions are deleted. Where that cannot be done once this one
    is committed, it is left to the next commit, or the offloader.

    Args:
        allowed: raises where the transaction may not be committed any more. It is asked behind each look at the record
            of the sink: whoever forbids it, and then writes that record anew, can be sure.

    Raises:
        InvalidArgument: too many ledgers.
        Conflict: the sink belongs to another owner, or ledgers are gone (given up as nobody committed them for long),
            or were not written by this transaction; nothing comes into view.
        MetadataConflict, MetadataOutcomeUnknown, MetadataUnavailable: it may be committed; the same call settles it.
        DamagedFile: the record cannot be understood.
        What ``allowed`` raises: nothing comes into view.
    """
    wanted = check_fits(Committed(transaction.number, tuple(sorted(ledger_ids)), transaction.owner))
    sink, done, wrote = transaction.sink, False, False
    known: Mapping[int, Versioned] = {}
    for _ in range(MOST_TRIES):
        stored = await read_sink(store, sink)
        record = stored.record
        if record.last != NOTHING and record.last.owner != transaction.owner:
            # Its numbers would make ours look like repetitions, and they would be dropped without a word.
            raise Conflict(
                f"sink {sink} belongs to another writer (with a new checkpoint, a stream is another one): "
                "choose another name"
            )
        if record.last.number >= transaction.number:
            # Ours, if it is the same to the last ledger: then an attempt whose outcome was not known has landed.
            ours = record.last == wanted
            done = ours or (record.last.number > wanted.number and await _any_settled(store, wanted))
            break
        _refuse(transaction, set(record.given_up) & set(wanted.ledger_ids))
        if allowed is not None:
            await allowed()
        # A view that has a younger transaction takes those before it for settled.
        await settle(updater, record)
        known = await _present(store, wanted)
        if len(known) < len(wanted.ledger_ids):
            if (await read_sink(store, sink)).version != stored.version:
                continue  # a younger transaction may have swept them away
            _refuse(transaction, set(wanted.ledger_ids) - set(known))
        _check_marks(transaction, known)
        record, wrote = SinkRecord(wanted, given_up=record.given_up), True
        if isinstance(await write_sink(store, sink, record, stored), Ok):
            done = True
            break
    else:
        raise MetadataConflict(f"sink {sink}: others commit to it all the time")
    try:
        if transaction.is_once and done:
            record = await dated(store, sink)
        # Whoever committed them may have stopped before: what is still pending below would be swept away.
        await settle(updater, record, known if record.last == wanted else {})
        if transaction.is_once and wrote and done:
            # Word of such a sink may be deleted, so this write may have landed after its ledgers were given up.
            _refuse(transaction, set(wanted.ledger_ids) - set(await _present(store, wanted)))
        await sweep(store, updater, sink, record)
    except (PeerError, StorageError) as error:
        if not done:
            raise
        # All is in view. Who is told that it failed would write all of it again.
        _log.warning("committed; tidying up is left to others", sink=sink, error=error.message)
    return done


async def forget(store: MetadataStore, updater: LedgerUpdater, sink: str) -> None:
    """Delete the record of a sink with a single transaction, which is committed: its ledgers vouch for themselves.

    To be called once nobody commits it, or asks about it, again.

    Raises:
        MetadataConflict, MetadataOutcomeUnknown, MetadataUnavailable, DamagedFile: the record may be left, and harms
            nobody; the same call tries again.
    """
    for _ in range(MOST_TRIES):
        if (await read_sink(store, sink)).record.last == NOTHING:
            return
        record = await dated(store, sink)
        await settle(updater, record)
        await sweep(store, updater, sink, record)
        version = (await read_sink(store, sink)).version
        if version is None or isinstance(await store.delete_record(SINKS + sink, version), Ok):
            return
    raise MetadataConflict(f"sink {sink}: others write its record all the time")


async def was_committed(store: MetadataStore, transaction: Transaction) -> bool:
    """Whether a ledger of this transaction has ever come into view and is still there; looks at all ledgers.

    Raises:
        MetadataUnavailable, DamagedFile: the ledgers cannot be looked at.
    """
    after: int | None = -1
    while after is not None:
        page = await store.list_ledgers(after)
        for found in await each(partial(read_if_there, store), page.ledger_ids):
            if found is not None and not is_pending(found.value) and transaction.wrote(found.value):
                return True
        after = page.next_after()
    return False


async def abandon(
    store: MetadataStore, updater: LedgerUpdater, transaction: Transaction, ledger_ids: Iterable[int]
) -> None:
    """Delete the ledgers of an attempt that is given up, unless they are committed: who gives up may not know that.

    A write of its commit that is still under way comes to nothing.

    Raises:
        As ``commit``; some may be left, for the next commit to delete, or for ``left_behind``.
    """
    sink = transaction.sink
    record = await renew(store, sink, transaction.number)
    await settle(updater, await dated(store, sink) if is_once(sink) else record)
    await each(partial(discard_pending, updater, transaction), ledger_ids)
    if transaction.is_once and record.last == NOTHING:
        # Nobody commits to this sink any more, and what has become of it all is settled.
        await sweep(store, updater, sink, SinkRecord(Committed(transaction.number, ())))
        await delete_emptied(store, sink)


async def renew(store: MetadataStore, sink: str, number: int) -> SinkRecord:
    """Write the record of a sink as it is, unless a transaction of this or of a higher number is committed; what it
    says.

    It has another version then: what was to replace the one before cannot land any more.

    Raises:
        MetadataConflict, MetadataUnavailable, DamagedFile: it may not be written; the same call tries again.
    """
    for _ in range(MOST_TRIES):
        stored = await read_sink(store, sink)
        if stored.record.last.number >= number:
            return stored.record
        if isinstance(await write_sink(store, sink, stored.record, stored), Ok):
            return stored.record
    raise MetadataConflict(f"sink {sink}: others commit to it all the time")


async def delete_emptied(store: MetadataStore, sink: str) -> bool:
    """Delete the record of a sink with a single transaction that came to nothing; says whether it is gone.

    It stays for as long as a ledger is there that a commit could name.

    Raises:
        MetadataUnavailable, DamagedFile: the store does not answer, or not with what can be understood.
    """
    stored = await read_sink(store, sink)
    if stored.version is None:
        return True
    left = [name async for name in names(store, attempts_of(sink))]
    if stored.record.last != NOTHING or left or await pending_of(store, stored.record.given_up):
        return False
    return isinstance(await store.delete_record(SINKS + sink, stored.version), Ok)


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


async def discard_pending(updater: LedgerUpdater, transaction: Transaction, ledger_id: int) -> bool:
    """Delete a ledger of a transaction, unless it is settled; says whether it was there to be deleted.

    A ledger without the marks of the transaction is left alone.

    Raises:
        As ``discard``.
    """
    try:
        await updater.update(ledger_id, partial(_not_left_behind, transaction))
    except Conflict:
        await discard(updater, [ledger_id])
        return True
    except NoSuchLedger:
        return False
    return False


async def sweep(store: MetadataStore, updater: LedgerUpdater, sink: str, record: SinkRecord) -> None:
    """Delete what attempts up to the last transaction have left behind, whose ledgers are settled.

    Raises:
        As ``discard``.
    """

    async def one(name: str) -> None:
        attempt = attempt_of(name)
        if attempt is None or attempt[0] > record.last.number:
            return
        if attempt[1] not in committed:
            await discard_pending(updater, Transaction(sink, attempt[0]), attempt[1])
        await delete_attempt(store, name)

    committed = set(record.last.ledger_ids)
    await each(one, [name async for name in names(store, attempts_of(sink))])


async def delete_attempt(store: MetadataStore, name: str) -> None:
    """Delete word of a ledger that is settled or gone.

    Raises:
        MetadataUnavailable: the store does not answer.
    """
    record = await store.read_record(name, linearizable=True)
    if record is not None:
        await store.delete_record(name, record.version)


async def read_if_there(store: MetadataStore, ledger_id: int) -> Versioned | None:
    """A ledger as it is now, or ``None``.

    Raises:
        MetadataUnavailable, DamagedFile: it cannot be read.
    """
    try:
        return await store.read_ledger(ledger_id, linearizable=True)
    except NoSuchLedger:
        return None


async def pending_of(store: MetadataStore, ledger_ids: Iterable[int]) -> tuple[int, ...]:
    """Those of the ledgers that are there, and pending: the others are gone, or committed.

    Raises:
        As ``read_if_there``.
    """
    wanted = list(ledger_ids)
    found = await each(partial(read_if_there, store), wanted)
    return tuple(
        ledger_id for ledger_id, one in zip(wanted, found, strict=True) if one is not None and is_pending(one.value)
    )


async def write_sink(store: MetadataStore, sink: str, record: SinkRecord, stored: StoredSink) -> WriteResult:
    """Compare-and-set a sink's record.

    Raises:
        MetadataUnavailable: nothing was written.
    """
    return await store.write_record(SINKS + sink, record.encode(), stored.version)


async def settle(updater: LedgerUpdater, record: SinkRecord, known: Mapping[int, Versioned] | None = None) -> None:
    """See to it that the last transaction's ledgers are pending no more; those that were deleted since do not matter.

    Args:
        known: what was read of them lately.

    Raises:
        As ``discard``.
    """

    async def one(ledger_id: int) -> None:
        try:
            await updater.update(ledger_id, transition, known=(known or {}).get(ledger_id))
        except NoSuchLedger:
            return

    transition = partial(settled, since=record.since)
    await each(one, record.last.ledger_ids)


async def dated(store: MetadataStore, sink: str) -> SinkRecord:
    """The record of a sink with a single transaction, with its tick, if that is committed; settled here if nobody has
    before.

    Raises:
        As ``forget``.
    """
    for _ in range(MOST_TRIES):
        stored = await read_sink(store, sink)
        if stored.version is None or stored.record.last == NOTHING or stored.record.since is not None:
            return stored.record
        record = replace(stored.record, since=await _tick(store))
        if isinstance(await write_sink(store, sink, record, stored), Ok):
            return record
    raise MetadataConflict(f"sink {sink}: others write its record all the time")


async def _tick(store: MetadataStore) -> int:
    """A tick of the sinks' clock that comes after this call began, and has been reached when it ends."""
    began: int | None = None
    for _ in range(MOST_TRIES):
        clock = await read_clock(store)
        began = clock.now if began is None else began
        if clock.now > began:
            return clock.now
        if isinstance(await store.write_record(CLOCK, str(began + 1).encode(), clock.version), Ok):
            return began + 1
    raise MetadataConflict(f"{CLOCK}: others write it all the time")


async def _present(store: MetadataStore, wanted: Committed) -> Mapping[int, Versioned]:
    """Those of the ledgers that are there."""
    found = await each(partial(read_if_there, store), wanted.ledger_ids)
    return {ledger_id: one for ledger_id, one in zip(wanted.ledger_ids, found, strict=True) if one is not None}


def _refuse(transaction: Transaction, gone: set[int]) -> None:
    if gone:
        raise Conflict(
            f"transaction {transaction.number} of sink {transaction.sink} cannot be committed: {len(gone)} of its "
            f"ledgers were given up and deleted, such as {min(gone)}; nothing of it is in view, and it may be written "
            "again"
        )


def _check_marks(transaction: Transaction, known: Mapping[int, Versioned]) -> None:
    """Refuse ledgers of others, which would come into view before their own transaction is committed."""
    for ledger_id, found in known.items():
        if not transaction.wrote(found.value):
            raise Conflict(
                f"transaction {transaction.number} of sink {transaction.sink} cannot be committed: ledger {ledger_id} "
                "was not written by it; nothing of it is in view"
            )


async def _any_settled(store: MetadataStore, committed: Committed) -> bool:
    """Whether ledgers were committed by a transaction that others have followed since."""
    found = await each(partial(read_if_there, store), committed.ledger_ids)
    return any(one is not None and not is_pending(one.value) for one in found)


def _not_left_behind(transaction: Transaction, metadata: LedgerMetadata) -> LedgerMetadata:
    if is_pending(metadata) and transaction.wrote(metadata):
        raise Conflict(f"ledger {metadata.ledger_id} belongs to no transaction that was committed")
    return metadata
