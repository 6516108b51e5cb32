"""Runs a cluster on this machine: bookies as child processes, SQLite as the metadata store.

    DIR/metadata.db          the metadata
    DIR/bookie-1/            data directory of the first bookie
    DIR/bookie-1/run.json    {"format", "pid", "ports", "bookie_id"}, written by the bookie once it is ready
    DIR/bookie-1.log         its log
    DIR/gateway.log          the log of the gateway (gateway.py)

Children end with the launcher, and are not restarted if they die. Starting with the same directory again continues the
same cluster.
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

import uvicorn  # noqa: F401 - the processes that it starts need it: better to fail before they do

from tallybook.core.error_codes import error_from_wire
from tallybook.core.errors import BookieUnavailable, DirectoryInUse, DiskFailed, InvalidArgument, TallybookError
from tallybook.metadata.records.format import check_format
from tallybook.metadata.records.json_errors import DECODE_ERRORS
from tallybook.runtime.clock import Clock
from tallybook.runtime.disk.port import DirectoryLock, Disk

from ..exits import RefusedToStart, disk_failed
from ..options import check_directory

START_SECONDS: Final = 60.0
"""Time-out for the start of a bookie, including the replay of a long journal."""

STOP_SECONDS: Final = 60.0
"""Time-out for a clean stop; then the bookie is killed."""

_LOCK_SECONDS: Final = 10.0
_POLL_SECONDS: Final = 0.02


@dataclass(slots=True)
class LocalBookie:
    """A bookie of the local cluster and its process."""

    bookie_id: str
    directory: Path
    process: asyncio.subprocess.Process | None = None
    ports: Mapping[str, int] = field(default_factory=dict)

    @property
    def run_file(self) -> Path:
        """The file in which a ready bookie writes its pid and ports."""
        return self.directory / "run.json"

    @property
    def log_file(self) -> Path:
        """Its log file."""
        return self.directory.with_suffix(".log")

    @property
    def pid(self) -> int:
        """The pid of its process; 0 before the first start."""
        return 0 if self.process is None else self.process.pid

    @property
    def running(self) -> bool:
        """Whether its process runs, as far as is known."""
        return self.process is not None and self.process.returncode is None

    def forget(self) -> None:
        """Remove the run file of a process that has ended."""
        self.run_file.unlink(missing_ok=True)


class LocalCluster:
    """A cluster of bookies on this machine. Use it in ``async with``: leaving the block stops them cleanly.

    Args:
        directory: for all data; created if it does not exist.
        count: number of bookies; ``None``: as many as the directory has had, or three in a new one.
        options: more options of ``tallybook bookie run``, for every bookie.
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
        """Read end of a pipe that closes when this process ends; children watch it (``parent.die_with_parent``)."""
        if self._life is None:
            raise InvalidArgument("the cluster is not open: use it in an 'async with' block")
        return self._life[0]

    @property
    def left_out(self) -> list[str]:
        """Bookies in the directory that are not started."""
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
            RefusedToStart: a bookie refused to start, with its own error, or died, or was not ready in time.
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
        """Kill one bookie with SIGKILL."""
        if bookie.process is not None:
            signal_process(bookie.process, signal.SIGKILL)
            await bookie.process.wait()
            bookie.forget()

    # -- inside -----------------------------------------------------------------------

    async def _claim(self) -> None:
        """Lock the directory, and wait until the children of an earlier launcher have ended."""
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
                # The children of a launcher that was killed end a moment later.
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
    """Start a child process that logs to ``log_file`` and inherits ``life_pipe``.

    Args:
        stdout: its standard output; ``None``: the log file.

    Raises:
        DiskFailed: the log file cannot be written.
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
            # Ctrl-C in a terminal must reach only the launcher, which then stops its children.
            start_new_session=True,
        )
    finally:
        os.close(log)


def read_run_file(path: Path) -> dict[str, Any] | None:
    """The contents of a run file; ``None`` if there is none, or it cannot be decoded.

    Raises:
        NewerFormat: a newer Tallybook has written it.
    """
    try:
        found = json.loads(path.read_bytes())
    except (FileNotFoundError, *DECODE_ERRORS):
        return None
    check_format(str(path), found)
    return found if isinstance(found, dict) else None


def how_it_ended(returncode: int) -> str:
    """The exit status of a process, as text."""
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
    """The error in the last line of a log; ``None`` if that is not a complete error object."""
    lines = log_file.read_bytes().splitlines()
    if not lines or not lines[-1].startswith(b'{"error":'):
        return None
    try:
        error = json.loads(lines[-1])["error"]
        return error_from_wire(int(error["code"]), f"{log_file.stem}: {error['message']}")
    except DECODE_ERRORS:
        return None


def _numbers(directory: Path) -> list[int]:
    """The numbers of bookies that are or were in the directory. A log without a data directory: its data is lost."""
    traces = [*(path.parent.name for path in directory.glob("bookie-*/cookie"))]
    traces += [path.stem for path in directory.glob("bookie-*.log")]
    found = (re.fullmatch(r"bookie-([1-9][0-9]{0,3})", trace) for trace in traces)
    return sorted({int(match[1]) for match in found if match is not None})


def signal_process(process: asyncio.subprocess.Process, number: int) -> None:
    """Send a signal to a process that may have ended."""
    try:
        process.send_signal(number)
    except ProcessLookupError:
        # It has ended meanwhile.
        return
