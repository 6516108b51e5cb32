"""Opens the SQLite file: connects database, watches, heartbeats and the two ports."""

from __future__ import annotations

from tallybook.runtime.boot_clock import BootClock
from tallybook.runtime.clock import Clock
from tallybook.runtime.rng import Rng
from tallybook.runtime.tasks import Tasks

from ..client import MetadataClient
from .database import Database
from .membership import SqliteMembership
from .poller import Poller
from .store import SqliteStore
from .timing import Timing


async def open_sqlite(
    path: str,
    *,
    create: bool,
    clock: Clock,
    rng: Rng,
    boot_clock: BootClock,
    timeout_seconds: float = 10.0,
    timing: Timing | None = None,
    reads_only: bool = False,
) -> MetadataClient:
    """Open the metadata in the file ``path``.

    Args:
        create: create a new cluster if the file, or its directory, is missing.
        clock: for deadlines and pauses.
        rng: for ids, tokens and jitter.
        boot_clock: for heartbeats.
        timeout_seconds: deadline of this call and of every operation.
        timing: of heartbeats and polls.
        reads_only: create and change nothing. Read permission for the file and its directory is then enough, while a
            process that may write has the file open.

    Raises:
        NoSuchCluster: the file does not exist, and ``create`` is false.
        InvalidConfig: the file belongs to another application, is not writable, or is writable by all users.
        NewerFormat: its tables are those of a newer Tallybook.
        DamagedFile: it is not an SQLite file, or a damaged one.
        DiskFailed: its directory cannot be created.
        MetadataUnavailable: it stays locked, does not answer, or does not exist for reading.
    """
    timing = timing or Timing()
    database = Database(
        path, create=create, clock=clock, rng=rng, timeout_seconds=timeout_seconds, reads_only=reads_only
    )
    await database.open()

    def stop_serving(_task: str, _error: BaseException) -> None:
        # Without the failed task, watches and registrations would silently be out of date.
        poller.end()
        membership.abandon()

    tasks = Tasks("sqlite-metadata", stop_serving)
    poller = Poller(database, boot_clock, tasks, timing)
    membership = SqliteMembership(database, poller, boot_clock, tasks, timing)

    async def close() -> None:
        await membership.leave()
        poller.end()
        await tasks.close()
        await database.close()

    return MetadataClient(SqliteStore(database, poller, close), membership)
