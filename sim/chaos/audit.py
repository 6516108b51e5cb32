"""The audit of a chaos run: closes every ledger, reads it with two clients, and checks every copy."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Final

from tallybook.bench.loads.payloads import Payloads
from tallybook.client.client import Client
from tallybook.client.ports import ClientWorld
from tallybook.client.reader.handle import LedgerReader
from tallybook.core.batch import BatchHeader, verify_batch
from tallybook.core.buffers import Buffer
from tallybook.core.errors import EntryAbsent, InvalidBatch, TallybookError
from tallybook.metadata.ledger.model import Fragment, LedgerMetadata
from tallybook.runtime.clock import Clock

from ..workload.history import NO_ENTRY, History, LedgerEnd, OperationOutcome
from .load import password_of
from .records import BookiePromises

MAX_CONCURRENCY: Final = 4
"""Maximum number of ledgers that are processed at the same time."""

READ_BYTES: Final = 1024 * 1024
AHEAD: Final = 1000
"""A read of a bookie's copies may return entries up to so far beyond the wanted one."""

RETRY_SECONDS: Final = 0.3

Wrong = Callable[[str, int, str], None]
"""Called with each violation: invariant, ledger, detail."""


@dataclass(frozen=True, slots=True)
class AuditClient:
    """A client of the audit."""

    name: str
    client: Client
    world: ClientWorld


async def close_all(auditor: AuditClient, history: History, clock: Clock, seconds: float, wrong: Wrong) -> list[int]:
    """Recover all ledgers that are not closed, within ``seconds``; return the ids of all ledgers.

    No client deletes, so every ledger of which a client got a result must be among them (I1).
    """
    known = [ledger_id async for ledger_id in auditor.client.list_ledgers()]
    reported = {operation.ledger_id for operation in history.operations if operation.outcome is OperationOutcome.OK}
    for ledger_id in sorted(reported - set(known)):
        confirmed = history.highest_confirmed(ledger_id)
        wrong("I1", ledger_id, f"it is listed no more, and was confirmed up to entry {confirmed}")
    deadline = clock.monotonic() + seconds

    async def close(ledger_id: int) -> None:
        while True:
            try:
                metadata = await auditor.client.ledger_metadata(ledger_id)
                recover = history.recover(auditor.name, ledger_id)
                closed = await auditor.client.recover_ledger(ledger_id, password=password_of(metadata))
            except TallybookError as error:
                if clock.monotonic() > deadline:
                    wrong("L1", ledger_id, f"it cannot be closed: {error!r}")
                    return
                await clock.sleep(RETRY_SECONDS)
            else:
                recover.ok(end=LedgerEnd(closed.last_entry_id, closed.length))
                return

    await _for_each(known, close)
    return known


async def read_all(auditor: AuditClient, known: list[int], history: History, payloads: Payloads, wrong: Wrong) -> None:
    """Read every ledger completely."""

    async def read(ledger_id: int) -> None:
        try:
            metadata = await auditor.client.ledger_metadata(ledger_id)
            if not metadata.closed:
                return  # already reported
            reader = await auditor.client.open_ledger(ledger_id, password=password_of(metadata), recover=False)
            reading = history.reading(auditor.name, ledger_id)
            reading.lac(reader.last_add_confirmed)
            if metadata.last_entry_id >= 0:
                async for entry in reader.read(0, metadata.last_entry_id):
                    reading.saw(entry.entry_id, payloads.same(ledger_id, entry.payload))
            reading.done(LedgerEnd(metadata.last_entry_id, metadata.length))
        except TallybookError as error:
            wrong("I1", ledger_id, f"{auditor.name} cannot read it: {error!r}")

    await _for_each(known, read)


async def count_copies(auditor: AuditClient, known: list[int], wrong: Wrong) -> int:
    """Check every copy of every closed ledger (I10); return the number of ensemble changes in their metadata."""
    changes = 0

    async def count(ledger_id: int) -> None:
        nonlocal changes
        metadata = await auditor.client.ledger_metadata(ledger_id)
        if metadata.closed:
            changes += len(metadata.fragments) - 1
            reader = await auditor.client.open_ledger(ledger_id, password=password_of(metadata), recover=False)
            try:
                await _Copies(metadata, reader, auditor.world, wrong).look()
            except TallybookError as error:
                wrong("I15", ledger_id, f"its copies cannot be compared: {error!r}")

    await _for_each(known, count)
    return changes


async def keep_promises(auditor: AuditClient, promises: BookiePromises, wrong: Wrong) -> None:
    """Every bookie holds what it acked (I12) and knows what it fenced (I13), also after an ensemble change."""

    async def held(ledger_id: int, bookie_id: str) -> None:
        connection = await auditor.world.connections.get(bookie_id)
        held_to = NO_ENTRY
        for first, last in sorted(promises.acked.get((ledger_id, bookie_id), {}).items()):
            while held_to < last:
                wanted = max(first, held_to + 1)
                answer = await connection.read_batches(ledger_id, wanted, max(last, wanted + AHEAD), READ_BYTES)
                held_to = max(verify_batch(batch).last_entry_id for batch in answer.batches)
        if (ledger_id, bookie_id) in promises.fenced and not (await connection.read_lac(ledger_id)).fenced:
            wrong("I13", ledger_id, f"{bookie_id} has forgotten that it fenced it")

    async def check(ledger_id: int) -> None:
        for promised, bookie_id in sorted({*promises.acked, *promises.fenced}):
            if promised == ledger_id:
                try:
                    await held(ledger_id, bookie_id)
                except TallybookError as error:
                    wrong("I12", ledger_id, f"{bookie_id} lacks what it acked: {error!r}")

    await _for_each(sorted({ledger_id for ledger_id, _ in {*promises.acked, *promises.fenced}}), check)


