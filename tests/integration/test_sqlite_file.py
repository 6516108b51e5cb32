"""The file of the SQLite driver: ownership, damage, locks, and a failing disk."""

import asyncio
import contextlib
import functools
import os
import shutil
import sqlite3
import tempfile
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from tallybook.client.client import Client
from tallybook.core.answers import Incarnation
from tallybook.core.errors import (
    DamagedFile,
    DiskFailed,
    InvalidConfig,
    MetadataConflict,
    MetadataOutcomeUnknown,
    MetadataUnavailable,
    NewerFormat,
    NoSuchCluster,
    NoSuchLedger,
    NotEnoughBookies,
)
from tallybook.core.quorum import Quorum
from tallybook.core.settings import ClientSettings
from tallybook.metadata.ledger.model import Fragment, LedgerMetadata, begin_recovery
from tallybook.metadata.ledger_update import LedgerUpdater
from tallybook.metadata.sqlite import schema
from tallybook.metadata.sqlite.client import open_sqlite
from tallybook.metadata.sqlite.timing import Timing
from tallybook.metadata.store import BookieInfo, Ok, Unknown
from tallybook.runtime.clock import RealClock
from tallybook.runtime.rng import SystemRng

from ..support.waiting import until


class ManualBootClock:
    """Time since boot, moved by hand."""

    def __init__(self) -> None:
        self.boot_id = "first boot"
        self.now = 5_000_000

    def now_ms(self) -> int:
        return self.now


async def open_file(path: Path, *, create=True, boot_clock=None, **options):
    return await open_sqlite(
        str(path),
        create=create,
        clock=RealClock(),
        rng=SystemRng(),
        boot_clock=boot_clock or ManualBootClock(),
        **options,
    )


def ledger(ledger_id: int = 7) -> LedgerMetadata:
    return LedgerMetadata(ledger_id, Quorum(1, 1, 1), (Fragment(0, ("b1",)),), "creator", 0)


def bookie(boot: int = 1) -> BookieInfo:
    return BookieInfo("b1", "host:1", Incarnation("uuid", boot))


def execute(path: Path, *statements: str) -> None:
    """A change of the file by another program."""
    connection = sqlite3.connect(path, isolation_level=None)
    for statement in statements:
        connection.execute(statement)
    connection.close()


@pytest.fixture
def path(tmp_path) -> Path:
    return tmp_path / "metadata.db"


# --- ownership --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("content", [b"x", b"ledgers: none\n" * 1000, b"SQLite format 3\0" + bytes(5000)])
async def test_a_file_that_is_no_database_is_named_and_left_alone(path, content):
    path.write_bytes(content)
    with pytest.raises(DamagedFile, match=r"metadata.db is not a SQLite file, or its header is damaged"):
        await open_file(path)
    assert path.read_bytes() == content


async def test_a_database_of_another_application_is_named_and_left_alone(path):
    execute(path, "CREATE TABLE ledgers (id)")
    content = path.read_bytes()
    with pytest.raises(InvalidConfig, match=r"metadata.db is a SQLite file of another application"):
        await open_file(path)
    assert path.read_bytes() == content


async def test_a_database_of_a_newer_version_is_named_as_such(path):
    await (await open_file(path)).close()
    execute(path, "PRAGMA user_version = 3")
    with pytest.raises(NewerFormat, match="the schema is of format 3, this Tallybook knows 2"):
        await open_file(path)


async def test_an_empty_file_becomes_a_store(path):
    path.touch()
    async with await open_file(path) as metadata:
        assert await metadata.store.list_ledgers() == ((), True)


@pytest.mark.parametrize("there", ["no directory", "no file", "an empty file"])
async def test_only_authorized_processes_create_a_cluster(path, there):
    path = path.parent / "missing" / "metadata.db" if there == "no directory" else path
    if there == "an empty file":
        path.touch()
    with pytest.raises(NoSuchCluster, match=f"no cluster at sqlite://{path}"):
        await open_file(path, create=False)
    assert path.exists() == (there == "an empty file")
    assert path.parent.exists() == (there != "no directory")
    await (await open_file(path)).close()
    await (await open_file(path, create=False)).close()


