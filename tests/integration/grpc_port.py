"""A bookie on a real gRPC port, and raw bytes sent to it."""

import asyncio
import contextlib
import ctypes
import gc
import os
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from tallybook.bookie.ledgers.key_verification import LedgerFacts
from tallybook.bookie.rpc.service import BookieService
from tallybook.client.connection.connection import open_bookie
from tallybook.client.load import ClientLoad
from tallybook.core.answers import AddAnswer, ReadAnswer
from tallybook.core.batch import encode_batch
from tallybook.core.limits import KIB, MIB
from tallybook.core.settings import AdmissionSettings, BookieSettings, ClientSettings
from tallybook.runtime.clock import RealClock
from tallybook.runtime.tasks import Tasks
from tallybook.sim.memory_bookie.bookie import MemoryBookie
from tallybook.sim.stage.disk_bookie import KnownMetadata
from tallybook.wire import messages as wire
from tallybook.wire.bookie_transport import SERVICE, bookie_transport
from tallybook.wire.lanes import Lane

from ..support.real_bookie import real_bookie

DEADLINE_SECONDS = 30

HELLO = wire.encode_hello(wire.Hello("cluster", "test", None))
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
SETTINGS, HEADERS, DATA, PING, RST_STREAM, CONTINUATION = 4, 1, 0, 6, 3, 9
END_HEADERS, ACK = 4, 1
SETTLING_SECONDS = 10.0
MOST_GROWTH_BYTES = 96 * MIB


class Library(MemoryBookie):
    """A bookie whose batch reads give 2 MiB each, newly allocated, and which counts them."""

    reads = 0

    async def read_batches(self, ledger_id, first, last, max_bytes, *, background=False):
        self.reads += 1
        return ReadAnswer((bytes(max_bytes),), 0)


class Port:
    """A bookie served on loopback."""

    def __init__(self, bookie, service, address, tasks) -> None:
        self.bookie = bookie
        self.service = service
        self.address = address
        self.tasks = tasks

    async def raw(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A TCP connection on which nothing was said yet."""
        host, _, port = self.address.rpartition(":")
        return await asyncio.open_connection(host, int(port))

    async def http2(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A TCP connection that has begun to speak HTTP/2."""
        reader, writer = await self.raw()
        writer.write(PREFACE + frame(SETTINGS, 0, 0))
        return reader, writer

    def channel(self, *options: tuple[str, object]) -> grpc.aio.Channel:
        """A gRPC channel of a client that keeps to no limits."""
        limits = (("grpc.max_send_message_length", -1), ("grpc.max_metadata_size", 1 << 24))
        return grpc.aio.insecure_channel(self.address, options=(*limits, *options))

    async def works(self) -> None:
        """A well-behaved client comes, adds, reads and leaves."""
        connection = await open_bookie(
            bookie_transport(), self.address, bookie_id="b1", expected=None, settings=ClientSettings(),
            tasks=self.tasks, cluster_id="cluster", load=ClientLoad(RealClock()),
        )  # fmt: skip
        answered = asyncio.get_running_loop().create_future()
        connection.add(batch(0), b"", answered.set_result)
        assert await soon(answered) == AddAnswer(1, 0, 1)
        assert (await connection.read_entry(1, 0)).verify().payload == b"x"
        await connection.close()


def batch(first: int, size: int = 1) -> bytes:
    return encode_batch(1, first, [b"x" * size], lac=-1, ledger_length=10**9, written_at_us=0)


@asynccontextmanager
async def served(admission: AdmissionSettings | None = None, max_connections: int = 4096) -> AsyncIterator[Port]:
    """A port of a bookie in memory."""
    tasks = Tasks("test", lambda name, error: pytest.fail(f"{name}: {error!r}"))

    async def facts(ledger_id: int) -> LedgerFacts:
        return LedgerFacts(b"")

    bookie = Library("b1", facts_of=facts, clock=RealClock(), tasks=tasks)
    try:
        async with listening(bookie, tasks, admission or AdmissionSettings(), max_connections) as port:
            yield port
    finally:
        await tasks.close()


@asynccontextmanager
async def served_from_disk(root: Path, cookies: dict[str, bytes]) -> AsyncIterator[Port]:
    """A port of a bookie on the disk, with RocksDB; it must stop in good order."""
    async with (
        real_bookie(str(root), KnownMetadata(cookies=cookies), pytest.fail) as made,
        listening(made.bookie, made.tasks, made.settings.admission, 4096) as port,
    ):
        yield port


@asynccontextmanager
async def listening(bookie: Any, tasks: Tasks, admission: AdmissionSettings, connections: int) -> AsyncIterator[Port]:
    """A port, checked for its health at the end, and for growth."""
    settings = BookieSettings(data_directory="/nowhere", metadata="memory:", admission=admission)
    service = BookieService(bookie, settings, RealClock(), tasks, "cluster", pytest.fail)
    transport = bookie_transport(max_streams=admission.max_streams, max_connections=connections)
    listener = await transport.listen("127.0.0.1:0", service.accept)
    port = Port(bookie, service, listener.address, tasks)
    try:
        await port.works()
        before = resident_bytes()
        yield port
        await port.works()
        async with asyncio.timeout(SETTLING_SECONDS):
            # This process is the client, too. Threads of gRPC free the bytes it sent a moment later, and freed memory
            # stays with the allocator of the C library until it is trimmed.
            while resident_bytes() - before >= MOST_GROWTH_BYTES:
                gc.collect()
                ctypes.CDLL(None).malloc_trim(0)
                await asyncio.sleep(0.05)
    finally:
        await listener.close(0)
        assert service.stream_count == 0


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def peak_bytes(*, reset: bool = False) -> int:
    """The most memory this process had since the last reset."""
    if reset:
        Path("/proc/self/clear_refs").write_text("5")
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * KIB for line in lines if line.startswith("VmHWM"))


