"""Commits or abandons the ledgers of a transaction, for parallel writers.

``model`` defines transactions; docs/understand/protocol.md explains why each step may be interrupted or repeated.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial

from tallybook.core.errors import (
    Conflict,
    MetadataConflict,
    MetadataOutcomeUnknown,
    NoSuchLedger,
    PeerError,
    StorageError,
)
from tallybook.runtime.logging import logger

from ..bounded_calls import map_bounded
from ..ledger.model import LedgerMetadata
from ..ledger_update import LedgerUpdater
from ..records.listing import record_names
from ..store import MetadataStore, Ok, Versioned, WriteResult
from .model import StoredSink, Transaction, is_pending, read_clock, read_sink, settled
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

_log = logger("transactions")


async def record_attempt(updater: LedgerUpdater, transaction: Transaction, ledger_id: int) -> None:
    """Record that a transaction writes a ledger, so that a commit without it can delete it.

    Raises:
        MetadataUnavailable, MetadataOutcomeUnknown: it may not be recorded.
    """
    store, name = updater.store, attempt_name(transaction.sink, transaction.number, ledger_id)
    async for _ in updater.tries():
        result = await store.write_record(name, b"", None)
        if isinstance(result, Ok) or await store.read_record(name, linearizable=True) is not None:
            return
    raise MetadataOutcomeUnknown(f"it is unknown whether the record {name} was written")


async def commit(
    updater: LedgerUpdater, transaction: Transaction, ledger_ids: Iterable[int],
    allowed: Callable[[], Awaitable[None]] | None = None,
) -> bool:  # fmt: skip
    """Make the ledgers of a transaction visible; ``False`` if it was committed before, and nothing has changed.

    Deletes the ledgers of other attempts at this and at older transactions. If that fails after the commit, the next
    commit or the offloader does it.

    Args:
        allowed: raises if the transaction must not be committed any more. Called after each read of the sink's record,
            so a process that forbids the commit and then rewrites that record can rely on it.

    Raises:
        InvalidArgument: too many ledgers.
        Conflict: the sink belongs to another owner, or ledgers were deleted (abandoned after a long time), or were not
            written by this transaction; nothing becomes visible.
        MetadataConflict, MetadataOutcomeUnknown, MetadataUnavailable: it may be committed; repeat the call.
        DamagedFile: the record is unreadable.
        Any error of ``allowed``: nothing becomes visible.
    """
    wanted = check_fits(Committed(transaction.number, tuple(sorted(ledger_ids)), transaction.owner))
    store, sink = updater.store, transaction.sink
    done = wrote = False
    known: Mapping[int, Versioned] = {}
    async for _ in updater.tries():
        stored = await read_sink(store, sink)
        record = stored.record
        if record.last != NOTHING and record.last.owner != transaction.owner:
            # Our transactions would look like repetitions of the other writer's, and be dropped silently.
            raise Conflict(
                f"sink {sink} belongs to another writer (a streaming query with a new checkpoint counts as "
                "another writer): choose another name"
            )
        if record.last.number >= transaction.number:
            # Ours if all ledgers are the same: then an attempt with unknown outcome was applied.
            done = record.last == wanted or (record.last.number > wanted.number and await _any_settled(store, wanted))
            break
        _refuse(transaction, set(record.given_up) & set(wanted.ledger_ids))
        if allowed is not None:
            await allowed()
        # A view with a younger transaction treats earlier ones as settled.
        await settle(updater, record)
        known = await _present(store, wanted)
        if len(known) < len(wanted.ledger_ids):
            if (await read_sink(store, sink)).version != stored.version:
                continue  # a younger transaction may have deleted them
            _refuse(transaction, set(wanted.ledger_ids) - set(known))
        _check_marks(transaction, known)
        record, wrote = SinkRecord(wanted, given_up=record.given_up), True
        if isinstance(await write_sink(store, sink, record, stored), Ok):
            done = True
            break
    else:
        raise MetadataConflict(f"sink {sink}: other processes keep committing to it: try again")
    try:
        if transaction.is_once and done:
            record = await read_dated(updater, sink)
        # An earlier committer may have stopped half way: ledgers still pending would be deleted below.
        await settle(updater, record, known if record.last == wanted else {})
        if transaction.is_once and wrote and done:
            # The record of such a sink may be deleted, so this write may have come after its ledgers were abandoned.
            _refuse(transaction, set(wanted.ledger_ids) - set(await _present(store, wanted)))
        await sweep(updater, sink, record)
    except (PeerError, StorageError) as error:
        if not done:
            raise
        # All ledgers are visible. A caller that gets an error would write all of them again.
        _log.warning("committed; a later commit or the offloader cleans up", sink=sink, error=error.message)
    return done


async def forget(updater: LedgerUpdater, sink: str) -> None:
    """Delete the record of a one-transaction sink that is committed; its ledgers are marked as settled.

    Call it when the transaction will not be committed or queried again.

    Raises:
        MetadataConflict, MetadataOutcomeUnknown, MetadataUnavailable, DamagedFile: the record may be left, which is
            harmless; repeat the call.
    """
    store = updater.store
    async for _ in updater.tries():
        if (await read_sink(store, sink)).record.last == NOTHING:
            return
        record = await read_dated(updater, sink)
        await settle(updater, record)
        await sweep(updater, sink, record)
        version = (await read_sink(store, sink)).version
        if version is None or isinstance(await store.delete_record(SINKS + sink, version), Ok):
            return
    raise MetadataConflict(f"sink {sink}: other processes keep changing its record: try again")


async def was_committed(store: MetadataStore, transaction: Transaction) -> bool:
    """Whether a ledger of this transaction became visible and still exists; reads all ledgers.

    Raises:
        MetadataUnavailable, DamagedFile: the ledgers are unreadable.
    """
    after: int | None = -1
    while after is not None:
        page = await store.list_ledgers(after)
        for found in await map_bounded(partial(read_if_there, store), page.ledger_ids):
            if found is not None and not is_pending(found.value) and transaction.wrote(found.value):
                return True
        after = page.next_after()
    return False


async def abandon(updater: LedgerUpdater, transaction: Transaction, ledger_ids: Iterable[int]) -> None:
    """Delete the ledgers of an abandoned attempt, unless they are committed, which the caller may not know.

    A commit write in flight is invalidated.

    Raises:
        As ``commit``; some may be left, for the next commit or for ``abandoned`` to delete.
    """
    sink = transaction.sink
    record = await renew(updater, sink, transaction.number)
    await settle(updater, await read_dated(updater, sink) if is_once(sink) else record)
    await map_bounded(partial(discard_pending, updater, transaction), ledger_ids)
    if transaction.is_once and record.last == NOTHING:
        # No process will commit to this sink any more, and all outcomes are settled.
        await sweep(updater, sink, SinkRecord(Committed(transaction.number, ())))
        await delete_emptied(updater.store, sink)


async def renew(updater: LedgerUpdater, sink: str, number: int) -> SinkRecord:
    """Rewrite the record of a sink unchanged, unless a transaction with this or a higher number is committed; returns
    the record.

    The record then has another version: writes in flight for the earlier version cannot be applied any more.

    Raises:
        MetadataConflict, MetadataUnavailable, DamagedFile: it may not be written; repeat the call.
    """
    store = updater.store
    async for _ in updater.tries():
        stored = await read_sink(store, sink)
        if stored.record.last.number >= number:
            return stored.record
        if isinstance(await write_sink(store, sink, stored.record, stored), Ok):
            return stored.record
    raise MetadataConflict(f"sink {sink}: other processes keep committing to it: try again")


async def delete_emptied(store: MetadataStore, sink: str) -> bool:
    """Delete the record of a one-transaction sink without a committed transaction; returns whether it is deleted.

    It stays while a ledger exists that a commit could name.

    Raises:
        MetadataUnavailable, DamagedFile: the store does not answer, or its data is unreadable.
    """
    stored = await read_sink(store, sink)
    if stored.version is None:
        return True
    left = [name async for name in record_names(store, attempts_of(sink))]
    if stored.record.last != NOTHING or left or await pending_of(store, stored.record.given_up):
        return False
    return isinstance(await store.delete_record(SINKS + sink, stored.version), Ok)


async def discard(updater: LedgerUpdater, ledger_ids: Iterable[int]) -> None:
    """Delete the ledgers of a failed task, which cannot be committed.

    Raises:
        MetadataUnavailable, MetadataOutcomeUnknown, MetadataConflict: some may be left, for the next commit to delete.
    """
    for ledger_id in ledger_ids:
        try:
            await updater.delete(ledger_id)
        except NoSuchLedger:
            continue


async def discard_pending(updater: LedgerUpdater, transaction: Transaction, ledger_id: int) -> bool:
    """Delete a ledger of a transaction, unless it is settled; returns whether it existed and was deleted.

    A ledger without the marks of the transaction is not touched.

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


