"""Runs the gateway of ``tallybook up`` as a child process."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tallybook.core.errors import BookieUnavailable

from ..exits import RefusedToStart
from .launcher import START_SECONDS, STOP_SECONDS, LocalCluster, how_it_ended, last_error, signal_process, spawn

LOG_FILE: Final = "gateway.log"


@dataclass(frozen=True, slots=True)
class LocalGateway:
    """A running gateway."""

    process: asyncio.subprocess.Process
    address: str
    http_address: str


@asynccontextmanager
async def run_gateway(cluster: LocalCluster, listen: str) -> AsyncIterator[LocalGateway]:
    """Run a gateway of ``cluster`` until the block is left.

    Raises:
        RefusedToStart: it refused to start, or was not ready in time.
    """
    command = [sys.executable, "-P", "-m", "tallybook.cli", "gateway", "run", "--json", "--log-format", "text"]
    command += ["--metadata", cluster.metadata, "--listen", listen, "--parent-pipe", str(cluster.life_pipe)]
    async with run_server(cluster, "gateway", command, LOG_FILE) as (process, answer):
        yield LocalGateway(process, answer["ready"], answer["http"])


@asynccontextmanager
async def run_server(
    cluster: LocalCluster, what: str, command: list[str], log_file: str
) -> AsyncIterator[tuple[asyncio.subprocess.Process, dict[str, Any]]]:
    """Run a server as a child process until the block is left; yields the process and its ready line.

    Raises:
        RefusedToStart: it refused to start, or was not ready in time.
    """
    log = cluster.directory / log_file
    process = await spawn(command, cluster.life_pipe, log, stdout=asyncio.subprocess.PIPE)
    try:
        yield process, json.loads(await _first_line(what, process, log))
    finally:
        await _stop(process)


async def _first_line(what: str, process: asyncio.subprocess.Process, log: Path) -> bytes:
    """The line that the server prints when it is ready."""
    if process.stdout is None:
        return b""
    try:
        async with asyncio.timeout(START_SECONDS):
            line = await process.stdout.readline()
            if line:
                return line
            returncode = await process.wait()
    except TimeoutError:
        message = f"the {what} was not ready within {START_SECONDS:.0f} s; see {log}"
        raise RefusedToStart(BookieUnavailable(message)) from None
    message = f"the {what} {how_it_ended(returncode)} before it was ready; see {log}"
    raise RefusedToStart(last_error(log) or BookieUnavailable(message))


async def _stop(process: asyncio.subprocess.Process) -> None:
    """Stop it cleanly; kill it if it takes too long."""
    signal_process(process, signal.SIGTERM)
    try:
        async with asyncio.timeout(STOP_SECONDS):
            await process.wait()
    except TimeoutError:
        return
    finally:
        signal_process(process, signal.SIGKILL)
        await process.wait()
