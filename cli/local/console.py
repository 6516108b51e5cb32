"""The console that ``tallybook up`` runs beside its bookies: a child process, like them."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

from .launcher import LocalCluster
from .local_gateway import served_by

LOG_FILE: Final = "console.log"


@dataclass(frozen=True, slots=True)
class LocalConsole:
    """A console that serves."""

    process: asyncio.subprocess.Process
    url: str


@asynccontextmanager
async def console_beside(
    cluster: LocalCluster, listen: str, processes: Sequence[str] = ()
) -> AsyncIterator[LocalConsole]:
    """Run a console of ``cluster`` until the block is left.

    Args:
        processes: addresses of health and metrics of what runs besides bookies.

    Raises:
        RefusedToStart: it refused, or was not ready in time.
    """
    command = [sys.executable, "-P", "-m", "tallybook.cli", "console", "run", "--json", "--log-format", "text"]
    command += ["--metadata", cluster.metadata, "--listen", listen, "--parent-pipe", str(cluster.life_pipe)]
    if processes:
        command += ["--set", f"processes={','.join(processes)}"]
    async with served_by(cluster, "console", command, LOG_FILE) as (process, told):
        yield LocalConsole(process, told["ready"])