async def sweep(updater: LedgerUpdater, sink: str, record: SinkRecord) -> None:
    """Delete what attempts up to the last transaction have left. The ledgers of that transaction are settled.

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

    store, committed = updater.store, set(record.last.ledger_ids)
    await map_bounded(one, [name async for name in record_names(store, attempts_of(sink))])


async def delete_attempt(store: MetadataStore, name: str) -> None:
    """Delete the attempt record of a ledger that is settled or deleted.

    Raises:
        MetadataUnavailable: the store does not answer.
    """
    record = await store.read_record(name, linearizable=True)
    if record is not None:
        await store.delete_record(name, record.version)


async def read_if_there(store: MetadataStore, ledger_id: int) -> Versioned | None:
    """The current metadata of a ledger, or ``None``.

    Raises:
        MetadataUnavailable, DamagedFile: it is unreadable.
    """
    try:
        return await store.read_ledger(ledger_id, linearizable=True)
    except NoSuchLedger:
        return None


async def pending_of(store: MetadataStore, ledger_ids: Iterable[int]) -> tuple[int, ...]:
    """The ledgers that exist and are pending: the others are deleted or committed.

    Raises:
        As ``read_if_there``.
    """
    wanted = list(ledger_ids)
    found = await map_bounded(partial(read_if_there, store), wanted)
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
    """Settle the last transaction's ledgers: they are pending no more. Ignores ledgers that were deleted since.

    Args:
        known: metadata of them that was read recently.

    Raises:
        As ``discard``.
    """

    async def one(ledger_id: int) -> None:
        try:
            await updater.update(ledger_id, transition, known=(known or {}).get(ledger_id))
        except NoSuchLedger:
            return

    transition = partial(settled, since=record.since)
    await map_bounded(one, record.last.ledger_ids)


async def read_dated(updater: LedgerUpdater, sink: str) -> SinkRecord:
    """The record of a one-transaction sink, with its tick if committed; sets the tick if it is missing.

    Raises:
        As ``forget``.
    """
    store = updater.store
    async for _ in updater.tries():
        stored = await read_sink(store, sink)
        if stored.version is None or stored.record.last == NOTHING or stored.record.since is not None:
            return stored.record
        record = replace(stored.record, since=await _tick(updater))
        if isinstance(await write_sink(store, sink, record, stored), Ok):
            return record
    raise MetadataConflict(f"sink {sink}: other processes keep changing its record: try again")


async def _tick(updater: LedgerUpdater) -> int:
    """A tick of the sinks' clock after the start of this call; the clock has reached it on return."""
    store = updater.store
    began: int | None = None
    async for _ in updater.tries():
        clock = await read_clock(store)
        began = clock.now if began is None else began
        if clock.now > began:
            return clock.now
        if isinstance(await store.write_record(CLOCK, str(began + 1).encode(), clock.version), Ok):
            return began + 1
    raise MetadataConflict(f"the record {CLOCK}: other processes keep changing it: try again")