def frame(kind: int, flags: int, stream_id: int, payload: bytes = b"") -> bytes:
    """An HTTP/2 frame."""
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream_id) + payload


def header_block(path: str, **extra: str) -> bytes:
    """HPACK without compression: every header spelled out."""
    headers = {
        ":method": "POST", ":scheme": "http", ":path": path, ":authority": "bookie", "te": "trailers",
        "content-type": "application/grpc", **{name.replace("_", "-"): value for name, value in extra.items()},
    }  # fmt: skip
    block = b""
    for name, value in headers.items():
        block += b"\0" + bytes([len(name)]) + name.encode() + bytes([len(value)]) + value.encode()
    return block


def begin_call(stream_id: int = 1, lane: Lane = Lane.ADD, **extra: str) -> bytes:
    """The frame with which a gRPC call begins."""
    return frame(HEADERS, END_HEADERS, stream_id, header_block(f"/{SERVICE}/{lane.value}", **extra))


def message(body: bytes, *, compressed: int = 0, announced: int | None = None) -> bytes:
    """A gRPC message in a DATA frame of stream 1."""
    size = len(body) if announced is None else announced
    return frame(DATA, 0, 1, struct.pack(">BI", compressed, size) + body)


async def begun(channel: grpc.aio.Channel, lane: Lane = Lane.ADD) -> Any:
    """A call after its hello."""
    call = channel.stream_stream(f"/{SERVICE}/{lane.value}", None, None)()
    await call.write(HELLO)
    wire.decode_welcome(await call.read())
    return call


async def soon(work: Awaitable[Any]) -> Any:
    """Wait for what must happen."""
    return await asyncio.wait_for(work, DEADLINE_SECONDS)


async def ended(reader: asyncio.StreamReader) -> bytes:
    """Read until the server closes the connection, or has sent nothing for a second."""
    said = b""
    try:
        while piece := await asyncio.wait_for(reader.read(65536), 1):
            said += piece
    except (TimeoutError, ConnectionError):
        pass
    return said


