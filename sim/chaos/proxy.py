"""A TCP proxy between two processes that blocks, delays and breaks connections.

A direction on *hold* passes nothing, and no error is reported: data wait in the proxy, then in the kernel of the
sender, as on a link that is down. The end of a connection waits, too: a peer that dies meanwhile looks alive. ``heal``
passes everything that waits; ``reset`` breaks all connections and loses it.
"""

from __future__ import annotations

import asyncio
from enum import Enum
from typing import Final

from tallybook.runtime.clock import Clock
from tallybook.runtime.tasks import Tasks

CHUNK_BYTES: Final = 64 * 1024
MAX_CHUNKS: Final = 16
"""Maximum number of chunks that wait in one direction of a connection; then the proxy stops to read."""


class Direction(Enum):
    """Direction of data, as seen by the client."""

    THERE = "there"
    BACK = "back"


BOTH: Final = (Direction.THERE, Direction.BACK)


class _Lane:
    """State of one direction, for all connections."""

    def __init__(self) -> None:
        self.passing = asyncio.Event()
        self.passing.set()
        self.delay_seconds = 0.0


class TcpProxy:
    """Forwards connections from one address to a target that may change.

    Args:
        tasks: runs its connections.
    """

    def __init__(self, clock: Clock, tasks: Tasks) -> None:
        self.address = ""
        """``host:port`` on which it listens."""
        self.target: str | None = None
        """``host:port`` of the server; ``None`` if there is none."""
        self._clock = clock
        self._tasks = tasks
        self._lanes = {direction: _Lane() for direction in Direction}
        self._refusing = False
        self._closed = False
        self._connections: list[asyncio.Task[None]] = []
        self._listener: asyncio.Server | None = None

    async def start(self) -> None:
        """Listen on a free port of loopback."""
        self._listener = await asyncio.start_server(self._accepted, "127.0.0.1", 0)
        host, port = self._listener.sockets[0].getsockname()
        self.address = f"{host}:{port}"

    async def close(self) -> None:
        """Stop listening and break every connection."""
        if self._listener is not None:
            self._listener.close()
        self._closed = True
        await self.reset()
        # The loop closes aborted transports in its next turn; it may not run any longer after this call.
        await self._clock.sleep(0)

    # -- faults ---------------------------------------------------------------------------

    def hold(self, *directions: Direction) -> None:
        """Block these directions."""
        for direction in directions:
            self._lanes[direction].passing.clear()

    def delay(self, seconds: float, *directions: Direction) -> None:
        """Delay all data in these directions."""
        for direction in directions:
            self._lanes[direction].delay_seconds = seconds

    async def refuse(self) -> None:
        """Break every connection, also new ones."""
        self._refusing = True
        await self.reset()

    async def reset(self) -> None:
        """Break every connection; waiting data are lost."""
        broken, self._connections = self._connections, []
        for connection in broken:
            connection.cancel()
        await asyncio.gather(*broken, return_exceptions=True)

    def heal(self) -> None:
        """End all blocks, delays and refusals."""
        self._refusing = False
        for lane in self._lanes.values():
            lane.delay_seconds = 0.0
            lane.passing.set()

    # -- inside ---------------------------------------------------------------------------

    def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._closed:
            # Accepted by the kernel before the listener was closed.
            writer.transport.abort()
            return
        carried = self._tasks.spawn(self._carry(reader, writer), name="connection")
        # A task that is cancelled before its first step does not run its own clean-up.
        carried.add_done_callback(lambda _: writer.transport.abort())
        self._connections = [*(other for other in self._connections if not other.done()), carried]

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Forward one connection until the end of one side was passed on."""
        onward: asyncio.StreamWriter | None = None
        parts: list[asyncio.Task[None]] = []
        try:
            target = self.target
            if self._refusing or target is None:
                return
            host, _, port = target.rpartition(":")
            answers, onward = await asyncio.open_connection(host, int(port))
            parts = [
                *self._pass_on(reader, onward, self._lanes[Direction.THERE]),
                *self._pass_on(answers, writer, self._lanes[Direction.BACK]),
            ]
            await asyncio.wait(parts, return_when=asyncio.FIRST_COMPLETED)
        except OSError:
            # The target does not accept connections; the client sees its connection end.
            return
        finally:
            for part in parts:
                part.cancel()
            await asyncio.gather(*parts, return_exceptions=True)
            for end in (writer, onward):
                if end is not None:
                    end.transport.abort()

    def _pass_on(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, lane: _Lane
    ) -> list[asyncio.Task[None]]:
        waiting: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(MAX_CHUNKS)
        taking = self._tasks.spawn(self._take(reader, waiting, lane), name="take")
        giving = self._tasks.spawn(self._give(writer, waiting, lane), name="give")
        return [taking, giving]

    async def _take(
        self, reader: asyncio.StreamReader, waiting: asyncio.Queue[tuple[float, bytes]], lane: _Lane
    ) -> None:
        data = b"-"
        while data:
            try:
                data = await reader.read(CHUNK_BYTES)
            except OSError:
                # The end of the connection must wait in the lane like data.
                data = b""
            await waiting.put((self._clock.monotonic() + lane.delay_seconds, data))
        # Only ``_give`` may end the connection, when all of this has passed.
        await asyncio.Event().wait()

    async def _give(
        self, writer: asyncio.StreamWriter, waiting: asyncio.Queue[tuple[float, bytes]], lane: _Lane
    ) -> None:
        heard = True
        while True:
            due_at, data = await waiting.get()
            await self._clock.sleep(max(0.0, due_at - self._clock.monotonic()))
            await lane.passing.wait()
            if not data:
                return
            if heard:
                writer.write(data)
                try:
                    await writer.drain()
                except OSError:
                    # The receiver is gone: the other direction reports that, when it may pass.
                    heard = False
