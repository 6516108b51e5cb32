"""The processes of a run: bookies and loads, started, killed, stopped and started again.

Only what was started here is ever signalled, by its process id. All children die with this
process, however it ends (``cli.parent``).
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
from tallybook.cli.launcher import how_it_ended, read_run_file, signal_process
from tallybook.runtime.clock import Clock

from .proxy import Proxy

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
"""Settings with which everything happens all the time: checkpoints, journal segments used again, BUSY."""


class Child:
    """One process after another, of one name.

    Args:
        life_pipe: reading end of a pipe that closes with this process.
        log: where it prints; lives follow each other there.
    """

    def __init__(self, name: str, life_pipe: int, log: Path) -> None:
        self.name = name
        self.log = log
        self._life_pipe = life_pipe
        self._process: asyncio.subprocess.Process | None = None

    @property
    def pid(self) -> int:
        """Of the present process, 0 before the first."""
        return 0 if self._process is None else self._process.pid

    @property
    def running(self) -> bool:
        """Whether there is one, as far as is known."""
        return self._process is not None and self._process.returncode is None

    @property
    def returncode(self) -> int | None:
        """How the last one ended."""
        return None if self._process is None else self._process.returncode

    async def spawn(self, *words: str) -> None:
        """Start ``python -m`` with these words."""
        with self.log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable, "-P", "-m", *words, "--parent-pipe", str(self._life_pipe),
                stdin=asyncio.subprocess.DEVNULL, stdout=log, stderr=log, pass_fds=[self._life_pipe],
                start_new_session=True, env=_environment(),
            )  # fmt: skip

    def signal(self, number: int) -> bool:
        """Send it a signal; whether there was anybody to get it."""
        if self._process is None or self._process.returncode is not None:
            return False
        signal_process(self._process, number)
        return True

    async def ended(self) -> int:
        """Wait for the end of the present process; its exit code."""
        return 0 if self._process is None else await self._process.wait()

    async def kill(self) -> bool:
        """End it as a crash would, stopped or not; whether there was anything to end."""
        killed = self.signal(signal.SIGKILL)
        await self.ended()
        return killed

    def last_words(self) -> str:
        """The end of what it printed."""
        lines = self.log.read_bytes().splitlines() if self.log.exists() else []
        return lines[-1].decode(errors="replace") if lines else ""


class BookieProcess:
    """A bookie that is started again whenever it was killed.

    Clients reach it through ``proxy`` only, and it reaches ZooKeeper through ``store_proxy``.

    Args:
        wrong: told of an end that nobody brought about.
    """

    def __init__(
        self,
        child: Child,
        directory: Path,
        root: str,
        proxy: Proxy,
        store_proxy: Proxy,
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
        """Whether the present process serves."""
        return self.child.running and self._port() is not None

    async def keep(self) -> None:
        """Start it, and again whenever it has ended, until ``stop``."""
        while not self._stopping:
            self._killed = False
            self.starts += 1
            await self.child.spawn(*self._words())
            if await self._until_ready():
                await self.child.ended()
            self.proxy.target = None
            if not self._killed and not self._stopping:
                self._look_at_its_end()
            await self._clock.sleep(self._down_seconds if self._killed else START_AGAIN_SECONDS)

    async def kill(self, down_seconds: float) -> bool:
        """SIGKILL; it is started again after ``down_seconds``. Whether it ran."""
        if not self.child.running:
            return False
        self._killed, self._down_seconds = True, down_seconds
        return await self.child.kill()

    async def stop(self) -> int:
        """End it cleanly and for good; its exit code."""
        self._stopping = True
        self.child.signal(signal.SIGCONT)
        self.child.signal(signal.SIGTERM)
        return await self.child.ended()

    async def end(self) -> None:
        """End it at once and for good."""
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

    def _look_at_its_end(self) -> None:
        """It may give up while it starts, if ZooKeeper is out of reach; nothing else may end it."""
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
    """Remove what a run has left, all of it."""
    shutil.rmtree(directory)


def _environment() -> dict[str, str]:
    """Of a child: nothing that would change what a command does."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("TALLYBOOK", "GRPC_"))}
