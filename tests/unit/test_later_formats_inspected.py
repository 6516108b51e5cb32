"""Files of a newer version in ``entrylog`` and ``journal``: told apart from damage."""

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

from tallybook.bookie.journal import format as journal_format
from tallybook.bookie.journal import superblock
from tallybook.bookie.journal.format import BatchRecord, DeleteRecord
from tallybook.bookie.journal.inspect import every_block, inspect_journal
from tallybook.bookie.storage.entry_log import format as entry_log_format
from tallybook.bookie.storage.entry_log import lengths as entry_log_lengths
from tallybook.bookie.storage.entry_log.format import log_name
from tallybook.bookie.storage.entry_log.inspect import LaterFormat, inspect_entry_log, lost_bytes, verify_entry_log
from tallybook.bookie.storage.entry_log.logs import EntryLogs
from tallybook.bookie.storage.entry_log.scan import LogDamage
from tallybook.bookie.storage.location import Location
from tallybook.cli.commands import entrylog, journal
from tallybook.cli.exits import Exit, exit_code
from tallybook.core import batch as batch_format
from tallybook.core.batch import encode_batch
from tallybook.core.errors import TallybookError
from tallybook.core.limits import BLOCK_BYTES
from tallybook.core.settings import StorageSettings
from tallybook.runtime.clock import RealClock
from tallybook.sim.deterministic import SimDisk

from .test_journal_inspect import on_a_disk, write

HOME = "/b/ledgers"
UUID = uuid.UUID(int=3)
NEEDED = "a newer Tallybook wrote it, and is needed"


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


async def open_logs(disk: SimDisk) -> EntryLogs:
    await disk.make_directory(HOME)
    return await EntryLogs.open(disk, [HOME], str(UUID), StorageSettings(), RealClock())


async def stretch(logs: EntryLogs, *batches: bytes) -> list[Location]:
    written = await logs.append(batches)
    await logs.sync()
    return written


# --- entry logs -------------------------------------------------------------------------------------------------------


async def test_a_batch_of_a_later_format_is_no_damage_and_the_others_are_checked(newer):
    disk = SimDisk()
    logs = await open_logs(disk)
    await stretch(logs, batch(7, 0))
    with newer(batch_format):
        [location] = await stretch(logs, batch(7, 3))
    last = await stretch(logs, batch(7, 6), batch(8, 0))
    await logs.close()
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


async def test_damage_before_a_part_of_a_later_format_is_reported_as_well(newer):
    disk = SimDisk()
    logs = await open_logs(disk)
    [first] = await stretch(logs, batch(7, 0))
    [second] = await stretch(logs, batch(7, 3))
    with newer(entry_log_format):
        [third] = await stretch(logs, batch(7, 6))
    disk.rot.flip_bit(path(1), first.offset + 70)
    report = await verify_entry_log(disk, path(1))
    assert [each.offset for each in report.damage] == [first.offset]
    head = third.offset // BLOCK_BYTES * BLOCK_BYTES
    assert [each.offset for each in report.later] == [head]
    assert f"{path(1)}, offset {head}: the TSTR is of format" in report.later[0].what
    cut = second.offset // BLOCK_BYTES * BLOCK_BYTES
    disk.rot.overwrite(path(1), cut, bytes(64))
    *_, damage, later = [each async for each in inspect_entry_log(disk, path(1))]
    assert (type(damage), damage.offset, damage.size) == (LogDamage, cut, head - cut), "it ends where that begins"
    assert (type(later), later.offset) == (LaterFormat, head)


async def test_a_note_of_lengths_of_a_later_format_is_no_loss(newer):
    disk = SimDisk()
    logs = await open_logs(disk)
    with newer(entry_log_lengths, "_VERSION"):
        await stretch(logs, batch(7, 0))
        await logs.close()
    [found] = await lost_bytes(disk, HOME)
    assert isinstance(found, LaterFormat)
    assert NEEDED in found.what


# --- journals ---------------------------------------------------------------------------------------------------------


@on_a_disk
async def test_a_record_of_a_later_kind_in_an_old_block_is_no_damage_of_the_block(
    disk: SimDisk, *, monkeypatch
) -> None:
    await write(disk, [DeleteRecord(1)])
    view = await inspect_journal(disk, "/journal")
    monkeypatch.setattr(journal_format, "NEWEST_KIND", journal_format.KIND_DELETE - 1)
    [block] = [block async for block in every_block(disk, view)]
    assert (block.problem, block.records) == ("", ())
    assert NEEDED in block.later_format


# --- the commands -----------------------------------------------------------------------------------------------------


class Ended(NamedTuple):
    """The result of a command."""

    code: int
    lines: list[Any]
    """The output of the command."""
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
    logs = await open_logs(disk)
    [location] = await stretch(logs, batch(7, 0))
    await logs.close()
    logs = await open_logs(disk)
    with newer(entry_log_format):
        await stretch(logs, batch(7, 3))
        await logs.close()
    return location


def test_entrylog_verify_reports_every_log_and_ends_with_6_unless_something_is_damaged(newer, command):
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


def two_journals(newer: Callable[..., Any]) -> SimDisk:
    """A journal whose superblock has a later format, and one with batches of a later and of the present format."""
    disks = []

    @on_a_disk
    async def scenario(disk: SimDisk) -> None:
        with newer(superblock):
            await write(disk, [DeleteRecord(1)], directory="/b/one")
        with newer(batch_format):
            later = batch(7, 0)
        await write(disk, [BatchRecord(later), BatchRecord(batch(7, 3))], [DeleteRecord(2)], directory="/b/two")
        disks.append(disk)

    scenario()
    return disks[0]


def test_journal_verify_reports_every_journal_and_ends_with_6_unless_something_is_damaged(newer, command):
    disk = two_journals(newer)
    code, [found], error = command(journal, disk, "/b/one", "/b/two")
    [first, second] = found["journals"]
    assert code == Exit.STORAGE
    assert first == {"directory": "/b/one", "damage": [], "later_format": first["later_format"]}
    assert first["later_format"][0].startswith("/b/one/superblock: ")
    assert (second["directory"], second["live_records"], second["damage"]) == ("/b/two", 3, [])
    [later] = second["later_format"]
    assert later.startswith("/b/two/segment-0001 at 4096: batch: ")
    assert error == f"{first['later_format'][0]} (1 more like this)"
    disk.rot.flip_bit("/b/two/segment-0001", BLOCK_BYTES + 200)
    code, [found], _ = command(journal, disk, "/b/one", "/b/two")
    [first, second] = found["journals"]
    assert code == Exit.FOUND_WRONG
    assert (len(first["later_format"]), len(second["damage"])) == (1, 1)


def test_journal_dump_shows_every_journal_and_ends_with_6_where_some_is_of_a_later_format(newer, command):
    disk = two_journals(newer)
    code, told, error = command(journal, disk, "/b/one", "/b/two", name="dump")
    assert code == Exit.STORAGE
    assert [line["kind"] for line in told] == ["batch", "batch", "delete"]
    assert [NEEDED in line.get("later_format", "") for line in told] == [True, False, False]
    assert error.startswith("/b/one/superblock: ")
