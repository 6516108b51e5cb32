"""What a newer Tallybook has written, looked at by ``entrylog`` and ``journal``: told apart from damage, beside it."""

import asyncio
import json
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import pytest
from typer.testing import CliRunner

from tallybook.bookie.journal import records as journal_records
from tallybook.bookie.journal import superblock
from tallybook.bookie.journal.inspect import every_block, inspect_journal, live_blocks
from tallybook.bookie.journal.journal import Journal
from tallybook.bookie.journal.records import BatchRecord, DeleteRecord, Record
from tallybook.bookie.storage import entry_log_format, entry_log_lengths
from tallybook.bookie.storage.entry_log import EntryLogs
from tallybook.bookie.storage.entry_log_format import log_name
from tallybook.bookie.storage.entry_log_walk import Damage
from tallybook.bookie.storage.inspect_entry_log import (
    FoundLog,
    LaterFormat,
    inspect_entry_log,
    lost_bytes,
    verify_entry_log,
)
from tallybook.bookie.storage.location import Location
from tallybook.cli import entrylog, journal
from tallybook.cli.exits import Exit, exit_code
from tallybook.core import batch as batch_format
from tallybook.core.batch import encode_batch
from tallybook.core.config import JournalSettings, StorageSettings
from tallybook.core.errors import TallybookError
from tallybook.core.limits import BLOCK_BYTES, KIB
from tallybook.runtime.clock import RealClock
from tallybook.runtime.deterministic import SimClock, SimDisk, World, run_once
from tallybook.runtime.rng import SeededRng
from tallybook.runtime.tasks import Tasks

HOME = "/b/ledgers"
UUID = uuid.UUID(int=3)
NEEDED = "a newer one has written it, and is needed"
SETTINGS = JournalSettings(segment_bytes=16 * KIB, segment_count=3, max_commit_bytes=8 * KIB)


def path(log_id: int) -> str:
    return f"{HOME}/{log_name(log_id)}"


def batch(ledger_id: int, first: int) -> bytes:
    return encode_batch(ledger_id, first, [b"some payload"] * 3, lac=-1, ledger_length=10**4, written_at_us=5)


@pytest.fixture
def newer(monkeypatch) -> Callable[..., AbstractContextManager[None]]:
    """``with newer(module):`` be a Tallybook in which what the module is about is of a later format."""

    @contextmanager
    def begun(module: ModuleType, name: str = "VERSION") -> Iterator[None]:
        with monkeypatch.context() as patched:
            patched.setattr(module, name, getattr(module, name) + 1)
            yield

    return begun


class Logs:
    """Entry logs that are written stretch by stretch."""

    def __init__(self, disk: SimDisk) -> None:
        self.disk = disk
        self._logs: EntryLogs | None = None

    async def open(self) -> None:
        self._logs = await EntryLogs.open(self.disk, [HOME], str(UUID), StorageSettings(), RealClock())

    async def stretch(self, *batches: bytes) -> list[Location]:
        if self._logs is None:
            await self.disk.make_directory(HOME)
            await self.open()
        written = await self._logs.append(batches)
        await self._logs.sync()
        return written

    async def finish(self) -> None:
        await self._logs.close()


# --- entry logs -------------------------------------------------------------------------------------------------------


async def test_a_batch_of_a_later_format_is_no_damage_and_the_others_are_checked(newer):
    disk = SimDisk()
    logs = Logs(disk)
    await logs.stretch(batch(7, 0))
    with newer(batch_format):
        [location] = await logs.stretch(batch(7, 3))
    last = await logs.stretch(batch(7, 6), batch(8, 0))
    await logs.finish()
    report = await verify_entry_log(disk, path(1))
    assert (report.damage, report.torn, report.finished, report.batches) == ([], [], True, 3)
    [found] = report.later
    assert found.offset == location.offset
    assert found.what.startswith(f"{path(1)}, offset {location.offset}: the batch of ledger 7 from entry 3 on: ")
    assert NEEDED in found.what
    disk.rot.flip_bit(path(1), last[1].offset + 70)
    report = await verify_entry_log(disk, path(1))
    assert ([each.offset for each in report.damage], len(report.later)) == ([last[1].offset], 1)
    disk.rot.flip_bit(path(1), location.offset + 70)
    report = await verify_entry_log(disk, path(1))
    assert (len(report.damage), report.later) == (2, []), "with a flipped bit it is no later format"