async def _present(store: MetadataStore, wanted: Committed) -> Mapping[int, Versioned]:
    """The ledgers that exist."""
    found = await map_bounded(partial(read_if_there, store), wanted.ledger_ids)
    return {ledger_id: one for ledger_id, one in zip(wanted.ledger_ids, found, strict=True) if one is not None}


def _refuse(transaction: Transaction, gone: set[int]) -> None:
    if gone:
        raise Conflict(
            f"transaction {transaction.number} of sink {transaction.sink} cannot be committed: {len(gone)} of its "
            f"ledgers were given up and deleted, such as {min(gone)}; none of its data is visible, and it may be "
            "written again"
        )


def _check_marks(transaction: Transaction, known: Mapping[int, Versioned]) -> None:
    """Refuse ledgers of other transactions, which would become visible before their own commit."""
    for ledger_id, found in known.items():
        if not transaction.wrote(found.value):
            raise Conflict(
                f"transaction {transaction.number} of sink {transaction.sink} cannot be committed: ledger {ledger_id} "
                "was not written by it; none of its data is visible"
            )


async def _any_settled(store: MetadataStore, committed: Committed) -> bool:
    """Whether ledgers were committed by a transaction that others have followed since."""
    found = await map_bounded(partial(read_if_there, store), committed.ledger_ids)
    return any(one is not None and not is_pending(one.value) for one in found)


def _not_left_behind(transaction: Transaction, metadata: LedgerMetadata) -> LedgerMetadata:
    if is_pending(metadata) and transaction.wrote(metadata):
        raise Conflict(f"ledger {metadata.ledger_id} does not belong to a committed transaction")
    return metadata
