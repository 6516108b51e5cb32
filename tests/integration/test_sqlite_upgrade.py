"""A SQLite file of an older format: upgraded with all its content when opened, and then refused by older versions."""

import sqlite3

import pytest

from tallybook.core.errors import LedgerExists, MetadataUnavailable, NewerFormat
from tallybook.core.quorum import Quorum
from tallybook.metadata.ledger.model import Fragment, LedgerMetadata, close
from tallybook.metadata.sqlite import schema
from tallybook.metadata.sqlite.client import open_sqlite
from tallybook.metadata.store import MetadataRecord, Ok, RecordPage
from tallybook.runtime.boot_clock import RealBootClock
from tallybook.runtime.clock import RealClock
from tallybook.runtime.rng import SystemRng

# What a program that knew format 1 left behind: ledgers 6, 7 (closed) and 8 (deleted), a block of ids, a cookie.
FORMAT_1 = """
PRAGMA journal_mode = WAL;
BEGIN TRANSACTION;
CREATE TABLE bookies (
        bookie_id TEXT PRIMARY KEY, session TEXT NOT NULL, revision INTEGER NOT NULL,
        value BLOB NOT NULL, boot_id TEXT NOT NULL, beat_ms INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE cookies (bookie_id TEXT PRIMARY KEY, cookie BLOB NOT NULL) WITHOUT ROWID;
INSERT INTO "cookies" VALUES('b1',X'636F6F6B6965');
CREATE TABLE deleted_ledgers (first_id INTEGER PRIMARY KEY, last_id INTEGER NOT NULL);
INSERT INTO "deleted_ledgers" VALUES(8,8);
CREATE TABLE facts (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
INSERT INTO "facts" VALUES('cluster_id','00f51eaa-f1d9-4d06-a2d0-949174e351bb');
INSERT INTO "facts" VALUES('next_ledger_id','64');
CREATE TABLE ledgers (ledger_id INTEGER PRIMARY KEY, version INTEGER NOT NULL, value BLOB NOT NULL);
INSERT INTO "ledgers" VALUES(6,1,
    X'544C454401000000220000007436C0B2080612090801100118012080081A0412026231220763726561746F72300138014801');
INSERT INTO "ledgers" VALUES(7,2,
    X'544C454401000000240000006CFBEB9C080712090801100118012080081A0412026231220763726561746F723003381240644801');
PRAGMA application_id = 1413631300;
PRAGMA user_version = 1;
COMMIT;
"""
LEDGER = LedgerMetadata(6, Quorum(1, 1, 1), (Fragment(0, ("b1",)),), "creator", 0)


@pytest.fixture
def path(tmp_path):
    file = tmp_path / "metadata.db"
    connection = sqlite3.connect(file, isolation_level=None)
    connection.executescript(FORMAT_1)
    connection.close()
    return file


async def open_file(path):
    return await open_sqlite(str(path), create=True, clock=RealClock(), rng=SystemRng(), boot_clock=RealBootClock())


def tables(path) -> tuple[int, set[str]]:
    """The format of the file, and how its tables were made."""
    connection = sqlite3.connect(path)
    [version] = connection.execute("PRAGMA user_version").fetchone()
    made = {row[0] for row in connection.execute("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL")}
    connection.close()
    return version, made


async def test_a_file_of_format_1_keeps_all_it_holds_and_can_hold_records(path):
    async with await open_file(path) as metadata:
        store = metadata.store
        assert await store.cluster_id() == "00f51eaa-f1d9-4d06-a2d0-949174e351bb"
        assert await store.list_ledgers() == ((6, 7), True)
        assert await store.read_ledger(6) == (LEDGER, 1)
        seventh = LedgerMetadata(7, Quorum(1, 1, 1), (Fragment(0, ("b1",)),), "creator", 0)
        assert await store.read_ledger(7) == (close(seventh, 9, 100), 2)
        with pytest.raises(LedgerExists):
            await store.create_ledger(LedgerMetadata(8, Quorum(1, 1, 1), LEDGER.fragments, "creator", 0))
        assert await store.next_ledger_id() == 64
        assert await store.read_cookie("b1") == b"cookie"
        assert await store.list_records() == RecordPage((), complete=True)
        assert await store.write_record("archive/settings", b"new", None) == Ok(1)
    async with await open_file(path) as metadata:
        assert await metadata.store.read_record("archive/settings") == MetadataRecord(b"new", 1)


async def test_an_upgraded_file_is_like_a_new_one(path, tmp_path):
    new = tmp_path / "new.db"
    for file in (path, new):
        await (await open_file(file)).close()
    assert tables(path) == tables(new)
    assert tables(path)[0] == schema.FORMAT == 2


async def test_a_process_that_has_the_file_open_meanwhile_goes_on(path):
    connection = sqlite3.connect(path, isolation_level=None)
    assert connection.execute("SELECT count(*) FROM ledgers").fetchone() == (2,)
    await (await open_file(path)).close()
    connection.execute("UPDATE ledgers SET version = version + 1 WHERE ledger_id = 6")
    connection.close()
    async with await open_file(path) as metadata:
        assert await metadata.store.read_ledger(6) == (LEDGER, 2)


async def test_a_program_that_knows_format_1_only_refuses_the_file_afterwards(path, monkeypatch):
    await (await open_file(path)).close()
    monkeypatch.setattr(schema, "FORMAT", 1)
    with pytest.raises(NewerFormat, match="the schema is of format 2, this Tallybook knows 1"):
        await open_file(path)


def test_an_upgrade_that_fails_half_way_leaves_the_file_as_it_was(path, monkeypatch):
    before = tables(path)
    monkeypatch.setattr(schema, "UPGRADES", {1: (*schema.UPGRADES[1], "CREATE TABLE facts (again)")})
    with pytest.raises(MetadataUnavailable, match="already exists"):
        schema.connect(str(path), "file", "cluster")
    assert tables(path) == before
