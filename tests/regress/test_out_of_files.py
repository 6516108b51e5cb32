"""A bookie that cannot open files for a while loses nothing: it used to end at its next checkpoint."""

import asyncio
import errno
import os
import resource
from pathlib import Path

import pytest

from tallybook.bookie.process.server import OWN_DESCRIPTORS, connections_within, fitting
from tallybook.bookie.storage.index.rocksdb import RocksIndex
from tallybook.bookie.storage.location import IndexRow, Location
from tallybook.core.errors import BookieReadOnly, EntryUnknown, InvalidConfig, OutOfFiles
from tallybook.core.settings import AdmissionSettings, BookieSettings, StorageSettings
from tallybook.runtime.disk.os_disk import RealDisk
from tallybook.runtime.process_memory.descriptors import raise_descriptor_limit
from tallybook.runtime.tasks import ThreadWorkers
from tallybook.sim.deterministic import SimDisk, World
from tallybook.sim.stage.disk_bookie import DiskBookie, batch_of

from ..simulated import simulated


@pytest.mark.parametrize("operation", ["create", "sync-directory"])
@simulated
async def test_a_checkpoint_waits_until_a_file_can_be_opened(world: World, *, operation: str) -> None:
    node = DiskBookie(SimDisk(world.rng), world.clock)
    bookie = await node.boot()
    await world.clock.sleep(1)
    assert (await node.add(batch_of(0))).code == 0
    node.disk.fail(operation, "ledgers", times=3, error=OutOfFiles)
    flushing = asyncio.ensure_future(bookie.flush())
    await world.clock.sleep(1.5)
    assert (await node.add(batch_of(1))).code == BookieReadOnly.wire_code
    await flushing
    assert (await node.add(batch_of(1))).code == 0
    assert len((await bookie.read_batches(1, 0, 1, 1000)).batches) == 2
    await node.stop()
    assert node.failures == []


@simulated
async def test_a_read_that_can_open_no_file_cannot_tell(world: World) -> None:
    node = DiskBookie(SimDisk(world.rng), world.clock)
    bookie = await node.boot()
    assert (await node.add(batch_of(0))).code == 0
    await bookie.flush()
    node.disk.fail("open", "entrylog", error=OutOfFiles)
    with pytest.raises(EntryUnknown):
        await bookie.read_batches(1, 0, 0, 1000)
    assert (await bookie.read_batches(1, 0, 0, 1000)).batches
    await node.stop()


async def test_an_index_that_cannot_note_how_far_it_is_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk, workers = RealDisk(), ThreadWorkers(2, "index")
    index = await RocksIndex.open(disk, str(tmp_path), workers, StorageSettings(), create=True)
    real_open = os.open

    def fail(*arguments: object, **more: object) -> int:
        if "synced" in str(arguments[0]):
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return real_open(*arguments, **more)

    for first in range(2):
        monkeypatch.setattr(os, "open", fail)
        await index.apply([IndexRow(1, first, Location(1, 4096, 500, 1))], {})
        await index.sync()
        monkeypatch.undo()
    await index.sync()
    assert await index.last_entry(1) == 1
    await index.close()
    await workers.close()
    await disk.close()


def settings(max_streams: int, tcp_listen: str = "") -> BookieSettings:
    admission = AdmissionSettings(max_streams=max_streams)
    return BookieSettings(data_directory="/nowhere", metadata="memory:", admission=admission, tcp_listen=tcp_listen)


@pytest.mark.parametrize("descriptors", [700, 1024, 4096, 6500, 1 << 20])
@pytest.mark.parametrize("wanted", [1, 100, 4096, 10_000])
def test_there_are_no_more_streams_than_descriptors_for_their_connections(descriptors: int, wanted: int) -> None:
    connections = connections_within(settings(wanted), descriptors)
    assert connections + OWN_DESCRIPTORS < descriptors
    streams = fitting(settings(wanted), connections).admission.max_streams
    assert streams == min(wanted, connections // 2 * 3 // 4), "one of two ports must have a connection for each"


def test_a_process_that_may_open_next_to_nothing_is_refused_with_the_number_it_needs() -> None:
    with pytest.raises(InvalidConfig, match=r"ulimit -n.*648"):
        connections_within(settings(1), 647)
    with pytest.raises(InvalidConfig, match=r"ulimit -n.*584"):
        connections_within(settings(1, tcp_listen="off"), 583)


def test_the_limit_of_open_files_is_raised_as_far_as_it_goes() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 256), hard))
    try:
        assert raise_descriptor_limit() > 256 or hard <= 256
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
