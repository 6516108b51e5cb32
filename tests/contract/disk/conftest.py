"""The disks under contract: simulated, and real with and without O_DIRECT, on a file system and on tmpfs."""

import asyncio
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tallybook.runtime.disk.os_disk import RealDisk
from tallybook.runtime.disk.port import Disk, DiskFile
from tallybook.sim.deterministic import SimDisk

SHARED_MEMORY = Path("/dev/shm")
KINDS = ["sim", "real-direct", "real-buffered", *(["real-tmpfs"] if SHARED_MEMORY.is_dir() else [])]


@dataclass
class Place:
    """A disk, and an empty directory on it."""

    disk: Disk
    root: str

    def __truediv__(self, name: str) -> str:
        return f"{self.root}/{name}"

    async def file(self, name: str, data: bytes = b"", *, durable: bool = False) -> DiskFile:
        file = await self.disk.open(self / name, create=True, durable=durable)
        await file.write(0, [data])
        return file


@pytest.fixture(params=KINDS)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    kind = request.param
    if kind == "sim":
        disk = SimDisk()
        asyncio.run(disk.make_directory("/data"))
        yield Place(disk, "/data")
        return
    real = RealDisk(direct=kind != "real-buffered")
    if kind == "real-tmpfs":
        with tempfile.TemporaryDirectory(dir=SHARED_MEMORY) as root:
            yield Place(real, root)
    else:
        yield Place(real, str(tmp_path))
    asyncio.run(real.close())
