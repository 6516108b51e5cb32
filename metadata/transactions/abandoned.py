"""What transactions leave behind that nobody commits any more, and who deletes it: the offloader, as it tidies up.

A commit deletes what other attempts up to it have left. Where no commit comes any more (a job died between writing and
committing, and is not run again) its ledgers would be pending for ever. They are given up once the youngest of the
transaction's is old enough: first in the record of the sink, so that a commit that comes after all is refused; then
they are deleted.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import replace

from tallybook.core.errors import DamagedFile, MetadataConflict, NewerFormat, StorageError
from tallybook.runtime.logging import logger

from .at_once import each
from .commits import (
    MOST_TRIES,
    dated,
    delete_attempt,
    delete_emptied,
    discard_pending,
    forget,
    pending_of,
    read_if_there,
    settle,
    write_sink,
)
from .model import LedgerMetadata
from .sink_record import ATTEMPTS, ATTEMPTS_ONCE, MAX_GIVEN_UP, NOTHING, SINKS, attempt_name, attempt_of, is_once
from .store import MetadataStore, Ok
from .transactions import Transaction, is_pending, names, read_sink, transaction_of
from .update import LedgerUpdater

_log = logger("transactions")


async def delete_left_behind(
    updater: LedgerUpdater,
    ledgers: Iterable[LedgerMetadata],
    *,
    ttl_s: float,
    now_ms: int,
    say_damaged: Callable[[StorageError], None],
) -> int:
    """Delete what is left of transactions that nobody commits; how many ledgers went.

    May be cut off anywhere, and done by several at once.

    Args:
        ledgers: all there are, or some: only these are looked at. They may have changed since they were read.
        ttl_s: seconds since the creation of its youngest ledger after which a transaction is given up.
        now_ms: wall clock, in milliseconds since the epoch.
        say_damaged: told of what is left as it is, for the record of its sink cannot be understood; the rest is tidied.

    Raises:
        MetadataUnavailable, MetadataOutcomeUnknown, MetadataConflict: some may be left, for the next call.
        DamagedFile: a ledger that there is word of cannot be understood.
    """

    async def unless_damaged(work: Awaitable[int | None]) -> int:
        try:
            return await work or 0
        except (DamagedFile, NewerFormat) as error:
            say_damaged(error)
            return 0

    async def tidy(name: str) -> int:
        return await unless_damaged(_tidy_record(store, updater, name))

    store, pending = updater.store, _pending(ledgers)
    deleted = 0
    for transaction, found in pending.items():
        if now_ms - max(metadata.created_at_ms for metadata in found) >= ttl_s * 1000:
            ledger_ids = sorted(metadata.ledger_id for metadata in found)
            deleted += await unless_damaged(_give_up(store, updater, transaction, ledger_ids))
    await _delete_old_word(store, {metadata.ledger_id for found in pending.values() for metadata in found})
    await each(tidy, [name async for name in names(store, SINKS)])
    return deleted


def _pending(ledgers: Iterable[LedgerMetadata]) -> dict[Transaction, list[LedgerMetadata]]:
    found: dict[Transaction, list[LedgerMetadata]] = defaultdict(list)
    for metadata in ledgers:
        transaction = transaction_of(metadata)
        if transaction is not None and is_pending(metadata):
            found[transaction].append(metadata)
    return found


async def _give_up(
    store: MetadataStore, updater: LedgerUpdater, transaction: Transaction, ledger_ids: Sequence[int]
) -> int:
    """Delete those of these ledgers that are not committed; how many that were."""

    async def one(ledger_id: int) -> bool:
        deleted = await discard_pending(updater, transaction, ledger_id)
        # After the ledger: while there is word of it, the record of its sink stays.
        await delete_attempt(store, attempt_name(transaction.sink, transaction.number, ledger_id))
        return deleted

    total = 0
    for at in range(0, len(ledger_ids), MAX_GIVEN_UP):
        chunk = ledger_ids[at : at + MAX_GIVEN_UP]
        await _rule_out(store, updater, transaction, chunk)
        total += sum(await each(one, chunk))
    if total:
        sink = transaction.sink
        _log.info(
            "ledgers deleted: nobody has committed them", sink=sink, transaction=transaction.number, ledger_count=total
        )
    return total


async def _rule_out(
    store: MetadataStore, updater: LedgerUpdater, transaction: Transaction, ledger_ids: Sequence[int]
) -> None:
    """See to it that no commit can bring these ledgers into view; if one has, they are pending no more."""
    sink = transaction.sink
    for _ in range(MOST_TRIES):
        stored = await read_sink(store, sink)
        if stored.record.last.number >= transaction.number:
            await settle(updater, await dated(store, sink) if transaction.is_once else stored.record)
            return
        # Looked at after the record: where that was deleted behind a commit, they are settled by now.
        living = await pending_of(store, ledger_ids)
        if not living:
            return
        present = await pending_of(store, stored.record.given_up)
        given_up = tuple(sorted({*present, *living}))
        marked = replace(stored.record, given_up=given_up)
        if isinstance(await write_sink(store, sink, marked, stored), Ok):
            return
    raise MetadataConflict(f"sink {sink}: others write its record all the time")


async def _delete_old_word(store: MetadataStore, pending: set[int]) -> None:
    """Delete word of ledgers that are gone, or committed.

    Args:
        pending: ledgers that were there lately, and are not looked at again.
    """

    async def one(name: str) -> None:
        attempt = attempt_of(name)
        if attempt is None or attempt[1] in pending:
            return
        found = await read_if_there(store, attempt[1])
        if found is None or not is_pending(found.value):
            await delete_attempt(store, name)

    for prefix in (ATTEMPTS, ATTEMPTS_ONCE):
        await each(one, [name async for name in names(store, prefix)])


async def _tidy_record(store: MetadataStore, updater: LedgerUpdater, name: str) -> None:
    """Delete the record of a sink with a single transaction, if that is over; of others, what it says of ledgers that
    are gone."""
    sink = name.removeprefix(SINKS)
    stored = await read_sink(store, sink)
    if is_once(sink):
        if stored.record.last == NOTHING:
            await delete_emptied(store, sink)
        else:
            await forget(store, updater, sink)
    elif stored.record.given_up:
        present = await pending_of(store, stored.record.given_up)
        if present != stored.record.given_up:
            # Whoever writes it meanwhile keeps them, and the next call comes back to it.
            await write_sink(store, sink, replace(stored.record, given_up=present), stored)
