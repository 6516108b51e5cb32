"""A bookie with RocksDB on the local disk, in this process, for tests; only its metadata are fake."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial

from tallybook.bookie.bookie import Bookie
from tallybook.bookie.parts import BookieParts
from tallybook.bookie.process.boot import boot
from tallybook.bookie.process.server import IndexThreads
from tallybook.bookie.process.world import BookieWorld
from tallybook.core.limits import MIB
from tallybook.core.settings import BookieSettings, JournalSettings, StorageSettings
from tallybook.runtime.clock import RealClock
from tallybook.runtime.disk.os_disk import RealDisk
from tallybook.runtime.rng import SystemRng
from tallybook.runtime.tasks import Tasks
from tallybook.sim.stage.disk_bookie import KnownMetadata


@dataclass(frozen=True)
class RealBookie:
    """A running bookie with its disk, threads and tasks."""

    bookie: Bookie
    disk: RealDisk
    threads: IndexThreads
    tasks: Tasks
    settings: BookieSettings

    @property
    def parts(self) -> BookieParts:
        """The parts of the bookie, to be looked at and disturbed."""
        return self.bookie._parts


@asynccontextmanager
async def real_bookie(
    root: str, metadata: KnownMetadata, fail: Callable[[str], None], *, read_threads: int = 2
) -> AsyncIterator[RealBookie]:
    """Run a bookie with its data in ``root``; it is closed at the end of the block.

    Args:
        fail: called with the reason of a fail-safe or of a dead essential task.
    """
    settings = BookieSettings(
        bookie_id="b1", data_directory=root, metadata="memory:",
        journal=JournalSettings(segment_bytes=4 * MIB, segment_count=4),
        storage=StorageSettings(write_cache_bytes=8 * MIB, min_free_bytes=0),
    )  # fmt: skip
    disk, threads = RealDisk(read_threads=read_threads), IndexThreads(read_threads)
    tasks = Tasks("b1", lambda name, error: fail(f"{name}: {error!r}"))
    world = BookieWorld(
        disk=disk, clock=RealClock(), rng=SystemRng(), tasks=tasks, workers=threads.changes,
        open_index=partial(threads.open_index, disk, settings.storage),
        facts_of=metadata.facts_of, disposition_of=metadata.disposition_of, id_counter=metadata.read_id_counter,
        confirmed_prefix_of=metadata.confirmed_prefix_of, registry=metadata, fail_safe=fail,
    )  # fmt: skip
    try:
        bookie = await boot(settings, world)
        yield RealBookie(bookie, disk, threads, tasks, settings)
        await bookie.close()
    finally:
        await tasks.close()
        await threads.close()
        await disk.close()
