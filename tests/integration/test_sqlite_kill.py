"""Several processes write one SQLite file and are killed at random: no reported write is lost."""

import asyncio
import random
import signal
import sqlite3
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tallybook.core.answers import Incarnation
from tallybook.core.errors import NoSuchLedger
from tallybook.core.quorum import Quorum
from tallybook.metadata.ledger.model import Fragment, LedgerMetadata
from tallybook.metadata.sqlite.client import open_sqlite
from tallybook.metadata.sqlite.timing import Timing
from tallybook.metadata.store import BookieInfo
from tallybook.runtime.boot_clock import RealBootClock
from tallybook.runtime.clock import RealClock
from tallybook.runtime.rng import SystemRng

ROUNDS, WORKERS = 5, 3

# Counts ledger 0 up by compare-and-set, creates ledgers, deletes every third of them, and records its cookie again and
# again, for ever; says what it has done once it is done, and before a deletion what it is about to do.
WORKER = """
import asyncio, itertools, sys
from dataclasses import replace
from tallybook.core.quorum import Quorum
from tallybook.metadata.ledger.model import Fragment, LedgerMetadata
from tallybook.metadata.ledger_update import LedgerUpdater
from tallybook.metadata.uri import open_metadata
from tallybook.runtime.clock import RealClock
from tallybook.runtime.rng import SystemRng

def one_more(metadata):
    return replace(metadata, custom={"count": b"%d" % (int(metadata.custom["count"]) + 1)})

async def main(path, name):
    clock, rng = RealClock(), SystemRng()
    metadata = await open_metadata(f"sqlite://{path}", create=True, clock=clock, rng=rng)
    updater = LedgerUpdater(metadata.store, clock, rng)
    for turn in itertools.count():
        await updater.update(0, one_more)
        print("counted", flush=True)
        ledger_id = await metadata.store.next_ledger_id()
        custom = {"name": name.encode(), "filler": bytes(rng.randint(0, 20_000))}
        fragments = (Fragment(0, ("b1",)),)
        made = await metadata.store.create_ledger(
            LedgerMetadata(ledger_id, Quorum(1, 1, 1), fragments, name, 0, custom=custom))
        print("created", ledger_id, flush=True)
        await metadata.store.write_cookie(name.replace(" ", "-"), b"%d" % turn, replace=True)
        print("cookie", turn, flush=True)
        if turn % 3 == 2:
            print("deleting", ledger_id, flush=True)
            await metadata.store.delete_ledger(ledger_id, made.version)
            print("deleted", ledger_id, flush=True)

asyncio.run(main(*sys.argv[1:]))
"""

# Registers a bookie, says so, and says when it learns that it is lost.
BOOKIE = """
import asyncio, sys
from tallybook.core.answers import Incarnation
from tallybook.metadata.sqlite.client import open_sqlite
from tallybook.metadata.sqlite.timing import Timing
from tallybook.metadata.store import BookieInfo
from tallybook.runtime.boot_clock import RealBootClock
from tallybook.runtime.clock import RealClock
from tallybook.runtime.rng import SystemRng

async def main(path):
    metadata = await open_sqlite(
        path, create=True, clock=RealClock(), rng=SystemRng(), boot_clock=RealBootClock(), timing=Timing(0.2, 1.0))
    registration = await metadata.membership.register(BookieInfo("b1", "host:1", Incarnation("uuid", 1)))
    print("registered", flush=True)
    await registration.lost()
    print("lost", flush=True)

asyncio.run(main(sys.argv[1]))
"""

# Takes the write lock, changes something, says so, and never ends.
LOCK_HOLDER = """
import sqlite3, sys, threading
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("BEGIN IMMEDIATE")
connection.execute("DELETE FROM ledgers")
print("locked", flush=True)
threading.Event().wait()
"""


def start(program: str, *arguments: object) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", program, *map(str, arguments)], stdout=subprocess.PIPE, text=True)


async def open_file(path: Path, **options):
    return await open_sqlite(
        str(path), create=True, clock=RealClock(), rng=SystemRng(), boot_clock=RealBootClock(), **options
    )


def counter() -> LedgerMetadata:
    return LedgerMetadata(0, Quorum(1, 1, 1), (Fragment(0, ("b1",)),), "test", 0, custom={"count": b"0"})


async def make_counter(path: Path) -> None:
    async with await open_file(path) as metadata:
        assert await metadata.store.next_ledger_id() == 0
        await metadata.store.create_ledger(counter())


def run_and_kill(path: Path, round_number: int, rng: random.Random) -> dict[str, list[str]]:
    """One round: what each worker, by its name, reported before it was killed."""
    workers = {f"worker {round_number}.{n}": None for n in range(WORKERS)}
    for name in workers:
        workers[name] = start(WORKER, path, name)
    reported = {}
    try:
        first = {name: worker.stdout.readline() for name, worker in workers.items()}
        for name, worker in rng.sample(sorted(workers.items()), WORKERS):
            with pytest.raises(subprocess.TimeoutExpired):
                worker.wait(rng.random() * 0.15)
            worker.send_signal(signal.SIGKILL)
            reported[name] = [first[name], *worker.stdout]
    finally:
        for worker in workers.values():
            worker.kill()
            worker.wait()
            worker.stdout.close()
    return reported