async def test_damage_before_a_part_of_a_later_format_is_told_as_well(newer):
    disk = SimDisk()
    logs = Logs(disk)
    [first] = await logs.stretch(batch(7, 0))
    [second] = await logs.stretch(batch(7, 3))
    with newer(entry_log_format):
        [third] = await logs.stretch(batch(7, 6))
    disk.rot.flip_bit(path(1), first.offset + 70)
    report = await verify_entry_log(disk, path(1))
    assert [each.offset for each in report.damage] == [first.offset]
    head = third.offset // BLOCK_BYTES * BLOCK_BYTES
    assert [each.offset for each in report.later] == [head]
    assert f"{path(1)}, offset {head}: the TSTR is of format" in report.later[0].what
    cut = second.offset // BLOCK_BYTES * BLOCK_BYTES
    disk.rot.overwrite(path(1), cut, bytes(64))
    *_, damage, later = [each async for each in inspect_entry_log(disk, path(1))]
    assert (type(damage), damage.offset, damage.size) == (Damage, cut, head - cut), "it ends where that begins"
    assert (type(later), later.offset) == (LaterFormat, head)


async def test_a_log_of_a_later_format_is_named_and_measured_and_nothing_else(newer):
    disk = SimDisk()
    logs = Logs(disk)
    with newer(entry_log_format):
        await logs.stretch(batch(7, 0))
        await logs.finish()
    size = len(disk.peek(path(1)))
    assert [type(each) for each in [each async for each in inspect_entry_log(disk, path(1))]] == [FoundLog, LaterFormat]
    report = await verify_entry_log(disk, path(1))
    assert (report.log_id, report.size, report.damage, report.torn, report.batches) == (1, size, [], [], 0)
    known = entry_log_format.VERSION
    [found] = report.later
    assert found.what == f"{path(1)} is of format {known + 1}, this Tallybook knows {known}: {NEEDED}"


async def test_a_note_of_lengths_of_a_later_format_is_no_loss(newer):
    disk = SimDisk()
    logs = Logs(disk)
    with newer(entry_log_lengths, "_VERSION"):
        await logs.stretch(batch(7, 0))
        await logs.finish()
    [found] = await lost_bytes(disk, HOME)
    assert isinstance(found, LaterFormat)
    assert NEEDED in found.what


# --- journals ---------------------------------------------------------------------------------------------------------


def simulate(scenario: Callable[[], Any]) -> None:
    async def world(_world: World) -> None:
        await scenario()

    run_once(1, world)


async def write(disk: SimDisk, *commits: list[Record], directory: str = "/journal") -> None:
    def unexpected(*what: object) -> None:
        raise AssertionError(what)

    recovered = await Journal.recover(disk, directory, SETTINGS, SeededRng(1))
    written = await recovered.start(SimClock(), Tasks("test", unexpected), unexpected)
    for records in commits:
        for record in records:
            written.append(record, lambda: None)
        assert await written.drained(1.0)
    await written.close(clean=False)


def test_a_batch_of_a_later_format_in_a_journal_is_no_problem_of_its_record(newer):
    async def scenario() -> None:
        disk = SimDisk(SeededRng(1))
        with newer(batch_format):
            later = batch(7, 0)
        await write(disk, [BatchRecord(later), BatchRecord(batch(7, 3))])
        view = await inspect_journal(disk, "/journal")
        [block] = [block async for block in live_blocks(disk, view)]
        assert [record.problem for record in block.records] == ["", ""]
        assert [NEEDED in record.later_format for record in block.records] == [True, False]

    simulate(scenario)


def test_a_record_of_a_later_kind_in_an_old_block_is_no_damage_of_the_block(monkeypatch):
    async def scenario() -> None:
        disk = SimDisk(SeededRng(1))
        await write(disk, [DeleteRecord(1)])
        view = await inspect_journal(disk, "/journal")
        monkeypatch.setattr(journal_records, "NEWEST_KIND", journal_records.KIND_DELETE - 1)
        [block] = [block async for block in every_block(disk, view)]
        assert (block.problem, block.records) == ("", ())
        assert NEEDED in block.later_format

    simulate(scenario)


# --- the commands -----------------------------------------------------------------------------------------------------


class Ended(NamedTuple):
    """How a command ended."""

    code: int
    lines: list[Any]
    """What it told."""
    error: str


