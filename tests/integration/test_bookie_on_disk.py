"""A whole bookie on a real disk, with RocksDB: restarts, kill -9, full file systems, damaged files."""

import asyncio
import os
import random
import shutil
import signal
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tallybook.bookie.bookie import Bookie
from tallybook.bookie.process.boot import boot
from tallybook.bookie.process.world import BookieWorld
from tallybook.bookie.storage.index.port import Index
from tallybook.bookie.storage.index.rocksdb import RocksIndex
from tallybook.core.add_kind import AddKind
from tallybook.core.answers import AddAnswer
from tallybook.core.errors import (
    Busy,
    DirectoryInUse,
    DiskFull,
    EntryAbsent,
    EntryCorrupt,
    EntryUnknown,
    LedgerFenced,
    TallybookError,
)
from tallybook.core.limits import MIB
from tallybook.core.settings import BookieSettings, JournalSettings, StorageSettings
from tallybook.runtime.clock import RealClock
from tallybook.runtime.disk.os_disk import RealDisk
from tallybook.runtime.rng import SystemRng
from tallybook.runtime.tasks import Tasks, ThreadWorkers
from tallybook.sim.stage.disk_bookie import KnownMetadata, batch_of

COOKIES: dict[str, dict[str, bytes]] = {}
"""The metadata of each directory, for as long as the tests run."""


def settings(root: Path, min_free_bytes: int = 0) -> BookieSettings:
    return BookieSettings(
        bookie_id="b1",
        data_directory=str(root),
        metadata="memory:",
        journal=JournalSettings(segment_bytes=2 * MIB, segment_count=4),
        storage=StorageSettings(
            write_cache_bytes=4 * MIB, entry_log_bytes=4 * MIB, index_cache_bytes=MIB, min_free_bytes=min_free_bytes
        ),
    )


@asynccontextmanager
async def running(
    root: Path, *, clean: bool = True, cookies: dict[str, bytes] | None = None, min_free_bytes: int = 0
) -> AsyncIterator[Bookie]:
    """A bookie of this process. Without ``clean`` it ends as a process does that is killed."""
    chosen = settings(root, min_free_bytes)
    failures: list[str] = []
    disk, workers = RealDisk(), ThreadWorkers(2, "workers")
    tasks = Tasks("b1", lambda name, error: failures.append(f"{name}: {error!r}"))
    metadata = KnownMetadata(cookies=COOKIES.setdefault(str(root), {}) if cookies is None else cookies)

    async def open_index(directory: str, *, create: bool) -> Index:
        return await RocksIndex.open(disk, directory, workers, chosen.storage, create=create)

    world = BookieWorld(
        disk=disk, clock=RealClock(), rng=SystemRng(), tasks=tasks, workers=workers, open_index=open_index,
        facts_of=metadata.facts_of, disposition_of=metadata.disposition_of,
        id_counter=metadata.read_id_counter, confirmed_prefix_of=metadata.confirmed_prefix_of, registry=metadata,
        fail_safe=failures.append,
    )  # fmt: skip
    try:
        bookie = await boot(chosen, world)
        try:
            yield bookie
        finally:
            await bookie.close(clean=clean)
            assert failures == []
    finally:
        await tasks.close()
        await workers.close()
        await disk.close()


def add(bookie: Bookie, batch: bytes, *, recovery: bool = False) -> "asyncio.Future[AddAnswer]":
    answered: asyncio.Future[AddAnswer] = asyncio.get_running_loop().create_future()
    bookie.add(batch, b"", answered.set_result, kind=AddKind.RECOVERY if recovery else AddKind.ORDINARY)
    return answered


async def fill(bookie: Bookie, count: int, *, size: int = 1000, ledger_id: int = 1, first: int = 0) -> list[bytes]:
    batches = [batch_of(number, ledger_id=ledger_id, payload=bytes(size)) for number in range(first, first + count)]
    await asyncio.gather(*(add_patiently(bookie, batch) for batch in batches))
    return batches