async def test_a_directory_in_place_of_the_file_is_named(path):
    path.mkdir()
    with pytest.raises(InvalidConfig, match=r"metadata.db cannot be opened as a file"):
        await open_file(path)


async def test_a_file_in_place_of_the_directory_is_named(path):
    path.touch()
    with pytest.raises(DiskFailed, match=r"the directory .*metadata.db/below cannot be created"):
        await open_file(path / "below" / "metadata.db")


async def test_a_file_that_cannot_be_written_is_refused_at_once():
    # Root may write anything, so a test that runs as root has to become another user for a moment.
    directory = Path(tempfile.mkdtemp())
    path = directory / "metadata.db"
    try:
        await (await open_file(path)).close()
        os.chmod(path, 0o444)
        os.chmod(directory, 0o555)
        me = os.geteuid()
        if me == 0:
            os.seteuid(65_534)
        try:
            with pytest.raises(InvalidConfig, match=r"metadata.db cannot be (written|opened)"):
                await open_file(path)
        finally:
            os.seteuid(me)
    finally:
        os.chmod(directory, 0o755)
        shutil.rmtree(directory)


async def test_processes_that_make_the_file_at_once_make_one_store(path):
    clients = await asyncio.gather(*(open_file(path) for _ in range(6)))
    try:
        assert len({await client.store.cluster_id() for client in clients}) == 1
    finally:
        for client in clients:
            await client.close()


def test_a_file_that_another_process_creates_during_the_check_is_not_mistaken(path, monkeypatch):
    class Overtaken(sqlite3.Connection):
        def execute(self, statement, *parameters):
            if statement == "PRAGMA user_version" and not overtakers:
                overtakers.append(self)
                with contextlib.suppress(sqlite3.OperationalError):  # or it gets SQLITE_BUSY
                    schema.connect(str(path), "other", "cluster of the other").close()
            return super().execute(statement, *parameters)

    overtakers = []
    monkeypatch.setattr(sqlite3, "connect", functools.partial(sqlite3.connect, factory=Overtaken))
    connection = schema.connect(str(path), "file", "cluster")
    [cluster] = connection.execute("SELECT value FROM facts WHERE name = 'cluster_id'").fetchone()
    connection.close()
    assert overtakers
    assert cluster in ("cluster", "cluster of the other")


async def test_the_file_waits_for_the_disk_at_every_commit(path):
    async with await open_file(path) as metadata:
        [level] = await metadata.store._database.read(lambda c: c.execute("PRAGMA synchronous").fetchone())
        [mode] = await metadata.store._database.read(lambda c: c.execute("PRAGMA journal_mode").fetchone())
        assert (level, mode) == (2, "wal")


# --- damage -----------------------------------------------------------------------------------------------------------


async def test_a_damaged_value_is_named_with_its_ledger_and_the_others_are_read(path):
    async with await open_file(path) as metadata:
        for ledger_id in (6, 7):
            await metadata.store.create_ledger(ledger(ledger_id))
        spoiled = "CAST(substr(value, 1, 20) || x'01' || substr(value, 22) AS BLOB)"
        execute(path, f"UPDATE ledgers SET value = {spoiled} WHERE ledger_id = 7")
        with pytest.raises(DamagedFile, match=r"metadata.db, ledger 7: length or checksum is wrong"):
            await metadata.store.read_ledger(7)
        assert (await metadata.store.read_ledger(6)).value == ledger(6)
        assert await metadata.store.list_ledgers() == ((6, 7), True)


