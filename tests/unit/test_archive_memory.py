"""Freed memory of an archiving process: kept or returned. Measured from outside, in a separate process."""

import os
import platform
import subprocess
import sys

import pytest

PROGRAM = """
import asyncio, os
import pyarrow as pa
from tallybook.archive.memory_release import release_memory
from tallybook.runtime.tasks import ThreadWorkers
from tallybook.runtime.tuning import keep_freed_memory

def held():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

def columns():
    found = [pa.allocate_buffer(100_000) for _ in range(500)]
    for buffer in found:
        buffer_bytes = memoryview(buffer).cast("B")
        buffer_bytes[:] = b"x" * len(buffer_bytes)

def messages():
    found = [b"x" * 600_000 for _ in range(100)]
    return found[::50]

async def main():
    workers = ThreadWorkers(1, "archive")
    await workers.run(int)
    before = held()
    columns()
    lasting = messages()
    kept = held() - before
    await release_memory(workers)
    print(pa.default_memory_pool().backend_name, kept, held() - before)
    await workers.close()

keep_freed_memory()
asyncio.run(main())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc is told how to keep memory")
@pytest.mark.parametrize("pool", ["mimalloc", "system"])
def test_what_was_freed_goes_back_to_the_system_and_the_allocator_of_arrow_stays(pool: str) -> None:
    environment = {**os.environ, "ARROW_DEFAULT_MEMORY_POOL": pool}
    output = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True, timeout=60, env=environment
    )
    name, kept, left = output.stdout.split()
    assert name == pool
    assert int(kept) > 50_000_000
    assert int(left) < 20_000_000, output.stdout
