"""Chaos runs: real processes killed, stopped and disconnected (docs/project/chaos.md), and the proxy between them."""

import asyncio
import contextlib
import json
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest

from tallybook.runtime.clock import RealClock
from tallybook.runtime.tasks import Tasks
from tallybook.sim.chaos.proxy import BOTH, Direction, TcpProxy

PATIENCE_SECONDS = 240


@pytest.mark.zookeeper
def test_a_cluster_that_is_killed_stopped_and_cut_off_keeps_every_promise(tmp_path):
    words = ["--seconds", "4", "--seed", "1", "--dir", str(tmp_path / "run")]
    with subprocess.Popen(
        [sys.executable, "-P", "-m", "tallybook.sim.chaos", *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as running:
        stuck = threading.Timer(PATIENCE_SECONDS, running.terminate)
        stuck.start()
        output = running.stdout.read().decode()
        stuck.cancel()
    stuck.join()
    assert running.returncode == 0, output
    figures = json.loads(output.splitlines()[-1])
    assert figures["violations"] == 0
    for kind in ("kills", "stops", "cuts", "ledgers", "acked entries", "readings"):
        assert figures[kind] > 0, (kind, figures)


# --- the proxy --------------------------------------------------------------------------------------------------------


@dataclass
class Ends:
    """A connection through a proxy: the streams of the client and of the server."""

    proxy: TcpProxy
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    served_reader: asyncio.StreamReader
    served_writer: asyncio.StreamWriter


@contextlib.asynccontextmanager
async def connected() -> AsyncIterator[Ends]:
    accepted: asyncio.Queue[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = asyncio.Queue()
    served: list[asyncio.StreamWriter] = []
    over = asyncio.Event()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # A proxy that connects again makes more than one, perhaps only when the test is over.
        served.append(writer)
        accepted.put_nowait((reader, writer))
        if over.is_set():
            writer.transport.abort()

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    tasks = Tasks("proxy", lambda name, error: None)
    proxy = TcpProxy(RealClock(), tasks)
    proxy.target = "{}:{}".format(*server.sockets[0].getsockname())
    await proxy.start()
    host, port = proxy.address.split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    ends = Ends(proxy, reader, writer, *await accepted.get())
    try:
        yield ends
    finally:
        over.set()
        await proxy.close()
        server.close()
        await tasks.close()
        for end in (ends.writer, *served):
            end.transport.abort()
        await asyncio.sleep(0)


async def arrives(reader: asyncio.StreamReader, expected: bytes) -> None:
    async with asyncio.timeout(20):
        assert await reader.readexactly(len(expected)) == expected


async def nothing_arrives(reader: asyncio.StreamReader) -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await reader.read(1)


async def test_what_a_proxy_holds_arrives_once_it_is_healed_and_the_other_way_is_free():
    async with connected() as ends:
        ends.proxy.hold(Direction.THERE)
        ends.writer.write(b"question")
        ends.served_writer.write(b"answer")
        await arrives(ends.reader, b"answer")
        await nothing_arrives(ends.served_reader)
        ends.proxy.heal()
        await arrives(ends.served_reader, b"question")


async def test_no_client_learns_through_a_held_proxy_that_the_other_side_is_gone():
    async with connected() as ends:
        ends.proxy.hold(*BOTH)
        ends.served_writer.transport.abort()
        await nothing_arrives(ends.reader)
        ends.writer.write(b"to nobody")
        await nothing_arrives(ends.reader)
        ends.proxy.heal()
        async with asyncio.timeout(20):
            with contextlib.suppress(ConnectionError):
                assert await ends.reader.read() == b""


async def test_a_proxy_that_is_reset_loses_what_it_holds_and_connects_again():
    async with connected() as ends:
        ends.proxy.hold(Direction.BACK)
        ends.served_writer.write(b"lost")
        await nothing_arrives(ends.reader)
        await ends.proxy.reset()
        ends.proxy.heal()
        async with asyncio.timeout(20):
            with contextlib.suppress(ConnectionError):
                assert await ends.reader.read() == b""
        host, port = ends.proxy.address.split(":")
        _, writer = await asyncio.open_connection(host, int(port))
        writer.transport.abort()


async def test_a_slow_proxy_delivers_everything_late():
    async with connected() as ends:
        ends.proxy.delay(0.1, Direction.THERE)
        began = asyncio.get_running_loop().time()
        ends.writer.write(b"question")
        await arrives(ends.served_reader, b"question")
        assert asyncio.get_running_loop().time() - began >= 0.1


async def test_a_proxy_that_refuses_ends_every_new_connection():
    async with connected() as ends:
        await ends.proxy.refuse()
        host, port = ends.proxy.address.split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        async with asyncio.timeout(20):
            with contextlib.suppress(ConnectionError):
                assert await reader.read() == b""
        writer.transport.abort()