async def until_closed(reader: asyncio.StreamReader) -> None:
    with contextlib.suppress(ConnectionError):
        while await reader.read(65536):
            pass


class Attack:
    """Something bad that is done again and again."""

    rounds = 0

    async def goes_on(
        self, works: Callable[[], Awaitable[None]], rounds: int = 3, *, refusals: tuple[type[Exception], ...] = ()
    ) -> None:
        """Let other clients call until so many rounds of the attack are over, and until they were served.

        The caller has a deadline: if a round of the attack does not end, this does not return.

        Args:
            refusals: errors after which a client may try again.
        """
        end, served = self.rounds + rounds, False
        while self.rounds < end or not served:
            with contextlib.suppress(*refusals):
                await works()
                served = True


@asynccontextmanager
async def attacking(attack: Callable[[], Awaitable[None]]) -> AsyncIterator[Attack]:
    """Attack until the block is left, which is entered after the first round."""
    under_way, first = Attack(), asyncio.Event()

    async def again() -> None:
        while True:
            await attack()
            under_way.rounds += 1
            first.set()

    task = asyncio.ensure_future(again())
    try:
        await asyncio.wait([task, asyncio.ensure_future(first.wait())], return_when=asyncio.FIRST_COMPLETED)
        yield under_way
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
    assert under_way.rounds


async def one_ping_too_many(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
    """See three pings answered and the connection go on; what is said to the fourth, up to its end."""
    settled = frame(SETTINGS, ACK, 0)
    await reader.readuntil(settled)
    for number in range(3):
        said = b"ping %d  " % number
        writer.write(frame(PING, 0, 0, said))
        await reader.readuntil(frame(PING, ACK, 0, said))
    # Even a ping that ends the connection is answered before. These settings are not, where it has ended.
    writer.write(frame(SETTINGS, 0, 0))
    before = await reader.readuntil(settled)
    assert b"too_many_pings" not in before
    writer.write(frame(PING, 0, 0, b"ping 3  "))
    try:
        return await reader.read()
    finally:
        writer.close()


async def flood_of_pings(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Ping on this connection as fast as that goes, until it is cut."""
    try:
        writer.write(frame(PING, 0, 0, b"12345678") * 20_000)
        await until_closed(reader)
    finally:
        writer.transport.abort()


async def rapid_reset(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, begin: Callable[[int], bytes], calls: int = 1_000
) -> None:
    """Begin so many calls on this connection and reset each at once, until the server has met them all or cuts it."""
    try:
        for stream_id in range(1, 2 * calls, 2):
            writer.write(begin(stream_id) + frame(RST_STREAM, 0, stream_id, b"\0\0\0\x08"))
        writer.write(frame(PING, 0, 0, b"all seen"))
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            await reader.readuntil(b"all seen")
    finally:
        writer.transport.abort()


NOT_GRPC = {
    "http1": b"GET / HTTP/1.1\r\nHost: bookie\r\n\r\n",
    "smuggling": b"POST /a HTTP/1.1\r\nContent-Length: 10\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "tls": bytes.fromhex("16030100f8010000f40303") + b"\x5a" * 200,  # the beginning of a TLS handshake
    "bytes": bytes(range(256)) * 64,
    "part": PREFACE[:10],
    "noise": PREFACE + b"\xff" * 1000,
    "hpack": PREFACE + frame(SETTINGS, 0, 0) + frame(HEADERS, END_HEADERS, 1, b"\xff" * 50),
    "stray": PREFACE + frame(SETTINGS, 0, 0) + frame(DATA, 0, 77, b"no such stream"),
    "length": PREFACE + frame(SETTINGS, 0, 0) + b"\xff\xff\xff" + struct.pack(">BBI", DATA, 0, 1),  # a frame of 16 MiB
}
