"""A cluster on this machine: bookies as child processes, SQLite as the metadata store.

    DIR/metadata.db          the metadata
    DIR/bookie-1/            data directory of the first bookie
    DIR/bookie-1/run.json    {"format", "pid", "ports", "bookie_id"}, written by the bookie once it is ready
    DIR/bookie-1.log         what it logs
    DIR/gateway.log          what the gateway beside them logs, if there is one (local_gateway.py)

The children die with the launcher and are not started again when they die on their own. The
same directory started again is the same cluster.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self
from urllib.parse import quote

from tallybook.core.errors import (
    BookieUnavailable,
    DirectoryInUse,
    DiskFailed,
    InvalidArgument,
    TallybookError,
    error_from_wire,
)
from tallybook.metadata.record_format import check_format
from tallybook.metadata.record_json import NOT_UNDERSTOOD
from tallybook.runtime.clock import Clock
from tallybook.runtime.disk import DirectoryLock, Disk

from .exits import RefusedToStart, disk_failed
from .options import check_directory

START_SECONDS: Final = 60.0
"""How long a bookie may take from its start until it is ready; replay of a long journal included."""

STOP_SECONDS: Final = 60.0
"""How long a bookie may take to stop cleanly before it is killed."""

_LOCK_SECONDS: Final = 10.0
_POLL_SECONDS: Final = 0.02


@dataclass(slots=True)
class LocalBookie:
    """One bookie of the cluster, as its launcher sees it."""

    bookie_id: str
    directory: Path
    process: asyncio.subprocess.Process | None = None
    ports: Mapping[str, int] = field(default_factory=dict)

    @property
    def run_file(self) -> Path:
        """Where a ready bookie says how to reach it."""
        return self.directory / "run.json"

    @property
    def log_file(self) -> Path:
        """Where it logs."""
        return self.directory.with_suffix(".log")

    @property
    def pid(self) -> int:
        """Its process, 0 before the first start."""
        return 0 if self.process is None else self.process.pid

    @property
    def running(self) -> bool:
        """Whether its process lives, as far as is known."""
        return self.process is not None and self.process.returncode is None

    def forget(self) -> None:
        """Remove what a bookie that has died, or an earlier one, says of its process."""
        self.run_file.unlink(missing_ok=True)


class LocalCluster:
    """Bookies on this machine. Use it in ``async with``: leaving stops them cleanly.

    Args:
        directory: where everything lies; made if it is not there.
        count: how many bookies; ``None`` for as many as the directory has had, or three in a new one.
        options: further options of ``tallybook bookie run``, for every bookie.
    """

    def __init__(
        self, directory: Path, count: int | None, disk: Disk, clock: Clock, options: tuple[str, ...] = ()
    ) -> None:
        self.directory = Path(os.path.abspath(directory))
        self._disk = disk
        self._clock = clock
        self._options = options
        self._lock: DirectoryLock | None = None
        self._life: tuple[int, int] | None = None
        numbers = range(1, (count or max(_numbers(self.directory), default=3)) + 1)
        self.bookies = [LocalBookie(f"bookie-{number}", self.directory / f"bookie-{number}") for number in numbers]

    @property
    def metadata(self) -> str:
        """URI of the metadata store."""
        return f"sqlite://{quote(str(self.directory))}/metadata.db"

    @property
    def life_pipe(self) -> int:
        """Reading end of a pipe that closes when this process ends; children watch it (``parent.die_with_parent``)."""
        if self._life is None:
            raise InvalidArgument("the cluster is not open: use it in an 'async with' block")
        return self._life[0]

    @property
    def left_out(self) -> list[str]:
        """Bookies that the directory holds and that are not part of this run."""
        started = {bookie.bookie_id for bookie in self.bookies}
        return [name for name in map("bookie-{}".format, _numbers(self.directory)) if name not in started]

    async def __aenter__(self) -> Self:
        await self._claim()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self.stop()
        finally:
            if self._life is not None:
                for end in self._life:
                    os.close(end)
            if self._lock is not None:
                await self._lock.release()

    async def start(self) -> None:
        """Start every bookie that does not run; return when all are ready.

        Raises:
            RefusedToStart: one of them refused; the error is the one it gave.
            BookieUnavailable: one of them died, or was not ready in time.
        """
        stopped = [bookie for bookie in self.bookies if not bookie.running]
        for bookie in stopped:
            await self._spawn(bookie)
        await asyncio.gather(*(self._ready(bookie) for bookie in stopped))

    async def stop(self) -> None:
        """Stop every bookie cleanly; kill those that take too long."""
        await _stop([bookie.process for bookie in self.bookies if bookie.process is not None and bookie.running])

    async def stop_one(self, bookie: LocalBookie) -> None:
        """Stop one bookie cleanly; kill it if that takes too long."""
        if bookie.process is not None and bookie.running:
            await _stop([bookie.process])
            bookie.forget()

    async def kill(self, bookie: LocalBookie) -> None:
        """End one bookie as a crash would."""
        if bookie.process is not None:
            signal_process(bookie.process, signal.SIGKILL)
            await bookie.process.wait()
            bookie.forget()

    # -- inside -----------------------------------------------------------------------

    async def _claim(self) -> None:
        """Take the directory for this launcher, and wait until the children of an earlier one are gone."""
        try:
            check_directory(self.directory)
            await self._disk.make_directory(str(self.directory))
            self._lock = await self._disk.lock(str(self.directory))
            for bookie in self.bookies:
                check_directory(bookie.directory)
                await self._disk.make_directory(str(bookie.directory))
                await self._wait_until_free(bookie)
        except (TallybookError, OSError) as error:
            if self._lock is not None:
                await self._lock.release()
            cause = error if isinstance(error, TallybookError) else disk_failed(error)
            raise RefusedToStart(cause) from error
        self._life = os.pipe()

    async def _wait_until_free(self, bookie: LocalBookie) -> None:
        deadline = self._clock.monotonic() + _LOCK_SECONDS
        while True:
            try:
                lock = await self._disk.lock(str(bookie.directory))
            except DirectoryInUse:
                # A launcher that was killed takes its children along, but not in the same instant.
                if self._clock.monotonic() > deadline:
                    raise
                await self._clock.sleep(_POLL_SECONDS)
            else:
                bookie.forget()
                await lock.release()
                return

    async def _spawn(self, bookie: LocalBookie) -> None:
        bookie.ports = {}
        command = [sys.executable, "-P", "-m", "tallybook.cli", "bookie", "run", "--json", "--log-format", "text"]
        command += ["--id", bookie.bookie_id, "--data", str(bookie.directory), "--metadata", self.metadata]
        command += ["--parent-pipe", str(self.life_pipe), *self._options]
        bookie.process = await spawn(command, self.life_pipe, bookie.log_file)

    async def _ready(self, bookie: LocalBookie) -> None:
        deadline = self._clock.monotonic() + START_SECONDS
        while True:
            running = bookie.running
            found = read_run_file(bookie.run_file)
            if running and found is not None and found.get("pid") == bookie.pid:
                bookie.ports = found["ports"]
                return
            if not running:
                raise _why_it_ended(bookie)
            if self._clock.monotonic() > deadline:
                message = f"{bookie.bookie_id} was not ready within {START_SECONDS:.0f} s; see {bookie.log_file}"
                raise RefusedToStart(BookieUnavailable(message))
            await self._clock.sleep(_POLL_SECONDS)


async def _stop(running: Sequence[asyncio.subprocess.Process]) -> None:
    """Stop processes cleanly; kill those that take too long."""
    for process in running:
        signal_process(process, signal.SIGTERM)
    try:
        async with asyncio.timeout(STOP_SECONDS):
            for process in running:
                await process.wait()
    finally:
        for process in running:
            signal_process(process, signal.SIGKILL)
            await process.wait()


async def spawn(
    command: list[str], life_pipe: int, log_file: Path, stdout: int | None = None
) -> asyncio.subprocess.Process:
    """Start a child that logs to ``log_file`` and is given ``life_pipe``.

    Args:
        stdout: where its standard output goes, if not there.

    Raises:
        DiskFailed: the file cannot be written.
    """
    try:
        log = os.open(log_file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    except OSError as error:
        raise DiskFailed(f"{log_file} cannot be written: {error.strerror}") from error
    try:
        return await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=log if stdout is None else stdout,
            stderr=log,
            pass_fds=[life_pipe],
            # Ctrl-C in a terminal reaches the launcher alone, which then stops its children.
            start_new_session=True,
        )
    finally:
        os.close(log)


def read_run_file(path: Path) -> dict[str, Any] | None:
    """What a ready bookie wrote, or ``None`` where there is nothing that one writes.

    Raises:
        NewerFormat: a newer Tallybook did.
    """
    try:
        found = json.loads(path.read_bytes())
    except (FileNotFoundError, *NOT_UNDERSTOOD):
        return None
    check_format(str(path), found)
    return found if isinstance(found, dict) else None


def how_it_ended(returncode: int) -> str:
    """The end of a process in words."""
    if returncode < 0:
        return f"was killed by {signal.Signals(-returncode).name}"
    return f"ended with exit code {returncode}"


def _why_it_ended(bookie: LocalBookie) -> RefusedToStart:
    returncode = 0 if bookie.process is None else bookie.process.returncode or 0
    cause = last_error(bookie.log_file)
    if cause is not None:
        return RefusedToStart(cause)
    message = f"{bookie.bookie_id} {how_it_ended(returncode)} before it was ready; see {bookie.log_file}"
    return RefusedToStart(BookieUnavailable(message))


def last_error(log_file: Path) -> TallybookError | None:
    """The error that a process gave as its last words; ``None`` where they are no error, or not all of one."""
    lines = log_file.read_bytes().splitlines()
    if not lines or not lines[-1].startswith(b'{"error":'):
        return None
    try:
        told = json.loads(lines[-1])["error"]
        return error_from_wire(int(told["code"]), f"{log_file.stem}: {told['message']}")
    except NOT_UNDERSTOOD:
        return None


def _numbers(directory: Path) -> list[int]:
    """Of the bookies that the directory holds or has held: a log without its bookie means that the data is lost."""
    traces = [*(path.parent.name for path in directory.glob("bookie-*/cookie"))]
    traces += [path.stem for path in directory.glob("bookie-*.log")]
    found = (re.fullmatch(r"bookie-([1-9][0-9]{0,3})", trace) for trace in traces)
    return sorted({int(match[1]) for match in found if match is not None})


def signal_process(process: asyncio.subprocess.Process, number: int) -> None:
    """Send a signal to a process that may have ended."""
    try:
        process.send_signal(number)
    except ProcessLookupError:
        # It has ended meanwhile; who waits for it learns how.
        return