async def check_lacs(
    auditor: AuditClient, known: list[int], history: History, promises: BookiePromises, wrong: Wrong
) -> None:
    """Check that entries that readers saw as confirmed have an ack quorum, and are below the end of the ledger (I6)."""
    seen: dict[int, list[tuple[int, str]]] = {}
    for reading in history.readings:
        seen.setdefault(reading.ledger_id, []).extend((lac, reading.actor) for lac in reading.lacs)
    for ledger_id in filter(seen.get, known):
        metadata = await auditor.client.ledger_metadata(ledger_id)
        highest = promises.highest_acked(ledger_id, metadata.quorum.ack_quorum)
        lac, actor = max(seen[ledger_id])
        if lac > highest:
            wrong("I6", ledger_id, f"{actor} saw {lac} confirmed, an ack quorum has acked up to {highest}")
        if metadata.closed and lac > metadata.last_entry_id:
            wrong("I6", ledger_id, f"{actor} saw {lac} confirmed, and it was closed at {metadata.last_entry_id}")


class _Copies:
    """Checks the copies of one ledger at the bookies that its metadata name."""

    def __init__(self, metadata: LedgerMetadata, reader: LedgerReader, world: ClientWorld, wrong: Wrong) -> None:
        self._metadata = metadata
        self._reader = reader
        self._world = world
        self._wrong = wrong
        self._copies: dict[int, int] = {}
        """Number of good copies of each entry."""
        self._crcs: dict[int, int] = {}
        """CRC of each batch, by its first entry."""
        self._ends: dict[int, int] = {}
        """Last entry of the batch of each entry that a bookie lacks."""

    async def look(self) -> None:
        """Compare the copies with each other, and their number with the ack quorum."""
        metadata = self._metadata
        for fragment in metadata.fragments:
            for bookie_id in fragment.bookies:
                await self._check_fragment(fragment, bookie_id)
        needed = metadata.quorum.ack_quorum
        poor = [entry for entry in range(metadata.last_entry_id + 1) if self._copies.get(entry, 0) < needed]
        if poor:
            detail = f"{len(poor)} entries from {poor[0]} have fewer than {needed} copies, {metadata.fragments}"
            self._wrong("I10", metadata.ledger_id, detail)

    async def _check_fragment(self, fragment: Fragment, bookie_id: str) -> None:
        metadata = self._metadata
        entry_id = fragment.first_entry_id
        last = min(metadata.fragment_end(fragment), metadata.last_entry_id)
        while entry_id <= last:
            stripe_end = min(metadata.quorum.stripe_end(entry_id), last)
            if bookie_id not in metadata.bookies_of(entry_id):
                entry_id = stripe_end + 1
                continue
            entry_id = await self._copies_at(bookie_id, entry_id, stripe_end)

    async def _copies_at(self, bookie_id: str, first: int, last: int) -> int:
        """Check the copies of a bookie from ``first`` on; return the next entry to check."""
        ledger_id = self._metadata.ledger_id
        try:
            connection = await self._world.connections.get(bookie_id)
            answer = await connection.read_batches(ledger_id, first, last, READ_BYTES)
        except EntryAbsent:
            if first not in self._ends:
                header, _ = await self._reader.read_batch(first)
                self._ends.update(dict.fromkeys(range(first, header.last_entry_id + 1), header.last_entry_id))
            return self._ends[first] + 1
        except TallybookError as error:
            self._wrong("I12", ledger_id, f"{bookie_id} cannot show entry {first}: {error!r}")
            return last + 1
        for batch in answer.batches:
            first = self._good(bookie_id, first, batch).last_entry_id + 1
        return first

    def _good(self, bookie_id: str, first: int, batch: Buffer) -> BatchHeader:
        ledger_id = self._metadata.ledger_id
        header = verify_batch(batch)
        if header.ledger_id != ledger_id or not header.first_entry_id <= first <= header.last_entry_id:
            raise InvalidBatch(f"{bookie_id} shows {header} as entry {first} of ledger {ledger_id}")
        crc = self._crcs.setdefault(header.first_entry_id, header.crc)
        if crc != header.crc:
            self._wrong("I15", ledger_id, f"{bookie_id} holds another batch from {header.first_entry_id} than others")
        for entry_id in range(first, header.last_entry_id + 1):
            self._copies[entry_id] = self._copies.get(entry_id, 0) + 1
        return header


async def _for_each(known: list[int], work: Callable[[int], Coroutine[Any, Any, None]]) -> None:
    turns = asyncio.Semaphore(MAX_CONCURRENCY)

    async def one(ledger_id: int) -> None:
        async with turns:
            await work(ledger_id)

    await asyncio.gather(*map(one, known))