@pytest.fixture
def command(monkeypatch) -> Callable[..., Ended]:
    """Run a command on the parts of a bookie that is stopped."""

    def run(module: ModuleType, disk: SimDisk, *directories: str, name: str = "verify") -> Ended:
        @asynccontextmanager
        async def stopped(directory: Path, part: str) -> AsyncIterator[tuple[SimDisk, list[str]]]:
            yield disk, list(directories)

        monkeypatch.setattr(module, "stopped", stopped)
        monkeypatch.setattr(module, "run", asyncio.run)
        done = CliRunner().invoke(module.app, [name, "data", "--json"])
        error = done.exception
        code = exit_code(error) if isinstance(error, TallybookError) else done.exit_code
        return Ended(int(code), [json.loads(line) for line in done.stdout.splitlines()], str(error))

    return run


async def two_logs(disk: SimDisk, newer: Callable[..., Any]) -> Location:
    """One that can be read, and one of a later format behind it; where the batch of the former is."""
    logs = Logs(disk)
    [location] = await logs.stretch(batch(7, 0))
    await logs.finish()
    await logs.open()
    with newer(entry_log_format):
        await logs.stretch(batch(7, 3))
        await logs.finish()
    return location


def test_entrylog_verify_tells_of_every_log_and_ends_with_6_unless_something_is_damaged(newer, command):
    disk = SimDisk()
    location = asyncio.run(two_logs(disk, newer))
    code, [told], error = command(entrylog, disk, HOME)
    assert code == Exit.STORAGE
    assert [(log["later_format"], log["batches"], log["damage"]) for log in told["logs"]] == [(0, 1, 0), (1, 0, 0)]
    assert (told["damage"], told["later_format"]) == ([], [error])
    disk.rot.flip_bit(path(location.log_id), location.offset + 70)
    code, [told], _ = command(entrylog, disk, HOME)
    assert code == Exit.FOUND_WRONG
    assert (len(told["damage"]), len(told["later_format"])) == (1, 1)


def test_entrylog_dump_shows_every_log_and_ends_with_6_where_one_is_of_a_later_format(newer, command):
    disk = SimDisk()
    asyncio.run(two_logs(disk, newer))
    code, told, error = command(entrylog, disk, HOME, name="dump")
    assert code == Exit.STORAGE
    assert [line["kind"] for line in told] == ["log", "stretch", "batch", "footer", "log", "later format"]
    assert told[-1]["problem"] == error


def two_journals(disk: SimDisk, newer: Callable[..., Any]) -> None:
    """One whose superblock is of a later format, and one with a batch that is, beside one that is not."""

    async def scenario() -> None:
        with newer(superblock):
            await write(disk, [DeleteRecord(1)], directory="/b/one")
        with newer(batch_format):
            later = batch(7, 0)
        await write(disk, [BatchRecord(later), BatchRecord(batch(7, 3))], [DeleteRecord(2)], directory="/b/two")

    simulate(scenario)


def test_journal_verify_tells_of_every_journal_and_ends_with_6_unless_something_is_damaged(newer, command):
    disk = SimDisk(SeededRng(1))
    two_journals(disk, newer)
    code, [first, second], error = command(journal, disk, "/b/one", "/b/two")
    assert code == Exit.STORAGE
    assert first == {"directory": "/b/one", "damage": [], "later_format": first["later_format"]}
    assert first["later_format"][0].startswith("/b/one/superblock: ")
    assert (second["directory"], second["live_records"], second["damage"]) == ("/b/two", 3, [])
    [found] = second["later_format"]
    assert found.startswith("/b/two/segment-0001 at 4096: batch: ")
    assert error == f"{first['later_format'][0]} (1 more like this)"
    disk.rot.flip_bit("/b/two/segment-0001", BLOCK_BYTES + 200)
    code, [first, second], _ = command(journal, disk, "/b/one", "/b/two")
    assert code == Exit.FOUND_WRONG
    assert (len(first["later_format"]), len(second["damage"])) == (1, 1)


def test_journal_dump_shows_every_journal_and_ends_with_6_where_some_is_of_a_later_format(newer, command):
    disk = SimDisk(SeededRng(1))
    two_journals(disk, newer)
    code, told, error = command(journal, disk, "/b/one", "/b/two", name="dump")
    assert code == Exit.STORAGE
    assert [line["kind"] for line in told] == ["batch", "batch", "delete"]
    assert [NEEDED in line.get("later_format", "") for line in told] == [True, False, False]
    assert error.startswith("/b/one/superblock: ")
