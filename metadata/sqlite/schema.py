"""The SQLite file: its tables, and opening it so that a reported commit is durable.

``application_id`` marks the file as ours and ``user_version`` is the format of its tables
(docs/reference/formats/metadata.md lists them). Opening a file of an older format upgrades it, and older programs
refuse it from then on. The file is in WAL mode with ``synchronous=FULL``: readers never block, there is one writer at a
time, and every commit waits for its own fsync.
"""

from __future__ import annotations

import sqlite3
from typing import Final

from tallybook.core.errors import (
    DamagedFile,
    DiskFailed,
    InvalidConfig,
    MetadataUnavailable,
    NewerFormat,
    NoSuchCluster,
    TallybookError,
)
from tallybook.runtime.disk.directories import (
    exists,
    file_bytes,
    file_uri,
    make_parent,
    make_private_file,
    may_write,
    refuse_foreign_writers,
    remove_other_access,
)
from tallybook.runtime.logging import logger

from . import deletion_rows

APPLICATION_ID: Final = int.from_bytes(b"TBMD", "big")
FORMAT: Final = 2
SMALLEST_FILE_BYTES: Final = 512
"""Size of SQLite's smallest page."""

_SIDE_FILES: Final = ("-wal", "-shm", "-journal")
"""Suffixes of the files that SQLite creates next to the database."""
_log = logger("metadata.sqlite")

_RECORDS: Final = (
    "CREATE TABLE records (name TEXT PRIMARY KEY, version INTEGER NOT NULL, value BLOB NOT NULL) WITHOUT ROWID"
)
TABLES: Final = (
    "CREATE TABLE facts (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID",
    "CREATE TABLE ledgers (ledger_id INTEGER PRIMARY KEY, version INTEGER NOT NULL, value BLOB NOT NULL)",
    "CREATE TABLE deleted_ledgers (first_id INTEGER PRIMARY KEY, last_id INTEGER NOT NULL)",
    "CREATE TABLE cookies (bookie_id TEXT PRIMARY KEY, cookie BLOB NOT NULL) WITHOUT ROWID",
    """CREATE TABLE bookies (
        bookie_id TEXT PRIMARY KEY, session TEXT NOT NULL, revision INTEGER NOT NULL,
        value BLOB NOT NULL, boot_id TEXT NOT NULL, beat_ms INTEGER NOT NULL) WITHOUT ROWID""",
    _RECORDS,
)
UPGRADES: Final = {1: (_RECORDS,)}
"""Statements that upgrade the tables of a format to the next one."""


def connect(path: str, name: str, new_cluster_id: str | None) -> sqlite3.Connection:
    """Open ``path``. For use on the calling thread only.

    ``name`` stands for it in messages. With ``new_cluster_id``, a missing or empty file becomes the metadata of a new
    cluster with that id.

    Raises:
        NoSuchCluster: the file is missing or empty, and there is no ``new_cluster_id``.
        InvalidConfig: the file belongs to another application, is not writable, or is writable by others.
        NewerFormat: its tables are those of a newer Tallybook.
        DamagedFile: it is not an SQLite file, or a damaged one.
        DiskFailed: it, or its directory, cannot be created.
        sqlite3.OperationalError: any other error, including a lock of another process.
    """
    if new_cluster_id is not None:
        make_parent(path)
        make_private_file(path)
    elif not exists(path):
        raise NoSuchCluster.at(name)
    refuse_foreign_writers(path, _SIDE_FILES)
    if not may_write(path):
        # SQLite would open it read-only, and BEGIN IMMEDIATE would not report that.
        raise InvalidConfig(f"{name} cannot be written by this user")
    _restrict_permissions(path)
    if 0 < file_bytes(path) < SMALLEST_FILE_BYTES:
        # SQLite would take it for an empty file and overwrite it.
        raise _not_a_database(name)
    connection: sqlite3.Connection | None = None
    try:
        # The caller retries locks, until its deadline; transactions are begun and ended explicitly.
        connection = sqlite3.connect(path, timeout=0, isolation_level=None)
        # In one transaction: another process may be creating the tables between two statements.
        connection.execute("BEGIN")
        found = _check_identity(connection, name)
        roll_back(connection)
        if not found and new_cluster_id is None:
            raise NoSuchCluster.at(name)
        mode = connection.execute("PRAGMA journal_mode = WAL").fetchone()[0]
        if mode != "wal":
            raise InvalidConfig(f"{name}: the file system cannot hold a shared SQLite file (journal mode {mode})")
        connection.execute("PRAGMA synchronous = FULL")
        _complete_tables(connection, name, new_cluster_id)
    except sqlite3.Error as error:
        _close(connection)
        if is_busy(error):
            raise
        raise _opening_error(error, name) from error
    except TallybookError:
        _close(connection)
        raise
    return connection


