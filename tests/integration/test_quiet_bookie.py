"""A real bookie after a load: freed memory is returned to the operating system."""

import asyncio
import platform
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tallybook.client.client import Client
from tallybook.core.limits import KIB, MIB

DEADLINE_SECONDS = 60
POLL_SECONDS = 0.5
ENTRY_BYTES = 512 * KIB
"""Below what goes back to the system by itself."""
BOOKIE = """
import sys
from tallybook.cli import app
from tallybook.runtime.process_memory import idle_trim
idle_trim.POLL_SECONDS = float(sys.argv[1])
app.main(sys.argv[2:])
"""


def held_bytes(pid: int) -> int:
    """Memory of a process that no file is behind."""
    [line] = [line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("RssAnon:")]
    return int(line.split()[1]) * KIB


@pytest.fixture
def bookie(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    flushed = ["--set", "storage.flush_interval_ms=500"]
    words = ["bookie", "run", *flushed, "--data", str(tmp_path / "b1"), "--id", "b1", "--metadata", metadata(tmp_path)]
    process = subprocess.Popen([sys.executable, "-P", "-c", BOOKIE, str(POLL_SECONDS), *words])
    yield process
    process.kill()
    process.wait()


def metadata(directory: Path) -> str:
    return f"sqlite:///{directory}/metadata.db"


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc is told to give memory back")
async def test_a_bookie_with_little_to_do_holds_less_than_under_the_load_before(bookie, tmp_path):
    async with asyncio.timeout(DEADLINE_SECONDS):
        while not (tmp_path / "b1" / "run.json").exists():  # noqa: ASYNC110 (another process sets no event)
            await asyncio.sleep(0.05)
        async with Client(metadata(tmp_path)) as client:
            loaded = held_bytes(bookie.pid) + 50 * MIB
            async with client.create_ledger(ensemble=1, write_quorum=1, ack_quorum=1) as ledger:
                while held_bytes(bookie.pid) < loaded:
                    await ledger.append_many([bytes(ENTRY_BYTES)] * 32)
            while held_bytes(bookie.pid) > loaded - 40 * MIB:  # noqa: ASYNC110 (as above)
                await asyncio.sleep(0.05)
