"""Tables of deleted ledgers: ranges of ids, and the identities of the deleted ledgers.

Programs that do not know the second table do not write it: ledgers that they delete have no digest there.
"""

from __future__ import annotations

import sqlite3
from typing import Final

from tallybook.core.ids import NO_IDENTITY

from ..store import Deletion

TABLE: Final = "CREATE TABLE IF NOT EXISTS deleted_identities (ledger_id INTEGER PRIMARY KEY, digest BLOB NOT NULL)"
"""Created in each file that is opened for writing, in every format version."""


def read(connection: sqlite3.Connection, ledger_id: int) -> Deletion | None:
    """The record of the deletion of a ledger, if it was deleted."""
    if not was_deleted(connection, ledger_id):
        return None
    # A file opened read-only may be older than this table.
    tables = connection.execute("SELECT count(*) FROM sqlite_master WHERE name = 'deleted_identities'").fetchone()[0]
    row = (
        tables
        and connection.execute("SELECT digest FROM deleted_identities WHERE ledger_id = ?", (ledger_id,)).fetchone()
    )
    return Deletion(bytes(row[0]) if row else NO_IDENTITY)


def was_deleted(connection: sqlite3.Connection, ledger_id: int) -> bool:
    """Whether a ledger of this id was deleted."""
    query = "SELECT last_id FROM deleted_ledgers WHERE first_id <= ? ORDER BY first_id DESC LIMIT 1"
    row = connection.execute(query, (ledger_id,)).fetchone()
    return row is not None and row[0] >= ledger_id


def remember(connection: sqlite3.Connection, ledger_id: int, deletion: Deletion) -> None:
    """Add an id to the ranges of deleted ids, merged with adjacent ranges, and store the ledger's digest."""
    if deletion.digest:
        connection.execute("REPLACE INTO deleted_identities VALUES (?, ?)", (ledger_id, deletion.digest))
    first, last = ledger_id, ledger_id
    query = "SELECT first_id, last_id FROM deleted_ledgers WHERE first_id < ? ORDER BY first_id DESC LIMIT 1"
    before = connection.execute(query, (ledger_id,)).fetchone()
    if before is not None and before[1] == ledger_id - 1:
        first = before[0]
    behind = connection.execute("SELECT last_id FROM deleted_ledgers WHERE first_id = ?", (ledger_id + 1,)).fetchone()
    if behind is not None:
        last = behind[0]
        connection.execute("DELETE FROM deleted_ledgers WHERE first_id = ?", (ledger_id + 1,))
    connection.execute("REPLACE INTO deleted_ledgers VALUES (?, ?)", (first, last))
