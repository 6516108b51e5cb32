"""Bookie processes that can be killed and restarted, and their metrics.

``tallybook up`` does not restart dead bookies and has all of them on one disk; benchmarks of failures need both.
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
from tallybook.runtime.http.scrape import fetch_metrics

from .programs import ProgramFailed, Server, module

START_SECONDS: Final = 120.0
_POLL_SECONDS: Final = 0.05


class RestartableBookie:
    """One bookie: one process after another on the same directory.

    Args:
        directory: data directory.
        settings: ``name=value``, as for ``tallybook bookie run --set``.
        logs: directory of its log; default: the parent of its data directory.
        environment: environment of its processes; default: that of this process.
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
        """Id of its current process.

        Raises:
            ProgramFailed: it does not run.
        """
        return self._running().pid

    @property
    def ended(self) -> int | None:
        """Exit code, if its process ended by itself."""
        return None if self._server is None else self._server.ended

    def start(self) -> None:
        """Start it, without waiting until it is ready."""
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
        """Whether its current process has reported that it is ready."""
        return self._server is not None and self._said().get("pid") == self._server.pid

    @property
    def http_port(self) -> int:
        """Port of its metrics; valid when it is ready."""
        port: int = self._said()["ports"]["http"]
        return port

    def metrics(self) -> dict[str, float]:
        """Its metrics.

        Raises:
            ProgramFailed: it does not respond.
        """
        try:
            return fetch_metrics(self.http_port)
        except PeerError as error:
            raise ProgramFailed(f"cannot read metrics of {self.name}: {error}") from error

    def kill(self) -> None:
        """Kill it with SIGKILL."""
        self._running().kill()
        self._server = None

    def stop(self) -> None:
        """Stop it cleanly, if it runs."""
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
def bookies(directory: Path, count: int, settings: Sequence[str] = ()) -> Iterator[list[RestartableBookie]]:
    """Start ``count`` bookies and wait until they are ready; stops them at the end and keeps their data."""
    found = [
        RestartableBookie(f"b{each}", directory / f"b{each}", metadata_in(directory), settings) for each in range(count)
    ]
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
    """Drop the page cache of all files below a directory, so that the next read goes to the disk."""
    # Dirty pages cannot be dropped.
    os.sync()
    for path in filter(Path.is_file, directory.rglob("*")):
        try:
            descriptor = os.open(path, os.O_RDONLY)
        except FileNotFoundError:
            # A bookie has removed the log.
            continue
        try:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)
