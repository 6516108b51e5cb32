"""Child processes of a chaos run: bookies and loads, which are killed, stopped and restarted.

Only processes started here are signalled, by process id. All children die with this process, however it ends
(``cli/local/parent``).
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

from tallybook.cli.exits import Exit
from tallybook.cli.local.launcher import how_it_ended, read_run_file, signal_process
from tallybook.runtime.clock import Clock

from .proxy import TcpProxy

POLL_SECONDS: Final = 0.02
START_AGAIN_SECONDS: Final = 0.5

SMALL: Final = (
    "journal.segment_bytes=1MiB",
    "journal.segment_count=4",
    "journal.max_commit_bytes=256KiB",
    "storage.write_cache_bytes=2MiB",
    "storage.entry_log_bytes=4MiB",
    "storage.give_back_bytes=256KiB",
    "storage.flush_interval_ms=2000",
    "storage.min_free_bytes=1MiB",
    "admission.max_inflight_bytes=384KiB",
    "admission.max_queue_age_ms=300",
    "admission.max_cache_wait_ms=200",
    "admission.stream_credit_bytes=256KiB",
)
"""Tiny settings, so that checkpoints, reuse of journal segments and BUSY are frequent."""


class ChildProcess:
    """A child process that can be started again under the same name.

    Args:
        life_pipe: reading end of a pipe that closes with this process.
        log: file for its output, of all lives.
    """

    def __init__(self, name: str, life_pipe: int, log: Path) -> None:
        self.name = name
        self.log = log
        self._life_pipe = life_pipe
        self._process: asyncio.subprocess.Process | None = None

    @property
    def pid(self) -> int:
        """Process id, 0 before the first start."""
        return 0 if self._process is None else self._process.pid

    @property
    def running(self) -> bool:
        """Whether it runs, as far as known."""
        return self._process is not None and self._process.returncode is None

    @property
    def returncode(self) -> int | None:
        """Exit code of the last process."""
        return None if self._process is None else self._process.returncode

    async def spawn(self, *words: str) -> None:
        """Start ``python -m`` with these arguments."""
        with self.log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable, "-P", "-m", *words, "--parent-pipe", str(self._life_pipe),
                stdin=asyncio.subprocess.DEVNULL, stdout=log, stderr=log, pass_fds=[self._life_pipe],
                start_new_session=True, env=_environment(),
            )  # fmt: skip

    def signal(self, number: int) -> bool:
        """Send a signal; return whether a process was running."""
        if self._process is None or self._process.returncode is not None:
            return False
        signal_process(self._process, number)
        return True

    async def ended(self) -> int:
        """Wait until the process ends; return its exit code."""
        return 0 if self._process is None else await self._process.wait()

    async def kill(self) -> bool:
        """Send SIGKILL and wait; return whether a process was running."""
        killed = self.signal(signal.SIGKILL)
        await self.ended()
        return killed

    def last_words(self) -> str:
        """Last line of its output."""
        lines = self.log.read_bytes().splitlines() if self.log.exists() else []
        return lines[-1].decode(errors="replace") if lines else ""


class BookieProcess:
    """A bookie process that is restarted whenever it ends.

    Clients reach it through ``proxy`` only, and it reaches ZooKeeper through ``store_proxy``.

    Args:
        wrong: called when it ended without being killed or stopped.
    """

    def __init__(
        self,
        child: ChildProcess,
        directory: Path,
        root: str,
        proxy: TcpProxy,
        store_proxy: TcpProxy,
        clock: Clock,
        wrong: Callable[[str], None],
    ) -> None:
        self.child = child
        self.proxy = proxy
        self.store_proxy = store_proxy
        self.starts = 0
        self._directory = directory
        self._metadata = f"zk://{store_proxy.address}{root}"
        self._clock = clock
        self._wrong = wrong
        self._killed = False
        self._down_seconds = 0.0
        self._stopping = False

    @property
    def name(self) -> str:
        """The bookie's id."""
        return self.child.name

    @property
    def ready(self) -> bool:
        """Whether it is serving."""
        return self.child.running and self._port() is not None

    async def keep(self) -> None:
        """Start it, and restart it whenever it ends, until ``stop``."""
        while not self._stopping:
            self._killed = False
            self.starts += 1
            await self.child.spawn(*self._words())
            if await self._until_ready():
                await self.child.ended()
            self.proxy.target = None
            if not self._killed and not self._stopping:
                self._check_exit()
            await self._clock.sleep(self._down_seconds if self._killed else START_AGAIN_SECONDS)

    async def kill(self, down_seconds: float) -> bool:
        """Send SIGKILL; it restarts after ``down_seconds``. Return whether it was running."""
        if not self.child.running:
            return False
        self._killed, self._down_seconds = True, down_seconds
        return await self.child.kill()

    async def stop(self) -> int:
        """Stop it with SIGTERM, for good; return its exit code."""
        self._stopping = True
        self.child.signal(signal.SIGCONT)
        self.child.signal(signal.SIGTERM)
        return await self.child.ended()

    async def end(self) -> None:
        """Kill it, for good."""
        self._stopping = True
        await self.child.kill()

    async def _until_ready(self) -> bool:
        while self.child.running:
            port = self._port()
            if port is not None:
                self.proxy.target = f"127.0.0.1:{port}"
                return True
            await self._clock.sleep(POLL_SECONDS)
        return False

    def _port(self) -> int | None:
        found = read_run_file(self._directory / "run.json")
        return found["ports"]["grpc"] if found is not None and found["pid"] == self.child.pid else None

    def _check_exit(self) -> None:
        """Report an unexpected end; only a start without ZooKeeper may fail."""
        code, words = self.child.returncode or 0, self.child.last_words()
        excused = code == Exit.REFUSED_TO_START and '"type": "Metadata' in words
        if not excused:
            self._wrong(f"{self.name} {how_it_ended(code)}: {words[:400]}")

    def _words(self) -> list[str]:
        words = ["tallybook.cli", "bookie", "run", "--json", "--log-format", "text"]
        words += ["--id", self.name, "--data", str(self._directory), "--metadata", self._metadata]
        words += ["--advertise", self.proxy.address]
        return [*words, *(word for setting in SMALL for word in ("--set", setting))]


def remove(directory: Path) -> None:
    """Remove the directory of a run."""
    shutil.rmtree(directory)


def _environment() -> dict[str, str]:
    """Environment of a child, without variables that would change what a command does."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("TALLYBOOK", "GRPC_"))}
