"""Bookies, each a process of its own that can be killed and started again, and what they say of themselves.

``tallybook up`` does not start a bookie again that died, and its bookies all lie on one disk. Benchmarks of what
happens to a bookie need both.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from tallybook.core.errors import BookieUnavailable, PeerError
from tallybook.runtime.metrics_text import fetch_metrics

from .programs import ProgramFailed, Server, module

START_SECONDS: Final = 120.0
_POLL_SECONDS: Final = 0.05


class Bookie:
    """One bookie: one process after another on the same directory.

    Args:
        directory: its data.
        settings: ``name=value``, as for ``tallybook bookie run --set``.
        logs: directory for what it logs; that in which its own is, if not given.
        environment: of its processes; that of this one, if not given.
    """

    def __init__(
        self,
        name: str,
        directory: Path,
        metadata: str,
        settings: Sequence[str] = (),
        logs: Path | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        self.directory = directory
        self._metadata = metadata
        self._output = (logs or directory.parent) / f"{name}.out"
        self._settings = settings
        self.environment = environment
        self._server: Server | None = None

    @property
    def pid(self) -> int:
        """Of its present process.

        Raises:
            ProgramFailed: it has none.
        """
        return self._running().pid

    @property
    def ended(self) -> int | None:
        """How its process ended, if it did so by itself."""
        return None if self._server is None else self._server.ended

    def start(self) -> None:
        """Start it; it is not ready yet."""
        self.directory.mkdir(parents=True, exist_ok=True)
        options = ["--json", "--log-format", "text", "--id", self.name, "--data", str(self.directory)]
        options += ["--metadata", self._metadata, *(word for each in self._settings for word in ("--set", each))]
        self._server = Server(module("tallybook.cli", "bookie", "run", *options), self._output, self.environment)

    def ready(self) -> None:
        """Wait until it serves.

        Raises:
            ProgramFailed: it ended instead.
            BookieUnavailable: it took too long.
        """
        deadline = time.monotonic() + START_SECONDS
        while not self.serves:
            if self.ended is not None:
                log = self._output.with_suffix(".log").read_text()
                raise ProgramFailed(f"{self.name} ended with {self.ended}: {log.strip()[-2000:]}")
            if time.monotonic() > deadline:
                raise BookieUnavailable(f"{self.name} was not ready within {START_SECONDS:.0f} s")
            time.sleep(_POLL_SECONDS)

    @property
    def serves(self) -> bool:
        """Whether its present process has said that it is ready."""
        return self._server is not None and self._said().get("pid") == self._server.pid

    @property
    def http_port(self) -> int:
        """Where it shows its metrics, once it is ready."""
        port: int = self._said()["ports"]["http"]
        return port

    def metrics(self) -> dict[str, float]:
        """What it shows.

        Raises:
            ProgramFailed: it does not answer.
        """
        try:
            return fetch_metrics(self.http_port)
        except PeerError as error:
            raise ProgramFailed(f"{self.name} shows no metrics: {error}") from error

    def kill(self) -> None:
        """End it as a crash would."""
        self._running().kill()
        self._server = None

    def stop(self) -> None:
        """End it cleanly, if it runs."""
        if self._server is not None:
            self._server.stop()
            self._server = None

    def _running(self) -> Server:
        if self._server is None:
            raise ProgramFailed(f"{self.name} does not run")
        return self._server

    def _said(self) -> dict[str, Any]:
        try:
            found: dict[str, Any] = json.loads((self.directory / "run.json").read_bytes())
        except FileNotFoundError:
            return {}
        return found


@contextmanager
def bookies(directory: Path, count: int, settings: Sequence[str] = ()) -> Iterator[list[Bookie]]:
    """So many bookies, ready; they are stopped in the end, and their data stay."""
    found = [Bookie(f"b{each}", directory / f"b{each}", metadata_in(directory), settings) for each in range(count)]
    try:
        for bookie in found:
            bookie.start()
        for bookie in found:
            bookie.ready()
        yield found
    finally:
        for bookie in found:
            bookie.stop()


def metadata_in(directory: Path) -> str:
    """URI of the metadata store of the bookies in a directory."""
    return f"sqlite://{quote(str(directory.resolve()))}/metadata.db"


def forget_pages(directory: Path) -> None:
    """Have the kernel forget what it keeps of all files below a directory, so that the next read goes to the disk."""
    # Only what is written can be forgotten.
    os.sync()
    for path in filter(Path.is_file, directory.rglob("*")):
        try:
            descriptor = os.open(path, os.O_RDONLY)
        except FileNotFoundError:
            # Bookies remove logs while this goes on.
            continue
        try:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)
