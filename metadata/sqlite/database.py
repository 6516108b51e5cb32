"""One connection to the SQLite file, on a thread of its own.

Whatever SQLite does may wait for the disk, so none of it happens on the event loop: a *job*
is a function of the connection, run on the thread as one transaction. Another process may
hold the write lock; then the job is tried again after a random pause, until the deadline.

A commit waits for the disk, so jobs that came to write meanwhile share the next one. If one of
them fails, all are rolled back, and each is run by itself: none is the worse for another.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections import deque
from collections.abc import Callable
from typing import Any, Final, TypeAlias, TypeVar

from tallybook.core.errors import InvariantViolation, MetadataOutcomeUnknown, MetadataUnavailable
from tallybook.runtime.clock import Clock
from tallybook.runtime.rng import Rng
from tallybook.runtime.tasks import ThreadWorkers

from . import schema

T = TypeVar("T")
Job: TypeAlias = Callable[[sqlite3.Connection], T]
Transaction: TypeAlias = Callable[[sqlite3.Connection, Job[T]], T]

FIRST_PAUSE_SECONDS: Final = 0.002
LONGEST_PAUSE_SECONDS: Final = 0.032
SHORTEST_TRY_SECONDS: Final = 0.25
"""A last try before the deadline gets so long, or it would only be an outcome that nobody knows."""
CLOSE_SECONDS: Final = 10.0
MOST_TOGETHER: Final = 64
"""Jobs that share a commit: other processes wait for the lock that long."""


class _Busy(Exception):
    """The lock is taken; nothing was done."""


class _CommitFailed(Exception):
    """The commit reported an error: part of it may be on the disk."""


class _Write:
    """A job that is to be run with the write lock, and what came of it."""

    def __init__(self, job: Job[Any]) -> None:
        self.job = job
        self.wanted = True
        """Whether anybody waits for it: what was given up must not land an hour later."""
        self.done = False
        self._result: Any = None
        self._error: Exception | None = None

    def end(self, result: Any, error: Exception | None = None) -> None:
        """It took place, or failed."""
        self._result, self._error, self.done = result, error, True

    def result(self) -> Any:
        """What the job returned, or raised."""
        if self._error is not None:
            raise self._error
        return self._result


class Database:
    """The connection.

    Args:
        path: of the file; messages call it ``name``, its URI.
        create: make a new cluster where there is none.
        clock: for deadlines and pauses.
        rng: spreads the pauses of processes that wait for one lock.
        timeout_seconds: longest time that one operation may take.
        reads_only: no job writes.
    """

    def __init__(
        self, path: str, *, create: bool, clock: Clock, rng: Rng, timeout_seconds: float, reads_only: bool = False
    ) -> None:
        self.path = path
        self._create = create
        self._reads_only = reads_only
        self.name = "sqlite:///" + path.lstrip("/")
        self.clock = clock
        self.rng = rng
        self._timeout_seconds = timeout_seconds
        self._workers = ThreadWorkers(1, "tallybook-sqlite")
        self._connection: sqlite3.Connection | None = None
        self._waiting: deque[_Write] = deque()
        """Put there on the event loop, taken on the thread."""
        self._closed = False

    async def open(self) -> None:
        """Connect, and make a new cluster if that is wanted.

        Raises:
            NoSuchCluster: there is none, and none is to be made.
            InvalidConfig, DamagedFile, DiskFailed: the file cannot serve; see ``schema.connect``.
            MetadataUnavailable: it stays locked, or does not answer.
        """

        def job() -> None:
            try:
                if self._reads_only:
                    self._connection = schema.connect_reading(self.path, self.name)
                else:
                    self._connection = schema.connect(self.path, self.name, self.rng.uuid() if self._create else None)
            except sqlite3.Error as error:
                raise _Busy(str(error)) from error

        try:
            await self._retry(lambda: job, writing=False)
        except BaseException:
            await self.close()
            raise

    async def read(self, job: Job[T]) -> T:
        """Run ``job`` on one consistent state of the file.

        Raises:
            MetadataUnavailable: it was not answered in time.
            DamagedFile: the file is damaged.
        """
        return await self._retry(lambda: lambda: self._on_thread(_reading, job), writing=False)

    async def write(self, job: Job[T]) -> T:
        """Run ``job`` with the write lock, and make what it did durable.

        Raises:
            MetadataUnavailable: it did not take place.
            MetadataOutcomeUnknown: it was not answered in time, or the commit failed.
            DamagedFile: the file is damaged.
        """
        begun: list[_Write] = []

        def begin() -> Callable[[], T]:
            write = _Write(job)
            begun.append(write)
            self._waiting.append(write)
            return lambda: self._written(write)

        try:
            return await self._retry(begin, writing=True)
        finally:
            for write in begun:
                write.wanted = False

    async def _retry(self, begin: Callable[[], Callable[[], T]], *, writing: bool) -> T:
        deadline = self.clock.monotonic() + self._timeout_seconds
        pause = FIRST_PAUSE_SECONDS
        while True:
            if self._closed:
                raise MetadataUnavailable(f"{self.name}: this client is closed")
            try:
                async with asyncio.timeout(max(SHORTEST_TRY_SECONDS, deadline - self.clock.monotonic())):
                    return await self._workers.run(begin())
            except TimeoutError as error:
                # A job that has begun goes on, on its thread: the disk is stuck, and may come back.
                late = f"{self.name} did not answer within {self._timeout_seconds} s"
                raise (MetadataOutcomeUnknown(late) if writing else MetadataUnavailable(late)) from error
            except _CommitFailed as error:
                raise MetadataOutcomeUnknown(f"{self.name}: a commit failed: {error}") from error
            except _Busy as error:
                if self.clock.monotonic() + pause > deadline:
                    held = f"{self.name} was locked for {self._timeout_seconds} s"
                    raise MetadataUnavailable(held) from error
            await self.clock.sleep(self.rng.random() * pause)
            pause = min(2 * pause, LONGEST_PAUSE_SECONDS)

    def _written(self, write: _Write) -> Any:
        """What came of a job, which may have been run with earlier ones; else it is run now, with those that wait."""
        while write.wanted and not write.done:
            waiting = [self._waiting.popleft() for _ in range(min(len(self._waiting), MOST_TOGETHER))]
            self._write_together([each for each in waiting if each.wanted])
        return write.result()

    def _write_together(self, writes: list[_Write]) -> None:
        def all_jobs(connection: sqlite3.Connection) -> list[Any]:
            return [write.job(connection) for write in writes]

        try:
            results = self._on_thread(_writing, all_jobs)
        except (_Busy, _CommitFailed) as error:
            for write in writes:
                write.end(None, type(error)(str(error)))
        except Exception as error:  # noqa: BLE001 - told to whose job it was
            if len(writes) == 1:
                writes[0].end(None, error)
                return
            for write in writes:
                self._write_together([write])
        else:
            for write, result in zip(writes, results, strict=True):
                write.end(result)

    def _on_thread(self, transaction: Transaction[T], job: Job[T]) -> T:
        """Run ``job`` as a transaction, and say what went wrong in terms that do not mention SQLite."""
        if self._connection is None:
            raise InvariantViolation("a job was given to the SQLite thread before it had connected")
        try:
            return transaction(self._connection, job)
        except sqlite3.Error as error:
            if schema.is_busy(error):
                raise _Busy(str(error)) from error
            raise schema.as_tallybook_error(error, self.name) from error

    async def close(self) -> None:
        """Disconnect and end the thread. Jobs that wait are refused."""
        if self._closed:
            return
        self._closed = True
        try:
            async with asyncio.timeout(CLOSE_SECONDS):
                await self._workers.run(self._disconnect)
        except TimeoutError:
            # The thread is stuck in the disk. It ends when the disk answers; there is nothing to save.
            return
        await self._workers.close()

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()


def _reading(connection: sqlite3.Connection, job: Job[T]) -> T:
    connection.execute("BEGIN")
    try:
        return job(connection)
    finally:
        schema.roll_back(connection)


def _writing(connection: sqlite3.Connection, job: Job[T]) -> T:
    connection.execute("BEGIN IMMEDIATE")
    try:
        result = job(connection)
    except BaseException:
        schema.roll_back(connection)
        raise
    try:
        connection.execute("COMMIT")
    except sqlite3.Error as error:
        try:
            schema.roll_back(connection)
        except sqlite3.Error as second:
            raise _CommitFailed(f"{error}, and then {second}") from error
        if schema.is_busy(error):
            raise
        raise _CommitFailed(str(error)) from error
    return result
