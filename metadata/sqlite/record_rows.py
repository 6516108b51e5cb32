"""Table of named records.

Names are stored unchanged. SQLite compares text by its UTF-8 bytes, which is the code point order that listings
promise.
"""

from __future__ import annotations

import sqlite3

from ..store import BadVersion, MetadataRecord, Ok, WriteResult


def read(connection: sqlite3.Connection, name: str) -> MetadataRecord | None:
    """The record under ``name``, or ``None``."""
    row = connection.execute("SELECT value, version FROM records WHERE name = ?", (name,)).fetchone()
    return None if row is None else MetadataRecord(bytes(row[0]), row[1])


def write(connection: sqlite3.Connection, name: str, value: bytes, expected_version: int | None) -> WriteResult:
    """Replace the record if it has ``expected_version``, or create it if that is ``None``."""
    if expected_version is None:
        made = connection.execute("INSERT OR IGNORE INTO records VALUES (?, 1, ?)", (name, value)).rowcount
        return Ok(1) if made else BadVersion()
    statement = "UPDATE records SET value = ?, version = version + 1 WHERE name = ? AND version = ?"
    changed = connection.execute(statement, (value, name, expected_version)).rowcount
    return Ok(expected_version + 1) if changed else BadVersion()


def delete(connection: sqlite3.Connection, name: str, expected_version: int) -> WriteResult:
    """Remove the record if it has ``expected_version``."""
    statement = "DELETE FROM records WHERE name = ? AND version = ?"
    return (
        Ok(expected_version + 1) if connection.execute(statement, (name, expected_version)).rowcount else BadVersion()
    )


def names(connection: sqlite3.Connection, prefix: str, after: str, limit: int) -> list[str]:
    """Up to ``limit`` names with ``prefix`` after ``after``, ordered."""
    found: list[str] = []
    query = "SELECT name FROM records WHERE name >= ? AND name > ? ORDER BY name LIMIT ?"
    for (name,) in connection.execute(query, (prefix, after, limit)):
        # Names with one prefix are adjacent, so the first other name ends the listing.
        if not name.startswith(prefix):
            break
        found.append(name)
    return found
