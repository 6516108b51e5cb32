"""Driver of a peer, through its script ``peers/NAME/peer``."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ..equipment.programs import run_json_lines
from ..gates import BOOKKEEPER, NATS, REDIS, Figures
from .system import SLACK_SECONDS, START_SECONDS
from .workloads import BenchWorkload, Pace

SCRIPTS: Final = Path(__file__).parent.parent / "peers"
STOP_SECONDS: Final = 120.0


@dataclass(frozen=True, slots=True)
class PeerKind:
    """A peer, and its counterpart in Tallybook.

    Args:
        title: its name in tables.
        bookies: number of bookies of Tallybook that are compared with it, and of copies of each entry.
        guarantee: what a confirmation of the peer means.
    """

    title: str
    bookies: int
    guarantee: str


KINDS: Final = {
    BOOKKEEPER: PeerKind(
        "BookKeeper",
        3,
        "Apache BookKeeper 4.17.3: three bookies and a ZooKeeper; ledgers with E = Qw = 3 and Qa = 2, synced journals, "
        "the v2 protocol. A confirmed entry is on the disks of two of three bookies. A ledger has one writer: opening "
        "the ledger elsewhere fences it.",
    ),
    NATS: PeerKind(
        "NATS JetStream",
        3,
        "NATS Server 2.15.3: three servers; streams with three replicas in files, `sync_interval: always`. A confirmed "
        "message is in the Raft logs of two of the servers, and both have called `fsync`. Any client may publish to "
        "a stream: a writer is not fenced, but can name the sequence number that it expects. Without `always`, a "
        "server calls `fsync` every two minutes.",
    ),
    REDIS: PeerKind(
        "Redis Streams",
        1,
        "Redis 7, one server: `XADD` with `appendonly yes` and `appendfsync always`, no snapshots. A confirmed entry "
        "is in the append-only file, for which the server has called `fdatasync`: **one copy on one disk**, without "
        "checksums, and all entries must fit into memory. There are no replicas, since replication in Redis is "
        "asynchronous: a replica does not sync its file before the client gets its answer. It is compared with one "
        "bookie and ledgers with E = Qw = Qa = 1.",
    ),
}
"""The peers by name."""


class ScriptedPeer:
    """A peer that its script starts, loads and stops.

    Args:
        name: name of its folder in ``peers/``.
        directory: programs, logs and data; the programs are kept from one start to the next.
        port: the first of up to six.
    """

    def __init__(self, name: str, directory: Path, port: int) -> None:
        self.name = name
        self._script = SCRIPTS / name / "peer"
        self._directory = directory
        self._environment = {**os.environ, f"{name.upper()}_PORT": str(port)}

    def start(self) -> None:
        """Start with empty data; the first start downloads it."""
        self._directory.mkdir(parents=True, exist_ok=True)
        self._run("start", timeout_seconds=START_SECONDS)

    def measure(self, workload: BenchWorkload, pace: Pace, rate: float) -> Figures:
        """Run a workload of adds."""
        limit = pace.seconds + SLACK_SECONDS
        arguments = [workload.entry_bytes, workload.ledgers, workload.window, pace.seconds, rate]
        return self._run("write", *arguments, timeout_seconds=limit)[0]

    def stop(self) -> None:
        """End the processes and remove the data."""
        self._run("stop", timeout_seconds=STOP_SECONDS)
        shutil.rmtree(self._directory / "data", ignore_errors=True)

    def _run(self, verb: str, *arguments: float, timeout_seconds: float) -> list[dict[str, Any]]:
        command = [str(self._script), verb, str(self._directory), *map(str, arguments)]
        return run_json_lines(command, timeout_seconds=timeout_seconds, environment=self._environment)
