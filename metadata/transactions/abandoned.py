"""Deletes ledgers of abandoned transactions; the offloader runs it.

A commit deletes what other attempts up to it have left. If no commit follows (a job died between writing and
committing, and is not run again), its ledgers would stay pending. The transaction is abandoned once its youngest ledger
is old enough: first in the record of the sink, so that a late commit is refused; then its ledgers are deleted.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import replace

from tallybook.core.errors import DamagedFile, MetadataConflict, NewerFormat, StorageError
from tallybook.runtime.logging import logger

from ..bounded_calls import map_bounded
from ..ledger.model import LedgerMetadata
from ..ledger_update import LedgerUpdater
from ..records.listing import record_names
from ..store import MetadataStore, Ok
from .commit_protocol import (
    delete_attempt,
    delete_emptied,
    discard_pending,
    forget,
    pending_of,
    read_dated,
    read_if_there,
    settle,
    write_sink,
)
from .model import Transaction, is_pending, read_sink, transaction_of
from .sink_record import ATTEMPTS, ATTEMPTS_ONCE, MAX_GIVEN_UP, NOTHING, SINKS, attempt_name, attempt_of, is_once

_log = logger("transactions")


async def delete_abandoned(
    updater: LedgerUpdater,
    ledgers: Iterable[LedgerMetadata],
    *,
    ttl_s: float,
    now_ms: int,
    on_damaged: Callable[[StorageError], None],
) -> int:
    """Delete the ledgers of abandoned transactions; returns how many were deleted.

    May be interrupted anywhere, and run concurrently.

    Args:
        ledgers: the ledgers to consider. They may have changed since they were read.
        ttl_s: seconds since the creation of its youngest ledger after which a transaction is abandoned.
        now_ms: wall clock, in milliseconds since the epoch.
        on_damaged: called for a sink whose record is unreadable; its ledgers stay, the rest is cleaned up.

    Raises:
        MetadataUnavailable, MetadataOutcomeUnknown, MetadataConflict: some may be left, for the next call.
        DamagedFile: the metadata of a ledger named by an attempt record is unreadable.
    """

    async def unless_damaged(work: Awaitable[int | None]) -> int:
        try:
            return await work or 0
        except (DamagedFile, NewerFormat) as error:
            on_damaged(error)
            return 0

    async def tidy(name: str) -> int:
        return await unless_damaged(_tidy_record(updater, name))

    store, pending = updater.store, _pending(ledgers)
    deleted = 0
    for transaction, found in pending.items():
        if now_ms - max(metadata.created_at_ms for metadata in found) >= ttl_s * 1000:
            ledger_ids = sorted(metadata.ledger_id for metadata in found)
            deleted += await unless_damaged(_give_up(updater, transaction, ledger_ids))
    await _delete_attempts(store, {metadata.ledger_id for found in pending.values() for metadata in found})
    await map_bounded(tidy, [name async for name in record_names(store, SINKS)])
    return deleted


def _pending(ledgers: Iterable[LedgerMetadata]) -> dict[Transaction, list[LedgerMetadata]]:
    found: dict[Transaction, list[LedgerMetadata]] = defaultdict(list)
    for metadata in ledgers:
        transaction = transaction_of(metadata)
        if transaction is not None and is_pending(metadata):
            found[transaction].append(metadata)
    return found


async def _give_up(updater: LedgerUpdater, transaction: Transaction, ledger_ids: Sequence[int]) -> int:
    """Delete those of these ledgers that are not committed; returns how many were deleted."""

    async def one(ledger_id: int) -> bool:
        deleted = await discard_pending(updater, transaction, ledger_id)
        # After the ledger: the sink's record stays while an attempt record exists.
        await delete_attempt(updater.store, attempt_name(transaction.sink, transaction.number, ledger_id))
        return deleted

    total = 0
    for at in range(0, len(ledger_ids), MAX_GIVEN_UP):
        chunk = ledger_ids[at : at + MAX_GIVEN_UP]
        await _rule_out(updater, transaction, chunk)
        total += sum(await map_bounded(one, chunk))
    if total:
        sink = transaction.sink
        _log.info(
            "ledgers of an abandoned transaction deleted", sink=sink, transaction=transaction.number, ledger_count=total
        )
    return total


async def _rule_out(updater: LedgerUpdater, transaction: Transaction, ledger_ids: Sequence[int]) -> None:
    """Make sure that no commit can publish these ledgers; if one has, they are settled."""
    store, sink = updater.store, transaction.sink
    async for _ in updater.tries():
        stored = await read_sink(store, sink)
        if stored.record.last.number >= transaction.number:
            await settle(updater, await read_dated(updater, sink) if transaction.is_once else stored.record)
            return
        # Read after the record: if a commit deleted it, the ledgers are settled by now.
        living = await pending_of(store, ledger_ids)
        if not living:
            return
        present = await pending_of(store, stored.record.given_up)
        given_up = tuple(sorted({*present, *living}))
        marked = replace(stored.record, given_up=given_up)
        if isinstance(await write_sink(store, sink, marked, stored), Ok):
            return
    raise MetadataConflict(f"sink {sink}: other processes keep changing its record: try again")


async def _delete_attempts(store: MetadataStore, pending: set[int]) -> None:
    """Delete attempt records of ledgers that are deleted or committed.

    Args:
        pending: ledgers read recently as pending; not read again.
    """

    async def one(name: str) -> None:
        attempt = attempt_of(name)
        if attempt is None or attempt[1] in pending:
            return
        found = await read_if_there(store, attempt[1])
        if found is None or not is_pending(found.value):
            await delete_attempt(store, name)

    for prefix in (ATTEMPTS, ATTEMPTS_ONCE):
        await map_bounded(one, [name async for name in record_names(store, prefix)])


async def _tidy_record(updater: LedgerUpdater, name: str) -> None:
    """Delete the record of a one-transaction sink if that has ended; for other sinks, remove deleted ledgers from
    ``given_up``."""
    store, sink = updater.store, name.removeprefix(SINKS)
    stored = await read_sink(store, sink)
    if is_once(sink):
        if stored.record.last == NOTHING:
            await delete_emptied(store, sink)
        else:
            await forget(updater, sink)
    elif stored.record.given_up:
        present = await pending_of(store, stored.record.given_up)
        if present != stored.record.given_up:
            # A concurrent writer of the record keeps them; the next call tries again.
            await write_sink(store, sink, replace(stored.record, given_up=present), stored)
