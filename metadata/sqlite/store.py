"""Ledgers, the id counter, cookies and records in the SQLite file.

Each operation is one transaction. The versions of a ledger, or a record, are 1, 2, 3 and so on. Ids of deleted ledgers
are stored as ranges, merged when adjacent, so that refusing them permanently costs almost no space.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Awaitable, Callable
from typing import Final

from tallybook.core.errors import DamagedFile, LedgerExists, MetadataConflict, MetadataOutcomeUnknown, NoSuchLedger
from tallybook.core.ids import NO_IDENTITY, check_ledger_id

from ..codec import decode_ledger, encode_ledger
from ..id_block import IdBlock
from ..ledger.model import LedgerMetadata
from ..rules import (
    check_bookie_id,
    check_cookie,
    check_record_name,
    check_record_prefix,
    check_record_value,
    page_limit,
)
from ..store import (
    BadVersion,
    Deletion,
    LedgerPage,
    LedgerWatch,
    MetadataRecord,
    Ok,
    RecordPage,
    Unknown,
    Versioned,
    WriteResult,
)
from . import deletion_rows, record_rows
from .database import Database
from .poller import Poller

_NUMBER: Final = re.compile("[0-9]{1,19}")


class SqliteStore:
    """Implements ``MetadataStore``. Made by ``client.open_sqlite``."""

    def __init__(self, database: Database, poller: Poller, close_client: Callable[[], Awaitable[None]]) -> None:
        self._database = database
        self._poller = poller
        self._close_client = close_client
        self._ids = IdBlock(self._take_block)

    async def cluster_id(self) -> str:
        """Identity of this cluster, created with the file."""
        return await self._database.read(lambda connection: _fact(connection, "cluster_id", self._database.name))

    async def next_ledger_id(self) -> int:
        """Allocate a unique ledger id from this client's block.

        Raises:
            MetadataUnavailable: no new block can be allocated now.
        """
        return await self._ids.next_id()

    async def _take_block(self, size: int) -> int:
        def job(connection: sqlite3.Connection) -> int:
            first = _counter(connection, self._database.name)
            after = str(first + size)
            connection.execute("UPDATE facts SET value = ? WHERE name = 'next_ledger_id'", (after,))
            return first

        return await self._database.write(job)

    async def id_counter(self) -> int:
        """All allocated ids are below this."""
        return await self._database.read(lambda connection: _counter(connection, self._database.name))

    async def raise_id_counter(self, at_least: int) -> None:
        """Allocate no id below ``at_least`` any more.

        Raises:
            MetadataOutcomeUnknown: it may have been raised; repeat the call.
        """
        check_ledger_id(at_least)

        def job(connection: sqlite3.Connection) -> None:
            if _counter(connection, self._database.name) < at_least:
                connection.execute("UPDATE facts SET value = ? WHERE name = 'next_ledger_id'", (str(at_least),))

        await self._database.write(job)

    async def create_ledger(self, metadata: LedgerMetadata) -> Versioned:
        """Store a new ledger.

        Raises:
            LedgerExists: another client uses, or used, the id.
            MetadataOutcomeUnknown: it may have been created; repeat the call.
        """
        ledger_id, value = metadata.ledger_id, encode_ledger(metadata)

        def job(connection: sqlite3.Connection) -> Versioned:
            if deletion_rows.was_deleted(connection, ledger_id):
                raise LedgerExists(f"ledger {ledger_id} existed and was deleted; ids are never used again")
            existing = self._read(connection, ledger_id)
            if existing is None:
                connection.execute("INSERT INTO ledgers VALUES (?, 1, ?)", (ledger_id, value))
                return Versioned(metadata, 1)
            if existing.value.creator_token != metadata.creator_token:
                raise LedgerExists(f"ledger {ledger_id} exists")
            return existing

        created = await self._database.write(job)
        self._poller.wrote_ledger(ledger_id)
        return created

    async def read_ledger(self, ledger_id: int, *, linearizable: bool = False) -> Versioned:
        """The current value; every read here is linearizable.

        Raises:
            NoSuchLedger: it was never created, or it was deleted.
        """
        check_ledger_id(ledger_id)
        found = await self._database.read(lambda connection: self._read(connection, ledger_id))
        if found is None:
            raise NoSuchLedger(f"there is no ledger {ledger_id}")
        return found

    def _read(self, connection: sqlite3.Connection, ledger_id: int) -> Versioned | None:
        row = connection.execute("SELECT value, version FROM ledgers WHERE ledger_id = ?", (ledger_id,)).fetchone()
        if row is None:
            return None
        return Versioned(decode_ledger(row[0], ledger_id, f"{self._database.name}, ledger {ledger_id}"), row[1])

    async def update_ledger(self, metadata: LedgerMetadata, expected_version: int) -> WriteResult:
        """Replace the value if it still has ``expected_version``."""
        ledger_id, value = metadata.ledger_id, encode_ledger(metadata)

        def job(connection: sqlite3.Connection) -> WriteResult:
            changed = connection.execute(
                "UPDATE ledgers SET value = ?, version = version + 1 WHERE ledger_id = ? AND version = ?",
                (value, ledger_id, expected_version),
            ).rowcount
            return Ok(expected_version + 1) if changed else BadVersion()

        return await self._write_ledger(ledger_id, job)

    async def delete_ledger(self, ledger_id: int, expected_version: int, identity: bytes = NO_IDENTITY) -> WriteResult:
        """Remove the ledger if it still has ``expected_version``."""
        check_ledger_id(ledger_id)

        def job(connection: sqlite3.Connection) -> WriteResult:
            statement = "DELETE FROM ledgers WHERE ledger_id = ? AND version = ?"
            if not connection.execute(statement, (ledger_id, expected_version)).rowcount:
                return BadVersion()
            deletion_rows.remember(connection, ledger_id, Deletion.of(identity))
            return Ok(expected_version + 1)

        return await self._write_ledger(ledger_id, job)

    async def _write_ledger(self, ledger_id: int, job: Callable[[sqlite3.Connection], WriteResult]) -> WriteResult:
        result = await self._write(job)
        if isinstance(result, Ok):
            self._poller.wrote_ledger(ledger_id)
        return result

    async def _write(self, job: Callable[[sqlite3.Connection], WriteResult]) -> WriteResult:
        try:
            return await self._database.write(job)
        except MetadataOutcomeUnknown as error:
            return Unknown(error.message)

    async def deletion(self, ledger_id: int) -> Deletion | None:
        """The record of the deletion of a ledger, if it was deleted."""
        check_ledger_id(ledger_id)
        return await self._database.read(lambda connection: deletion_rows.read(connection, ledger_id))

    async def list_ledgers(self, after: int = -1, limit: int = 1000) -> LedgerPage:
        """Up to ``limit`` ledger ids above ``after``, at most ``rules.MAX_PAGE_LEDGERS``."""
        size = page_limit(limit)

        def job(connection: sqlite3.Connection) -> list[int]:
            query = "SELECT ledger_id FROM ledgers WHERE ledger_id > ? ORDER BY ledger_id LIMIT ?"
            return [row[0] for row in connection.execute(query, (after, size + 1))]

        found = await self._database.read(job)
        return LedgerPage(tuple(found[:size]), complete=len(found) <= size)

    def watch_ledger(self, ledger_id: int) -> LedgerWatch:
        """Start watching one ledger."""
        return self._poller.watch_ledger(check_ledger_id(ledger_id))

    async def read_cookie(self, bookie_id: str) -> bytes | None:
        """The identity recorded for a bookie, or ``None`` if there is none."""
        check_bookie_id(bookie_id)
        return await self._database.read(lambda connection: _cookie(connection, bookie_id))

    async def write_cookie(self, bookie_id: str, cookie: bytes, *, replace: bool = False) -> None:
        """Record the identity of a bookie.

        Raises:
            MetadataConflict: there is another one and ``replace`` is false.
            MetadataOutcomeUnknown: it may have been recorded; repeat the call.
        """
        check_bookie_id(bookie_id)
        check_cookie(cookie)

        def job(connection: sqlite3.Connection) -> None:
            existing = _cookie(connection, bookie_id)
            if existing is not None and existing != cookie and not replace:
                raise MetadataConflict(f"bookie {bookie_id} has another cookie")
            connection.execute("REPLACE INTO cookies VALUES (?, ?)", (bookie_id, cookie))

        await self._database.write(job)

    async def delete_cookie(self, bookie_id: str) -> None:
        """Delete a bookie's identity; no error if there is none.

        Raises:
            MetadataOutcomeUnknown: it may have been deleted; repeat the call.
        """
        check_bookie_id(bookie_id)

        def job(connection: sqlite3.Connection) -> None:
            connection.execute("DELETE FROM cookies WHERE bookie_id = ?", (bookie_id,))

        await self._database.write(job)

    async def read_record(self, name: str, *, linearizable: bool = False) -> MetadataRecord | None:
        """The record under ``name``, or ``None``; every read here is linearizable."""
        check_record_name(name)
        return await self._database.read(lambda connection: record_rows.read(connection, name))

    async def write_record(self, name: str, value: bytes, expected_version: int | None) -> WriteResult:
        """Replace the record if it still has ``expected_version``, or create it if that is ``None``."""
        check_record_name(name)
        check_record_value(name, value)
        return await self._write(lambda connection: record_rows.write(connection, name, value, expected_version))

    async def delete_record(self, name: str, expected_version: int) -> WriteResult:
        """Remove the record if it still has ``expected_version``."""
        check_record_name(name)
        return await self._write(lambda connection: record_rows.delete(connection, name, expected_version))

    async def list_records(self, prefix: str = "", after: str = "", limit: int = 1000) -> RecordPage:
        """Up to ``limit`` names that begin with ``prefix`` and come after ``after``."""
        size = page_limit(limit)
        check_record_prefix(prefix)
        check_record_prefix(after)
        found = await self._database.read(lambda c: record_rows.names(c, prefix, after, size + 1))
        return RecordPage(tuple(found[:size]), complete=len(found) <= size)

    async def close(self) -> None:
        """Close this client, its membership and registrations included."""
        await self._close_client()


def _fact(connection: sqlite3.Connection, name: str, place: str) -> str:
    row = connection.execute("SELECT value FROM facts WHERE name = ?", (name,)).fetchone()
    if row is None:
        raise DamagedFile(f"{place}: the row {name} of table facts is missing")
    return str(row[0])


def _counter(connection: sqlite3.Connection, place: str) -> int:
    value = _fact(connection, "next_ledger_id", place)
    if _NUMBER.fullmatch(value) is None:
        raise DamagedFile(f"{place}: the row next_ledger_id of table facts holds {value[:100]!r} instead of a number")
    return int(value)


def _cookie(connection: sqlite3.Connection, bookie_id: str) -> bytes | None:
    row = connection.execute("SELECT cookie FROM cookies WHERE bookie_id = ?", (bookie_id,)).fetchone()
    return None if row is None else bytes(row[0])
