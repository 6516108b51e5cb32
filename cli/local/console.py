"""Runs the console of ``tallybook up`` as a child process."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

from .gateway import run_server
from .launcher import LocalCluster

LOG_FILE: Final = "console.log"


@dataclass(frozen=True, slots=True)
class LocalConsole:
    """A running console."""

    process: asyncio.subprocess.Process
    url: str


@asynccontextmanager
async def run_console(cluster: LocalCluster, listen: str, processes: Sequence[str] = ()) -> AsyncIterator[LocalConsole]:
    """Run a console of ``cluster`` until the block is left.

    Args:
        processes: addresses of health and metrics of the processes besides bookies.

    Raises:
        RefusedToStart: it refused to start, or was not ready in time.
    """
    command = [sys.executable, "-P", "-m", "tallybook.cli", "console", "run", "--json", "--log-format", "text"]
    command += ["--metadata", cluster.metadata, "--listen", listen, "--parent-pipe", str(cluster.life_pipe)]
    if processes:
        command += ["--set", f"processes={','.join(processes)}"]
    async with run_server(cluster, "console", command, LOG_FILE) as (process, answer):
        yield LocalConsole(process, answer["ready"])