async def add_patiently(bookie: Bookie, batch: bytes) -> None:
    """Add, and again after each BUSY, as a client does."""
    while (answer := await add(bookie, batch)).code == Busy.wire_code:
        assert answer.retry_after_ms
        await asyncio.sleep(answer.retry_after_ms / 1000)
    assert answer.code == 0


async def read_all(bookie: Bookie, count: int, ledger_id: int = 1) -> list[bytes]:
    found: list[bytes] = []
    while len(found) < count:
        answer = await bookie.read_batches(ledger_id, len(found), count - 1, MIB)
        found += map(bytes, answer.batches)
    return found


@pytest.mark.parametrize("clean", [True, False])
async def test_everything_survives_a_restart(tmp_path: Path, clean: bool) -> None:
    async with running(tmp_path, clean=clean) as bookie:
        batches = await fill(bookie, 500)
        await bookie.flush()
        batches += await fill(bookie, 500, first=500)
        await bookie.fence(2, b"")
        await bookie.write_lac(1, 999, b"")
        first_life = bookie.incarnation
    for life in (1, 2):
        async with running(tmp_path, clean=clean) as bookie:
            assert await read_all(bookie, 1000) == batches
            assert (await add(bookie, batch_of(0, ledger_id=2))).code == LedgerFenced.wire_code
            assert (await bookie.read_lac(1)).lac == 999
            assert (await add(bookie, batches[7])).code == 0
            assert bookie.incarnation == first_life._replace(boot=first_life.boot + life)


async def test_many_times_the_write_cache_goes_through_and_reads_back(tmp_path: Path) -> None:
    async with running(tmp_path) as bookie:
        batches: list[bytes] = []
        for round_number in range(40):
            batches += await fill(bookie, 8, size=100_000, first=8 * round_number)
        assert bookie.stats()["checkpoints_total"] > 5
        assert bookie.stats()["write_cache_bytes"] <= 4 * MIB
        assert await read_all(bookie, 320) == batches
    assert len(list((tmp_path / "ledgers").glob("entrylog-*"))) > 3


async def test_a_second_process_on_the_directory_is_refused(tmp_path: Path) -> None:
    async with running(tmp_path):
        with pytest.raises(DirectoryInUse, match=str(tmp_path)):
            async with running(tmp_path):
                pytest.fail("two bookies on one directory")


async def test_a_directory_with_too_little_space_is_refused_in_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(DiskFull, match="bytes free"):
        async with running(tmp_path, min_free_bytes=1 << 60):
            pytest.fail("started without room")


async def test_a_file_in_place_of_the_directory_is_refused_in_one_sentence(tmp_path: Path) -> None:
    place = tmp_path / "file"
    place.write_text("not a directory")
    with pytest.raises(TallybookError, match=str(place)):
        async with running(place):
            pytest.fail("started in a file")


async def test_damage_to_any_file_of_the_index_is_reported_or_costs_the_index_which_is_made_again(
    tmp_path: Path,
) -> None:
    home = tmp_path / "home"
    async with running(home, clean=False) as bookie:
        batches = await fill(bookie, 200)
        await bookie.fence(2, b"")
        await bookie.flush()
    choices = random.Random(1)
    outcomes: dict[str, int] = {}
    database = home / "index" / "rocksdb"
    for file in sorted(path for path in database.iterdir() if path.stat().st_size and path.name not in ("LOCK", "LOG")):
        for number in range(4):
            copy = tmp_path / f"{file.name}-{number}"
            shutil.copytree(home, copy)
            data = bytearray((copy / "index" / "rocksdb" / file.name).read_bytes())
            data[choices.randrange(len(data))] ^= 1 << choices.randrange(8)
            (copy / "index" / "rocksdb" / file.name).write_bytes(data)
            outcome = await told_the_truth(copy, home, batches)
            outcomes[outcome] = outcomes.get(outcome, 0) + 1
            shutil.rmtree(copy)
    assert sorted(outcomes) == ["made again", "runs"]