def _restrict_permissions(path: str) -> None:
    """Remove other users' permissions from files of earlier versions; a group's stay: it may be a group of readers."""
    for file in (path, *(f"{path}{end}" for end in _SIDE_FILES)):
        try:
            if remove_other_access(file):
                _log.warning("the metadata were open to every user, and are no longer", path=file)
        except DiskFailed as error:
            _log.warning("the metadata are open to every user", path=file, error=error.message)


def connect_reading(path: str, name: str) -> sqlite3.Connection:
    """Open ``path`` read-only. SQLite then writes nothing, and needs no write permission.

    Without write permission it also needs the files of a writing process (``-wal``, ``-shm``), which exist while one
    has the database open.

    Raises:
        InvalidConfig, NewerFormat, DamagedFile: as ``connect``; or its tables are of an older format.
        NoSuchCluster: the file is missing or empty.
        MetadataUnavailable: it is not readable now.
        sqlite3.OperationalError: it is locked by another process.
    """
    if not exists(path):
        raise NoSuchCluster.at(name)
    refuse_foreign_writers(path, _SIDE_FILES, own=False)
    connection: sqlite3.Connection | None = None
    try:
        connection = sqlite3.connect(f"{file_uri(path)}?mode=ro", uri=True, timeout=0, isolation_level=None)
        connection.execute("PRAGMA query_only = ON")
        found = _check_identity(connection, name)
        if not found:
            raise NoSuchCluster.at(name)
        if found != FORMAT:
            raise InvalidConfig(
                f"{name} has tables of format {found}: the first bookie that starts upgrades them to format {FORMAT}"
            )
    except sqlite3.Error as error:
        _close(connection)
        if is_busy(error):
            raise
        if _code(error) in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY):
            raise MetadataUnavailable(
                f"{name} cannot be read now: this user may not write it, so a process of the cluster must have it open"
            ) from error
        raise _opening_error(error, name) from error
    except TallybookError:
        _close(connection)
        raise
    return connection


def _check_identity(connection: sqlite3.Connection, name: str) -> int:
    """The format of the tables, if the file is ours; 0 for an empty file. Within a transaction."""
    application = connection.execute("PRAGMA application_id").fetchone()[0]
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    objects = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    if application == 0 and version == 0 and objects == 0:
        return 0
    if application != APPLICATION_ID:
        raise InvalidConfig(f"{name} is a SQLite file of another application")
    if version > FORMAT:
        raise NewerFormat.of(f"{name}: the schema", version, FORMAT)
    return int(version)


def _complete_tables(connection: sqlite3.Connection, name: str, new_cluster_id: str | None) -> None:
    """Create the tables, or upgrade those of an older format, atomically."""
    # Taking the write lock also shows, now and not at the first write, that the file is writable.
    connection.execute("BEGIN IMMEDIATE")
    try:
        found = _check_identity(connection, name)
        if found == 0:
            if new_cluster_id is None:
                raise NoSuchCluster.at(name)
            for statement in TABLES:
                connection.execute(statement)
            facts = (("cluster_id", new_cluster_id), ("next_ledger_id", "0"))
            connection.executemany("INSERT INTO facts VALUES (?, ?)", facts)
            connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        for older in range(found or FORMAT, FORMAT):
            for statement in UPGRADES[older]:
                connection.execute(statement)
        if found != FORMAT:
            connection.execute(f"PRAGMA user_version = {FORMAT}")
        connection.execute(deletion_rows.TABLE)
        connection.execute("COMMIT")
    finally:
        roll_back(connection)


def roll_back(connection: sqlite3.Connection) -> None:
    """End an open transaction without effect."""
    if connection.in_transaction:
        connection.execute("ROLLBACK")


def is_busy(error: sqlite3.Error) -> bool:
    """Whether another connection holds the required lock."""
    return _code(error) in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


def as_tallybook_error(error: sqlite3.Error, name: str) -> TallybookError:
    """Map ``error`` to a Tallybook error. The transaction had no effect."""
    if _code(error) in (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT):
        return DamagedFile(f"{name}: {error}")
    return MetadataUnavailable(f"{name}: {error}")


def _opening_error(error: sqlite3.Error, name: str) -> TallybookError:
    code = _code(error)
    if code == sqlite3.SQLITE_NOTADB:
        return _not_a_database(name)
    if code in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM):
        return InvalidConfig(f"{name} cannot be written: {error}")
    if code == sqlite3.SQLITE_CANTOPEN:
        return InvalidConfig(f"{name} cannot be opened as a file for reading and writing")
    return as_tallybook_error(error, name)


def _not_a_database(name: str) -> DamagedFile:
    return DamagedFile(f"{name} is not a SQLite file, or its header is damaged")


def _code(error: sqlite3.Error) -> int:
    """The primary result code: the low byte of the extended code. 0 for errors of the Python module itself."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


def _close(connection: sqlite3.Connection | None) -> None:
    if connection is not None:
        connection.close()
