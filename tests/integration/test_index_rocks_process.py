"""RocksDB as the index in a separate process: killed during writes, and with a disk that reads slowly."""

import asyncio
import contextlib
import ctypes
import os
import random
import shutil
import signal
import subprocess
import sys
import time

import pytest

from tallybook.bookie.storage.index.rocksdb import RocksIndex
from tallybook.bookie.storage.location import IndexRow, Location
from tallybook.core.ids import MAX_ID
from tallybook.core.settings import StorageSettings
from tallybook.runtime.disk.os_disk import RealDisk
from tallybook.runtime.tasks import ThreadWorkers

KILLS = 8
SETTINGS = StorageSettings(index_cache_bytes=1 << 20)


def row(number: int, i: int) -> IndexRow:
    return IndexRow(1, 100 * number + 10 * i, Location(number + 1, 4096 + i, 500, 10))


async def write_until_killed(directory: str) -> None:
    """Runs in the child: say "synced N" when the first N write batches are durable."""
    disk, workers = RealDisk(), ThreadWorkers(2, "index")
    index = await RocksIndex.open(disk, directory, workers, SETTINGS, create=True)
    number = int(await index.load_state(1) or b"0")
    while True:
        for _ in range(3):
            await index.apply([row(number, i) for i in range(10)], {1: b"%d" % (number + 1)})
            number += 1
        await index.sync()
        print(f"synced {number}", flush=True)


async def survived(directory: str) -> int:
    """The number of write batches, after checking that they are a whole prefix."""
    disk, workers = RealDisk(), ThreadWorkers(2, "index")
    index = await RocksIndex.open(disk, directory, workers, SETTINGS, create=False)
    count, rows, after = int(await index.load_state(1) or b"0"), [], 0
    while page := await index.find_range(1, after, MAX_ID, 1000):
        rows += page
        after = page[-1].last_entry_id + 1
    assert rows == [row(number, i) for number in range(count) for i in range(10)]
    await index.close()
    await workers.close()
    await disk.close()
    return count


def child(mode: str, *arguments: str, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, __file__, mode, *arguments],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
    )


def test_what_was_synced_before_a_kill_is_there_after_it(run, tmp_path):
    directory, pauses, promised = str(tmp_path / "index"), random.Random(5), 0
    for _ in range(KILLS):
        with child("write", directory) as process:
            for _ in range(pauses.randint(1, 30)):
                promised = int(process.stdout.readline().removeprefix("synced "))
            time.sleep(pauses.uniform(0, 0.01))
            process.send_signal(signal.SIGKILL)
            said = [line for line in process.stdout.read().splitlines(keepends=True) if line.endswith("\n")]
        promised = int(said[-1].removeprefix("synced ")) if said else promised
        assert run(survived(directory)) >= promised
    assert promised > 0


# -- slow reads -----------------------------------------------------------------------------

READ_SECONDS = 0.25  # so long that no busy machine keeps a thread waiting for it
SEARCHES = 5
SLOW_READS = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
static volatile int delay_us; static volatile long slowed;
void slow_reads(int us) { delay_us = us; slowed = 0; }
long slowed_reads(void) { return slowed; }
static int is_table(int fd) {
    char link[64], path[512];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t size = readlink(link, path, sizeof path - 1);
    if (size < 0) return 0;
    path[size] = 0;
    return strstr(path, ".sst") != 0;
}
ssize_t pread64(int fd, void *buffer, size_t size, off_t offset) {
    static ssize_t (*real)(int, void *, size_t, off_t);
    if (!real) real = dlsym(RTLD_NEXT, "pread64");
    if (delay_us && is_table(fd)) { __sync_fetch_and_add(&slowed, 1); usleep(delay_us); }
    return real(fd, buffer, size, offset);
}
ssize_t pread(int fd, void *buffer, size_t size, off_t offset) { return pread64(fd, buffer, size, offset); }
"""


async def longest_turn(work) -> float:
    """Seconds that the event loop was away at most while ``work`` ran."""
    task, longest, last = asyncio.ensure_future(work), 0.0, time.perf_counter()
    while not task.done():
        await asyncio.sleep(0.0005)
        now = time.perf_counter()
        longest, last = max(longest, now - last), now
    await task
    return longest


async def search_on_a_slow_disk(directory: str, library: str) -> None:
    """Runs in the child: cold searches, each of which waits for the disk more than once."""
    shim = ctypes.CDLL(library)
    disk, workers, draws = RealDisk(), ThreadWorkers(2, "index"), random.Random(1)
    index = await RocksIndex.open(disk, directory, workers, StorageSettings(index_cache_bytes=64 << 10), create=True)
    for ledger_id in range(100):
        rows = [IndexRow(ledger_id, 10 * i, Location(1, 4096 + draws.randrange(2**40), 500, 10)) for i in range(1000)]
        await index.apply(rows, {ledger_id: bytes(500)})
    await asyncio.to_thread(index._database._rows.flush)
    await asyncio.to_thread(index._database._states.flush)
    await asyncio.to_thread(index._database._rows.compact_range, None, None)

    async def searches() -> None:
        for _ in range(SEARCHES):
            ledger_id, first = draws.randrange(100), 10 * draws.randrange(1000)
            assert (await index.find(ledger_id, first + 5)).first_entry_id == first
            assert await index.load_state(ledger_id) == bytes(500)
            assert await index.last_entry(ledger_id) == 9_999
            assert len(await index.find_range(ledger_id, 1000, 5000, 200)) == 200

    shim.slow_reads(int(READ_SECONDS * 1e6))
    turn = await longest_turn(searches())
    print(turn, shim.slowed_reads(), flush=True)
    shim.slow_reads(0)
    await index.close()
    await workers.close()
    await disk.close()


def test_searches_on_a_slow_disk_do_not_hold_up_the_event_loop(tmp_path):
    compiler = shutil.which("cc") or pytest.skip("reads are slowed down by a library that needs a C compiler: cc")
    source, library = tmp_path / "slow.c", tmp_path / "slow.so"
    source.write_text(SLOW_READS)
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", library, source, "-ldl"], check=True)
    with child("search", str(tmp_path / "index"), str(library), LD_PRELOAD=str(library)) as process:
        output, _ = process.communicate(timeout=120)
    assert process.returncode == 0
    turn, slowed = output.split()
    assert int(slowed) > 3 * SEARCHES, "the searches were to wait for the disk"
    assert float(turn) < READ_SECONDS, f"the event loop was away for {turn} s, as long as a read takes"


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run({"write": write_until_killed, "search": search_on_a_slow_disk}[sys.argv[1]](*sys.argv[2:]))
