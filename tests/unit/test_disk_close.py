"""Closing a file of the real disk, which may take long: the space of a removed file is freed during the close."""

from __future__ import annotations

import asyncio
import os
import threading

import pytest

from tallybook.runtime.disk import os_calls as disk_os
from tallybook.runtime.disk.os_disk import RealDisk

from .test_disk_real import DEADLINE_SECONDS, descriptors, until


async def test_a_slow_close_does_not_block_the_event_loop_and_completes_without_a_waiter(tmp_path, monkeypatch):
    started, go_on = threading.Event(), threading.Event()
    real, before = os.close, descriptors()

    def slow(fd: int) -> None:
        started.set()
        go_on.wait(DEADLINE_SECONDS)
        real(fd)

    disk = RealDisk(direct=False)
    file = await disk.open(f"{tmp_path}/f", create=True)
    await disk.unlink(f"{tmp_path}/f")
    monkeypatch.setattr(os, "close", slow)
    closing = asyncio.ensure_future(file.close())
    await until(started.is_set)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    assert descriptors() == before + 1
    go_on.set()
    await until(lambda: descriptors() == before)
    await disk.close()


async def test_a_close_that_has_not_begun_is_done_without_a_waiter(tmp_path, monkeypatch):
    go_on = threading.Event()
    disk, before = RealDisk(direct=False, read_threads=1), descriptors()
    file = await disk.open(f"{tmp_path}/f", create=True)
    other = await disk.open(f"{tmp_path}/g", create=True)
    monkeypatch.setattr(disk_os, "read_all", lambda *_: go_on.wait(DEADLINE_SECONDS))
    reading = asyncio.ensure_future(other.read(0, 1))
    closing = asyncio.ensure_future(file.close())
    await asyncio.sleep(0)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    go_on.set()
    await reading
    await until(lambda: descriptors() == before + 1)
    await other.close()
    await disk.close()
