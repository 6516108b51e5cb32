"""Symbolic links in place of files of a bookie."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tallybook.core.errors import DiskFailed
from tallybook.runtime.disk.os_disk import RealDisk


@pytest.fixture
def disk() -> Iterator[RealDisk]:
    real = RealDisk()
    yield real
    asyncio.run(real.close())


@pytest.fixture
def device() -> Path:
    """A block device that can be read here."""
    for path in sorted(Path("/dev").iterdir()):
        if path.is_block_device():
            with contextlib.suppress(OSError):
                os.close(os.open(path, os.O_RDONLY))
                return path
    pytest.skip("there is no block device that this user may read")


@pytest.mark.parametrize("create", [False, True])
@pytest.mark.parametrize("target", ["secret", "nothing"])
async def test_a_link_in_place_of_a_file_is_refused_and_leads_nowhere(disk, tmp_path, target, create):
    (tmp_path / "secret").write_bytes(b"mine")
    (tmp_path / "f").symlink_to(tmp_path / target)
    for durable in (False, True):
        with pytest.raises(DiskFailed, match=f"cannot open {tmp_path}/f: it is a symbolic link"):
            await disk.open(f"{tmp_path}/f", create=create, durable=durable)
    await disk.replace_file(f"{tmp_path}/f", b"new")
    assert not (tmp_path / "f").is_symlink()
    assert (tmp_path / "secret").read_bytes() == b"mine"
    assert not (tmp_path / "nothing").exists()


async def test_a_link_to_a_block_device_is_its_name(disk, tmp_path, device):
    (tmp_path / "device").symlink_to(device)
    file = await disk.open(f"{tmp_path}/device", writable=False)
    await file.close()
