"""The end of a run: every ledger closed, read by two clients, and looked at copy by copy."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Final

from tallybook.bench.payloads import Payloads
from tallybook.client.client import Client
from tallybook.client.ports import ClientWorld
from tallybook.client.reader.handle import LedgerReader
from tallybook.core.batch import BatchHeader, Buffer, verify_batch
from tallybook.core.errors import EntryAbsent, InvalidBatch, TallybookError
from tallybook.metadata.model import Fragment, LedgerMetadata
from tallybook.runtime.clock import Clock

from ..history import NO_ENTRY, End, History, Outcome
from .load import password_of
from .records import Promises

AT_ONCE: Final = 4
"""So many ledgers are worked on at the same time."""

READ_BYTES: Final = 1024 * 1024
AHEAD: Final = 1000
"""So many entries further a bookie may show at once what it holds."""

RETRY_SECONDS: Final = 0.3

Wrong = Callable[[str, int, str], None]
"""Told of a violation: invariant, ledger, detail."""


@dataclass(frozen=True, slots=True)
class Auditor:
    """A client that reads everything."""

    name: str
    client: Client
    world: ClientWorld


async def close_all(auditor: Auditor, history: History, clock: Clock, seconds: float, wrong: Wrong) -> list[int]:
    """Recover whatever is not closed, within ``seconds`` from now; the ids of all ledgers.

    Nobody deletes: every ledger of which a client was told anything has to be among them (I1).
    """
    known = [ledger_id async for ledger_id in auditor.client.list_ledgers()]
    told = {operation.ledger_id for operation in history.operations if operation.outcome is Outcome.OK}
    for ledger_id in sorted(told - set(known)):
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
                recover.ok(end=End(closed.last_entry_id, closed.length))
                return

    await _for_each(known, close)
    return known


async def read_all(auditor: Auditor, known: list[int], history: History, payloads: Payloads, wrong: Wrong) -> None:
    """Read every ledger from its beginning to its end."""

    async def read(ledger_id: int) -> None:
        try:
            metadata = await auditor.client.ledger_metadata(ledger_id)
            if not metadata.closed:
                return  # said already
            reader = await auditor.client.open_ledger(ledger_id, password=password_of(metadata), recover=False)
            reading = history.reading(auditor.name, ledger_id)
            reading.lac(reader.last_add_confirmed)
            if metadata.last_entry_id >= 0:
                async for entry in reader.read(0, metadata.last_entry_id):
                    reading.saw(entry.entry_id, payloads.same(ledger_id, entry.payload))
            reading.done(End(metadata.last_entry_id, metadata.length))
        except TallybookError as error:
            wrong("I1", ledger_id, f"{auditor.name} cannot read it: {error!r}")

    await _for_each(known, read)


async def count_copies(auditor: Auditor, known: list[int], wrong: Wrong) -> int:
    """Look at every copy of every closed ledger (I10); the number of changes of ensembles that its metadata show."""
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


async def keep_promises(auditor: Auditor, promises: Promises, wrong: Wrong) -> None:
    """Every bookie holds what it acked (I12) and knows what it fenced (I13), also where it was replaced."""

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


async def look_at_lacs(auditor: Auditor, known: list[int], history: History, promises: Promises, wrong: Wrong) -> None:
    """What readers saw as confirmed is what an ack quorum acked, and was not cut off (I6)."""
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
    """The copies of one ledger at the bookies that its metadata name."""

    def __init__(self, metadata: LedgerMetadata, reader: LedgerReader, world: ClientWorld, wrong: Wrong) -> None:
        self._metadata = metadata
        self._reader = reader
        self._world = world
        self._wrong = wrong
        self._copies: dict[int, int] = {}
        """How many good copies there are of each entry."""
        self._crcs: dict[int, int] = {}
        """Of each batch, by its first entry."""
        self._ends: dict[int, int] = {}
        """The last entry of the batch that holds an entry, where a bookie lacks it."""

    async def look(self) -> None:
        """Compare them with each other, and their number with the ack quorum."""
        metadata = self._metadata
        for fragment in metadata.fragments:
            for bookie_id in fragment.bookies:
                await self._look_at(fragment, bookie_id)
        needed = metadata.quorum.ack_quorum
        poor = [entry for entry in range(metadata.last_entry_id + 1) if self._copies.get(entry, 0) < needed]
        if poor:
            detail = f"{len(poor)} entries from {poor[0]} have fewer than {needed} copies, {metadata.fragments}"
            self._wrong("I10", metadata.ledger_id, detail)

    async def _look_at(self, fragment: Fragment, bookie_id: str) -> None:
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
        """Look at what a bookie has from ``first`` on; the entry to go on from."""
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
    room = asyncio.Semaphore(AT_ONCE)

    async def one(ledger_id: int) -> None:
        async with room:
            await work(ledger_id)

    await asyncio.gather(*map(one, known))
