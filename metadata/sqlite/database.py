"""One connection to the SQLite file, on its own thread.

Every SQLite call may wait for the disk, so none runs on the event loop. A *job* is a function of the connection that
runs on the thread as one transaction. If another process has the write lock, the job is retried after a random pause,
until the deadline. Jobs that arrive during a commit share the next one. If one of them fails, all are rolled back, and
each runs in its own transaction, so no job fails because of another.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections import deque
from collections.abc import Callable
from typing import Any, Final, TypeAlias, TypeVar

from tallybook.core.errors import InvariantViolation, MetadataOutcomeUnknown, MetadataUnavailable
from tallybook.runtime.clock import Clock
from tallybook.runtime.concurrency.backoff import Backoff
from tallybook.runtime.rng import Rng
from tallybook.runtime.tasks import ThreadWorkers

from . import schema

T = TypeVar("T")
Job: TypeAlias = Callable[[sqlite3.Connection], T]
TransactionRunner: TypeAlias = Callable[[sqlite3.Connection, Job[T]], T]

FIRST_PAUSE_SECONDS: Final = 0.002
MAX_PAUSE_SECONDS: Final = 0.032
MIN_TRY_SECONDS: Final = 0.25
"""Minimum time of the last attempt before the deadline: a shorter one would only give an unknown outcome."""
CLOSE_SECONDS: Final = 10.0
MAX_JOBS_PER_COMMIT: Final = 64
"""Maximum jobs per commit: other processes wait for the lock that long."""


class _Busy(Exception):
    """Another process has the lock; nothing was done."""


class _CommitFailed(Exception):
    """The commit reported an error: part of it may be on disk."""


class _Write:
    """A job that needs the write lock, and its result."""

    def __init__(self, job: Job[Any]) -> None:
        self.job = job
        self.wanted = True
        """Whether the caller still waits: a job given up must not be applied an hour later."""
        self.done = False
        self._result: Any = None
        self._error: Exception | None = None

    def end(self, result: Any, error: Exception | None = None) -> None:
        """Set the result or the error."""
        self._result, self._error, self.done = result, error, True

    def result(self) -> Any:
        """Return the job's result, or raise its error."""
        if self._error is not None:
            raise self._error
        return self._result


class Database:
    """The connection.

    Args:
        path: of the file; in messages it is ``name``, its URI.
        create: create a new cluster if there is none.
        clock: for deadlines and pauses.
        rng: jitter between processes that wait for one lock.
        timeout_seconds: deadline of one operation.
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
        """Filled on the event loop, emptied on the thread."""
        self._closed = False

    async def open(self) -> None:
        """Connect, and create a new cluster if requested.

        Raises:
            NoSuchCluster: there is none, and none is to be created.
            InvalidConfig, DamagedFile, DiskFailed: the file is unusable; see ``schema.connect``.
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
        """Run ``job`` on a consistent snapshot of the file.

        Raises:
            MetadataUnavailable: it did not finish in time.
            DamagedFile: the file is damaged.
        """
        return await self._retry(lambda: lambda: self._on_thread(_reading, job), writing=False)

    async def write(self, job: Job[T]) -> T:
        """Run ``job`` with the write lock, and commit durably.

        Raises:
            MetadataUnavailable: nothing was changed.
            MetadataOutcomeUnknown: it did not finish in time, or the commit failed.
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
        backoff = Backoff(
            self.clock, self.rng, first_s=FIRST_PAUSE_SECONDS, longest_s=MAX_PAUSE_SECONDS, deadline=deadline
        )
        while True:
            if self._closed:
                raise MetadataUnavailable(f"{self.name}: this client is closed")
            try:
                async with asyncio.timeout(max(MIN_TRY_SECONDS, deadline - self.clock.monotonic())):
                    return await self._workers.run(begin())
            except TimeoutError as error:
                # A job that has begun continues on its thread: the disk hangs, and may recover.
                late = f"{self.name} did not answer within {self._timeout_seconds} s"
                raise (MetadataOutcomeUnknown(late) if writing else MetadataUnavailable(late)) from error
            except _CommitFailed as error:
                raise MetadataOutcomeUnknown(f"{self.name}: a commit failed: {error}") from error
            except _Busy as error:
                if not await backoff.pause():
                    held = f"{self.name} was locked for {self._timeout_seconds} s"
                    raise MetadataUnavailable(held) from error

    def _written(self, write: _Write) -> Any:
        """Result of a job. Runs it now, together with other waiting jobs, unless an earlier job has run it."""
        while write.wanted and not write.done:
            waiting = [self._waiting.popleft() for _ in range(min(len(self._waiting), MAX_JOBS_PER_COMMIT))]
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
        except Exception as error:  # noqa: BLE001 - reported to the job's caller
            if len(writes) == 1:
                writes[0].end(None, error)
                return
            for write in writes:
                self._write_together([write])
        else:
            for write, result in zip(writes, results, strict=True):
                write.end(result)

    def _on_thread(self, transaction: TransactionRunner[T], job: Job[T]) -> T:
        """Run ``job`` as a transaction, and map SQLite errors to Tallybook errors."""
        if self._connection is None:
            raise InvariantViolation("a job was given to the SQLite thread before it had connected")
        try:
            return transaction(self._connection, job)
        except sqlite3.Error as error:
            if schema.is_busy(error):
                raise _Busy(str(error)) from error
            raise schema.as_tallybook_error(error, self.name) from error

    async def close(self) -> None:
        """Disconnect and end the thread. Waiting jobs are refused."""
        if self._closed:
            return
        self._closed = True
        try:
            async with asyncio.timeout(CLOSE_SECONDS):
                await self._workers.run(self._disconnect)
        except TimeoutError:
            # The disk hangs. The thread ends when it answers; no data is at risk.
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