async def test_a_damaged_page_is_never_an_absent_ledger(path):
    async with await open_file(path) as metadata:
        large = replace(ledger(), custom={"filler": bytes(3_000)})
        for ledger_id in range(50):
            await metadata.store.create_ledger(replace(large, ledger_id=ledger_id))
    content = bytearray(path.read_bytes())
    for page in range(8, len(content) // 4096):
        content[page * 4096 : page * 4096 + 64] = b"\xff" * 64
    path.write_bytes(content)
    async with await open_file(path) as metadata:
        with pytest.raises(DamagedFile, match=r"metadata.db"):
            await metadata.store.read_ledger(49)


async def test_a_missing_fact_is_damage(path):
    async with await open_file(path) as metadata:
        execute(path, "DELETE FROM facts")
        for read in (metadata.store.cluster_id, metadata.store.id_counter, metadata.store.next_ledger_id):
            with pytest.raises(DamagedFile, match="of table facts is missing"):
                await read()


async def test_ids_of_deleted_neighbours_take_one_row(path):
    async with await open_file(path) as metadata:
        for ledger_id in (5, 3, 4, 9, 0, 1, 2, 7, 8, 6):
            created = await metadata.store.create_ledger(ledger(ledger_id))
            await metadata.store.delete_ledger(ledger_id, created.version)
    connection = sqlite3.connect(path)
    assert connection.execute("SELECT * FROM deleted_ledgers").fetchall() == [(0, 9)]
    connection.close()


# --- locks and deadlines ----------------------------------------------------------------------------------------------


async def test_a_lock_held_for_too_long_makes_writes_unavailable_and_leaves_reads_alone(path):
    async with await open_file(path, timeout_seconds=0.3) as metadata:
        created = await metadata.store.create_ledger(ledger())
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(MetadataUnavailable, match=r"sqlite:///.*/metadata.db was locked for 0.3 s"):
            await metadata.store.update_ledger(begin_recovery(created.value), created.version)
        assert await metadata.store.read_ledger(7) == created
        other.execute("COMMIT")
        other.close()
        assert await metadata.store.update_ledger(begin_recovery(created.value), created.version) == Ok(2)


async def test_a_locked_file_cannot_be_opened_and_says_so(path):
    await (await open_file(path)).close()
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(MetadataUnavailable, match=r"sqlite:///.*/metadata.db was locked"):
        await open_file(path, timeout_seconds=0.2)
    other.close()


class Trouble:
    """A connection that runs a hook at a statement, once."""

    def __init__(self, connection: sqlite3.Connection, statement: str, happen) -> None:
        self._connection = connection
        self._statement = statement
        self._happen = happen

    def __getattr__(self, name):
        return getattr(self._connection, name)

    def execute(self, statement, *parameters):
        if statement == self._statement and self._happen is not None:
            happen, self._happen = self._happen, None
            return happen(self._connection, statement)
        return self._connection.execute(statement, *parameters)


def spoil(metadata, statement: str, happen) -> None:
    database = metadata.store._database
    database._connection = Trouble(database._connection, statement, happen)


def fail_after(connection, statement):
    connection.execute(statement)
    raise sqlite3.OperationalError("disk I/O error")


def fail_instead(_connection, _statement):
    raise sqlite3.OperationalError("disk I/O error")


@pytest.mark.parametrize(("happen", "applied"), [(fail_after, True), (fail_instead, False)])
async def test_a_failed_commit_is_an_unknown_outcome(path, happen, applied):
    async with await open_file(path) as metadata:
        created = await metadata.store.create_ledger(ledger())
        spoil(metadata, "COMMIT", happen)
        result = await metadata.store.update_ledger(begin_recovery(created.value), created.version)
        assert result == Unknown(f"sqlite://{path}: a commit failed: disk I/O error")
        assert ((await metadata.store.read_ledger(7)).version == 2) is applied
        spoil(metadata, "COMMIT", happen)
        with pytest.raises(MetadataOutcomeUnknown):
            await metadata.store.create_ledger(ledger(8))
        assert (await metadata.store.create_ledger(ledger(8))).version == 1


async def test_a_failed_commit_stays_unknown_when_even_taking_it_back_fails(path):
    async with await open_file(path) as metadata:
        created = await metadata.store.create_ledger(ledger())
        spoil(metadata, "COMMIT", fail_instead)
        spoil(metadata, "ROLLBACK", fail_after)
        result = await metadata.store.update_ledger(begin_recovery(created.value), created.version)
        assert result == Unknown(f"sqlite://{path}: a commit failed: disk I/O error, and then disk I/O error")


@pytest.mark.parametrize("happen", [fail_after, fail_instead])
async def test_the_update_loop_settles_a_failed_commit(path, happen):
    async with await open_file(path) as metadata:
        await metadata.store.create_ledger(ledger())
        spoil(metadata, "COMMIT", happen)
        updater = LedgerUpdater(metadata.store, RealClock(), SystemRng())
        assert (await updater.update(7, begin_recovery)).version == 2


async def test_an_error_before_the_commit_means_that_nothing_was_done(path):
    async with await open_file(path) as metadata:
        created = await metadata.store.create_ledger(ledger())
        spoil(metadata, "BEGIN IMMEDIATE", fail_instead)
        with pytest.raises(MetadataUnavailable, match="disk I/O error"):
            await metadata.store.update_ledger(begin_recovery(created.value), created.version)
        assert await metadata.store.read_ledger(7) == created


async def test_a_hanging_disk_ends_in_the_deadline_and_delays_no_other_store(path):
    answered = threading.Event()

    def hang(connection, statement):
        answered.wait(30)
        return connection.execute(statement)

    async with await open_file(path, timeout_seconds=0.3) as metadata:
        created = await metadata.store.create_ledger(ledger())
        spoil(metadata, "COMMIT", hang)
        write = asyncio.ensure_future(metadata.store.update_ledger(begin_recovery(created.value), created.version))
        turns = 0
        while not write.done():
            await asyncio.sleep(0.001)
            turns += 1
        assert isinstance(write.result(), Unknown)
        assert turns > 20
        with pytest.raises(MetadataUnavailable, match=r"did not answer within 0.3 s"):
            await metadata.store.read_ledger(7)
        answered.set()

        async def landed() -> bool:
            return (await metadata.store.read_ledger(7)).version == 2

        await until(landed)


async def test_after_a_refused_job_the_next_one_finds_no_open_transaction(path):
    async with await open_file(path) as metadata:
        await metadata.store.write_cookie("b1", b"one")
        with pytest.raises(MetadataConflict):
            await metadata.store.write_cookie("b1", b"two")
        with pytest.raises(NoSuchLedger):
            await metadata.store.read_ledger(7)
        assert await metadata.store.next_ledger_id() == 0


# --- heartbeats -------------------------------------------------------------------------------------------------------

SLOW_BEAT = Timing(heartbeat_seconds=3600, expiry_seconds=7200, poll_seconds=0.005)


async def returns(work):
    return await asyncio.wait_for(work, 10)


async def test_a_bookie_expires_by_the_boot_clock_alone_and_its_watchers_wake(path):
    clock = ManualBootClock()
    async with (
        await open_file(path, boot_clock=clock, timing=SLOW_BEAT) as one,
        await open_file(path, boot_clock=clock, timing=SLOW_BEAT) as other,
    ):
        await one.membership.register(bookie())
        watch = other.membership.watch()
        await returns(watch.changed())
        clock.now += 7_200_000
        assert list(await other.membership.bookies()) == ["b1"]
        with pytest.raises(MetadataConflict):
            await other.membership.register(bookie())
        clock.now += 1
        assert await other.membership.bookies() == {}
        await returns(watch.changed())
        await other.membership.register(bookie())


async def test_heartbeats_keep_a_bookie_alive_as_the_boot_clock_goes_on(path):
    clock, timing = ManualBootClock(), Timing(heartbeat_seconds=0.01, expiry_seconds=10, poll_seconds=0.005)
    async with await open_file(path, boot_clock=clock, timing=timing) as metadata:
        registration = await metadata.membership.register(bookie())
        for _ in range(10):
            clock.now += 9_000
            beaten = clock.now

            async def has_beaten(since=beaten) -> bool:
                query = "SELECT beat_ms FROM bookies"
                return await metadata.store._database.read(lambda c: c.execute(query).fetchone()[0]) >= since

            await until(has_beaten)
        assert list(await metadata.membership.bookies()) == ["b1"]
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(registration.lost(), 0.05)


@pytest.mark.parametrize("now", [1_000, 5_000_000, 90_000_000])
async def test_no_bookie_registered_before_a_reboot_is_alive_after_it(path, now):
    clock = ManualBootClock()
    one = await open_file(path, boot_clock=clock, timing=SLOW_BEAT)
    await one.membership.register(bookie())
    rebooted = ManualBootClock()
    rebooted.boot_id, rebooted.now = "second boot", now
    async with await open_file(path, boot_clock=rebooted, timing=SLOW_BEAT) as other:
        assert await other.membership.bookies() == {}
        await other.membership.register(BookieInfo("b1", "host:2", Incarnation("another uuid", 1)))
    await one.close()


async def test_the_rows_of_the_dead_are_swept_out(path):
    clock = ManualBootClock()
    async with await open_file(path, boot_clock=clock, timing=SLOW_BEAT) as metadata:
        for n in range(5):
            await metadata.membership.register(BookieInfo(f"b{n}", "host:1", Incarnation("uuid", 1)))
        clock.now += 7_200_001
        await metadata.membership.register(BookieInfo("b9", "host:1", Incarnation("uuid", 1)))
        rows = await metadata.store._database.read(lambda c: c.execute("SELECT bookie_id FROM bookies").fetchall())
        assert rows == [("b9",)]


async def test_a_bookie_that_cannot_beat_in_time_is_lost_even_without_a_notification(path):
    clock, timing = ManualBootClock(), Timing(heartbeat_seconds=0.01, expiry_seconds=10, poll_seconds=0.005)
    async with await open_file(path, boot_clock=clock, timing=timing, timeout_seconds=0.5) as metadata:
        registration = await metadata.membership.register(bookie())
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(registration.lost(), 0.7)
        clock.now += 10_001
        await returns(registration.lost())
        other.close()


def test_times_that_let_a_bookie_expire_between_two_beats_are_refused():
    with pytest.raises(InvalidConfig):
        Timing(heartbeat_seconds=6, expiry_seconds=10)
    with pytest.raises(InvalidConfig):
        Timing(poll_seconds=0)


# --- watches and background work --------------------------------------------------------------------------------------


async def test_a_failed_poll_is_repeated_and_nothing_is_missed(path, monkeypatch):
    monkeypatch.setattr("tallybook.metadata.sqlite.poller.PAUSE_AFTER_ERROR_SECONDS", 0.05)
    async with await open_file(path) as one, await open_file(path) as other:
        created = await other.store.create_ledger(ledger())
        watch = one.store.watch_ledger(7)
        await returns(watch.changed())
        spoil(one, "PRAGMA data_version", fail_instead)
        await other.store.update_ledger(begin_recovery(created.value), created.version)
        await returns(watch.changed())
        assert (await one.store.read_ledger(7)).version == 2


@pytest.mark.parametrize("task", ["poll", "heartbeat"])
async def test_the_death_of_a_background_task_ends_watches_and_registrations(path, monkeypatch, task):
    timing = Timing(heartbeat_seconds=0.01, expiry_seconds=10, poll_seconds=0.005)
    async with await open_file(path, timing=timing) as metadata:
        watch = metadata.membership.watch()
        registration = await metadata.membership.register(bookie())
        await returns(watch.changed())

        async def die(*_):
            raise RuntimeError("a defect")

        monkeypatch.setattr(
            *((metadata.store._poller, "_poll_once") if task == "poll" else (registration, "beat")), die
        )
        await returns(registration.lost())

        async def follow() -> None:
            while True:
                await watch.changed()

        with pytest.raises(MetadataUnavailable):
            await returns(follow())


async def test_a_ledger_that_cannot_be_created_because_the_file_is_locked_says_so(path):
    """The lock of another process also stops the heartbeats, so that after a while no bookie counts as alive."""
    async with await open_file(path):
        pass
    lock = sqlite3.connect(path, isolation_level=None)
    async with Client(f"sqlite:///{path}", ClientSettings(metadata_timeout_ms=300)) as client:
        with pytest.raises(NotEnoughBookies):
            await client.create_ledger()
        lock.execute("BEGIN IMMEDIATE")
        with pytest.raises(MetadataUnavailable, match=r"metadata.db was locked for 0.3 s"):
            await client.create_ledger()
    lock.close()