def said(lines: list[str], what: str) -> list[int]:
    """The numbers in a worker's reports of one kind; a last line that the kill cut off does not count."""
    return [int(line.split()[1]) for line in lines if line.startswith(f"{what} ") and line.endswith("\n")]


@pytest.mark.slow
async def test_no_reported_write_is_lost_and_no_value_is_torn_when_writers_are_killed(tmp_path):
    path = tmp_path / "metadata.db"
    await make_counter(path)
    rng = random.Random(20)
    reported: dict[str, list[str]] = {}
    for number in range(ROUNDS):
        reported.update(run_and_kill(path, number, rng))
    counted = sum(line == "counted\n" for lines in reported.values() for line in lines)
    created = {ledger_id: name for name in reported for ledger_id in said(reported[name], "created")}
    deleting = {ledger_id for lines in reported.values() for ledger_id in said(lines, "deleting")}
    deleted = {ledger_id for lines in reported.values() for ledger_id in said(lines, "deleted")}

    async with await open_file(path) as metadata:
        stored = int((await metadata.store.read_ledger(0)).value.custom["count"])
        # A process killed between the commit and its report has counted once more than it reported.
        assert counted <= stored <= counted + ROUNDS * WORKERS
        assert counted > ROUNDS * WORKERS
        assert len(created) == sum(len(said(lines, "created")) for lines in reported.values()), "an id was given twice"
        assert deleted
        page = await metadata.store.list_ledgers(limit=10_000)
        assert page.complete
        assert created.keys() - deleting <= set(page.ledger_ids)
        assert not deleted & set(page.ledger_ids)
        for ledger_id in created.keys() & set(page.ledger_ids):
            value = (await metadata.store.read_ledger(ledger_id)).value
            assert (value.creator_token, value.custom["name"]) == (created[ledger_id], created[ledger_id].encode())
        for ledger_id in deleted:
            with pytest.raises(NoSuchLedger):
                await metadata.store.read_ledger(ledger_id)
        assert len(page.ledger_ids) <= 1 + len(created) - len(deleted) + ROUNDS * WORKERS
        for ledger_id in page.ledger_ids:
            await metadata.store.read_ledger(ledger_id)
        assert await metadata.store.id_counter() > max(*page.ledger_ids, *created)
        assert await metadata.store.next_ledger_id() not in created
        for name, lines in reported.items():
            turns = said(lines, "cookie")
            cookie = await metadata.store.read_cookie(name.replace(" ", "-"))
            # A write that was not reported any more may be there instead of the last reported one.
            assert not turns or int(cookie) in (turns[-1], turns[-1] + 1)
    connection = sqlite3.connect(path)
    assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    connection.close()


async def test_r07_a_killed_bookie_is_gone_after_expiry_and_its_place_is_free(tmp_path):
    path = tmp_path / "metadata.db"
    async with await open_file(path, timing=Timing(0.2, 1.0)) as metadata:
        bookie = start(BOOKIE, path)
        try:
            assert await asyncio.to_thread(bookie.stdout.readline) == "registered\n"
            watch = metadata.membership.watch()
            assert list(await metadata.membership.bookies()) == ["b1"]
        finally:
            bookie.kill()
            bookie.wait()
            bookie.stdout.close()
        async with asyncio.timeout(20):
            while await metadata.membership.bookies():
                await watch.changed()
        await metadata.membership.register(BookieInfo("b1", "host:2", Incarnation("another uuid", 1)))


async def test_r07_a_bookie_that_was_stopped_too_long_learns_that_it_is_lost(tmp_path):
    path = tmp_path / "metadata.db"
    async with await open_file(path, timing=Timing(0.2, 1.0)) as metadata:
        bookie = start(BOOKIE, path)
        try:
            assert await asyncio.to_thread(bookie.stdout.readline) == "registered\n"
            watch = metadata.membership.watch()
            bookie.send_signal(signal.SIGSTOP)
            async with asyncio.timeout(20):
                while await metadata.membership.bookies():
                    await watch.changed()
            bookie.send_signal(signal.SIGCONT)
            assert await asyncio.to_thread(bookie.stdout.readline) == "lost\n"
        finally:
            bookie.kill()
            bookie.wait()
            bookie.stdout.close()


async def test_a_process_killed_with_the_write_lock_does_not_keep_it(tmp_path):
    path = tmp_path / "metadata.db"
    await make_counter(path)
    async with await open_file(path) as metadata:
        current = await metadata.store.read_ledger(0)
        changed = replace(current.value, custom={"count": b"1"})
        holder = start(LOCK_HOLDER, path)
        try:
            assert await asyncio.to_thread(holder.stdout.readline) == "locked\n"
            write = asyncio.ensure_future(metadata.store.update_ledger(changed, current.version))
            await asyncio.sleep(0.1)
            assert not write.done()
            holder.kill()
            await asyncio.wait_for(write, 20)
            assert (await metadata.store.read_ledger(0)).value == changed
        finally:
            holder.kill()
            holder.wait()
            holder.stdout.close()