async def told_the_truth(root: Path, home: Path, batches: list[bytes]) -> str:
    async with running(root, clean=False, cookies=COOKIES[str(home)]) as bookie:
        made_again = (root / "index.1" / "cookie").exists()
        for number in range(0, 200, 20):
            try:
                assert (await bookie.read_batches(1, number, number, 1)).batches == (batches[number],)
            except (EntryUnknown, EntryCorrupt):
                assert not made_again
        code = (await add(bookie, batch_of(0, ledger_id=2))).code
        assert code in (LedgerFenced.wire_code, EntryUnknown.wire_code)
    return "made again" if made_again else "runs"


# -- kill -9 ----------------------------------------------------------------------------------


async def child(root: Path) -> None:
    """Add as fast as acks come, fence now and then, and say what was answered."""
    async with running(root, cookies={"b1": (root / "cookie").read_bytes()}) as bookie:
        first = await next_entry(bookie)
        ledger_id = 1000 + first
        while True:
            batches = [batch_of(number, 1, payload=bytes(2000)) for number in range(first, first + 20)]
            for answer in asyncio.as_completed([add(bookie, batch) for batch in batches]):
                done = await answer
                if done.code == 0:
                    print("acked", done.first_entry_id, flush=True)
            first += 20
            ledger_id += 1
            await bookie.fence(ledger_id, b"")
            print("fenced", ledger_id, flush=True)


async def next_entry(bookie: Bookie) -> int:
    first = 0
    while True:
        try:
            answer = await bookie.read_batches(1, first, 1 << 40, 8 * MIB)
        except EntryAbsent:
            return first
        first += len(answer.batches)


async def test_f04_kill_9_at_random_moments_loses_nothing_that_was_answered(tmp_path: Path) -> None:
    async with running(tmp_path) as bookie:
        await fill(bookie, 1)
    acked, fenced = 0, []
    choices = random.Random(2)
    for _ in range(6):
        pipe = asyncio.subprocess.PIPE
        command = [sys.executable, "-P", __file__, str(tmp_path)]
        process = await asyncio.create_subprocess_exec(*command, stdout=pipe, stderr=pipe)
        assert process.stdout is not None
        assert process.stderr is not None
        assert (await process.stdout.readline()).startswith(b"acked"), await process.stderr.read()
        await asyncio.sleep(choices.random())
        process.send_signal(signal.SIGKILL)
        lines = (await process.stdout.read()).decode().splitlines()
        await process.wait()
        process._transport.close()  # type: ignore[attr-defined] - its pipes would outlive the loop
        acked += sum(line.startswith("acked") for line in lines)
        fenced += [int(line.split()[1]) for line in lines if line.startswith("fenced") and line.split()[1:]]
        async with running(tmp_path, clean=False) as bookie:
            for line in lines:
                if line.startswith("acked") and line.split()[1:]:
                    number = int(line.split()[1])
                    answer = await bookie.read_batches(1, number, number, 1)
                    assert answer.batches == (batch_of(number, 1, payload=bytes(2000)),)
            for ledger_id in fenced[-5:]:
                assert (await add(bookie, batch_of(0, ledger_id=ledger_id))).code == LedgerFenced.wire_code
    assert acked > 100


# -- a small file system ------------------------------------------------------------------------

SHARED_MEMORY = Path("/dev/shm")


@pytest.mark.parametrize("where", ["file system", *(["memory"] if SHARED_MEMORY.is_dir() else [])])
async def test_it_runs_with_and_without_direct_writes(tmp_path: Path, where: str) -> None:
    with tempfile.TemporaryDirectory(dir=SHARED_MEMORY if where == "memory" else tmp_path) as root:
        async with running(Path(root)) as bookie:
            batches = await fill(bookie, 50)
        async with running(Path(root)) as bookie:
            assert await read_all(bookie, 50) == batches


if __name__ == "__main__":
    os.nice(1)
    asyncio.run(child(Path(sys.argv[1])))
