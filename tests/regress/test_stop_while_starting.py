"""A stop before the bookie is ready ends it at once, and an error after that is not reported as a refusal to start."""

import asyncio
from pathlib import Path

import pytest

from tallybook.bookie.directories.layout import claim
from tallybook.bookie.process import server
from tallybook.cli.commands import bookie as command
from tallybook.cli.exits import RefusedToStart
from tallybook.core.errors import MetadataConflict
from tallybook.core.limits import MIB
from tallybook.core.settings import BookieSettings, JournalSettings, StorageSettings
from tallybook.runtime.disk.os_disk import RealDisk

DEADLINE_SECONDS = 20


class NoProcess:
    """A process that must not end."""

    def fail_safe(self, reason: str) -> None:
        pytest.fail(reason)


def settings(root: Path) -> BookieSettings:
    return BookieSettings(
        bookie_id="b1",
        data_directory=str(root / "b1"),
        metadata=f"sqlite:///{root}/metadata.db",
        listen="127.0.0.1:0",
        http_listen="127.0.0.1:0",
        journal=JournalSettings(segment_bytes=4 * MIB, segment_count=4),
        storage=StorageSettings(write_cache_bytes=8 * MIB, min_free_bytes=0),
    )


@pytest.mark.parametrize("moment", ["open_metadata", "boot"])
async def test_a_stop_during_the_start_ends_it_at_once_and_leaves_nothing_behind(monkeypatch, tmp_path, moment):
    stop, ready = asyncio.Event(), asyncio.Event()

    async def hang(*arguments: object, **_: object) -> None:
        directory = None
        if moment == "boot":
            chosen, world = arguments
            directory = await claim(chosen, world.disk, world.registry, world.rng)
        try:
            stop.set()
            await asyncio.Event().wait()
        finally:
            if directory is not None:
                await directory.release()

    with monkeypatch.context() as patched:
        patched.setattr(server, moment, hang)
        async with asyncio.timeout(DEADLINE_SECONDS):
            await server.serve(settings(tmp_path), stop, NoProcess(), ready)
    assert not ready.is_set()
    assert not (tmp_path / "b1" / "run.json").exists()
    disk = RealDisk()
    await disk.make_directory(str(tmp_path / "b1"))
    await (await disk.lock(str(tmp_path / "b1"))).release()
    await disk.close()


@pytest.mark.parametrize("was_ready", [True, False])
def test_an_error_counts_as_a_refusal_to_start_only_until_the_bookie_is_ready(monkeypatch, tmp_path, was_ready):
    async def serve(_: BookieSettings, __: asyncio.Event, ___: object, ready: asyncio.Event) -> None:
        if was_ready:
            ready.set()
        raise MetadataConflict("another process is registered as b1")

    monkeypatch.setattr(server, "serve", serve)
    with pytest.raises(MetadataConflict if was_ready else RefusedToStart) as caught:
        asyncio.run(command._serve(settings(tmp_path), None))
    assert ("was running and has stopped" in str(caught.value)) == was_ready
    assert "another process is registered as b1" in str(caught.value)
