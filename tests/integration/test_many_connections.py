"""Ten thousand connections to one real bookie with default limits: clients with work are served meanwhile."""

import asyncio
import os
import resource
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tallybook.bench.equipment.proc import memory_bytes
from tallybook.client.client import Client
from tallybook.core.limits import KIB
from tallybook.runtime.process_memory.descriptors import raise_descriptor_limit

from .grpc_port import PREFACE

CONNECTIONS = 10_000
OWN_DESCRIPTORS = 500
DEADLINE_SECONDS = 120
MOST_GROWTH_BYTES = CONNECTIONS * 20 * KIB
"""The memory limit for all of them, as on the page of bad input; one takes 16 KiB."""


@pytest.fixture
def descriptors() -> Iterator[None]:
    """A descriptor limit for that many sockets in this process."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    # As far as the hard limit permits: the soft limit can be raised.
    if raise_descriptor_limit() < CONNECTIONS + OWN_DESCRIPTORS:
        pytest.skip(f"this process may not have {CONNECTIONS} files open (ulimit -Hn)")
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def open_files(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


@contextmanager
def connected(address: str, count: int) -> Iterator[list[socket.socket]]:
    """So many connections that have begun to speak and say nothing more."""
    host, port = address.rsplit(":", 1)
    with ExitStack() as stack:
        made = []
        for number in range(count):
            made.append(stack.enter_context(socket.create_connection((host, int(port)), DEADLINE_SECONDS)))
            made[-1].sendall(PREFACE[: number % len(PREFACE)])
        yield made


async def test_ten_thousand_connections_that_say_nothing_leave_a_bookie_at_work(
    start_bookie, tmp_path: Path, descriptors: None
) -> None:
    metadata = f"sqlite:///{tmp_path}/metadata.db"
    bookie = start_bookie(tmp_path / "b1", "b1", metadata)
    try:
        async with asyncio.timeout(DEADLINE_SECONDS):
            # The first bookie makes the cluster.
            port = await bookie.until_ready()
        async with asyncio.timeout(DEADLINE_SECONDS), Client(metadata) as client:
            before, open_before = memory_bytes(bookie.process.pid), open_files(bookie.process.pid)
            async with await client.create_ledger(ensemble=1, write_quorum=1, ack_quorum=1) as ledger:
                await ledger.append(b"before them")
                with connected(f"127.0.0.1:{port}", CONNECTIONS):
                    while open_files(bookie.process.pid) - open_before < CONNECTIONS:  # noqa: ASYNC110 (as above)
                        await asyncio.sleep(0.01)
                    await ledger.append(b"beside them")
                    async with Client(metadata) as newcomer:
                        reader = await newcomer.open_ledger(ledger.id, recover=False)
                        assert (await reader.read_entry(0)).payload == b"before them"
                    assert memory_bytes(bookie.process.pid) - before < MOST_GROWTH_BYTES
                await ledger.append(b"after them")
    finally:
        bookie.kill()
