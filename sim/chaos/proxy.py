"""The network between two processes: a TCP proxy that holds, delays and breaks what passes.

A direction that is *held* lets nothing through, and tells nobody: data wait, first here and
then in the kernel of the sender, as they do on a link that is down. So does the end of a
connection: a peer that dies meanwhile looks alive. ``heal`` lets everything pass that waits;
``reset`` breaks every connection and loses it.
"""

from __future__ import annotations

import asyncio
from enum import Enum
from typing import Final

from tallybook.runtime.clock import Clock
from tallybook.runtime.tasks import Tasks

CHUNK_BYTES: Final = 64 * 1024
MAX_CHUNKS: Final = 16
"""So many wait in one direction of a connection; beyond it the sender is not read from."""


class Direction(Enum):
    """Which way data go, as seen by who connects."""

    THERE = "there"
    BACK = "back"


BOTH: Final = (Direction.THERE, Direction.BACK)


class _Lane:
    """One direction, of all connections."""

    def __init__(self) -> None:
        self.passing = asyncio.Event()
        self.passing.set()
        self.delay_seconds = 0.0


class Proxy:
    """One address that leads to another one, which may change.

    Args:
        tasks: where its connections run.
    """

    def __init__(self, clock: Clock, tasks: Tasks) -> None:
        self.address = ""
        """``host:port`` to connect to."""
        self.target: str | None = None
        """``host:port`` of who serves; ``None`` where nobody does."""
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
        # What was broken is closed by the loop in its next turn; there may be no loop after that.
        await self._clock.sleep(0)

    # -- what can be done to it -----------------------------------------------------------

    def hold(self, *directions: Direction) -> None:
        """Let nothing through these ways."""
        for direction in directions:
            self._lanes[direction].passing.clear()

    def delay(self, seconds: float, *directions: Direction) -> None:
        """Let everything wait for so long these ways."""
        for direction in directions:
            self._lanes[direction].delay_seconds = seconds

    async def refuse(self) -> None:
        """Break every connection, and each new one at once."""
        self._refusing = True
        await self.reset()

    async def reset(self) -> None:
        """Break every connection; what waited is lost."""
        broken, self._connections = self._connections, []
        for connection in broken:
            connection.cancel()
        await asyncio.gather(*broken, return_exceptions=True)

    def heal(self) -> None:
        """Let everything through at once."""
        self._refusing = False
        for lane in self._lanes.values():
            lane.delay_seconds = 0.0
            lane.passing.set()

    # -- inside ---------------------------------------------------------------------------

    def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._closed:
            # It was accepted before the end, and nobody was told until now.
            writer.transport.abort()
            return
        carried = self._tasks.spawn(self._carry(reader, writer), name="connection")
        # A task that is cancelled before its first step never gets to its own clean-up.
        carried.add_done_callback(lambda _: writer.transport.abort())
        self._connections = [*(other for other in self._connections if not other.done()), carried]

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, until the end that one side has made of it has passed."""
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
            # Nobody serves there now; who connects learns it by the end of the connection.
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
                # That the sender is gone must pass the lane like everything else.
                data = b""
            await waiting.put((self._clock.monotonic() + lane.delay_seconds, data))
        # Only the other half may end the connection, once all of this has passed.
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
                    # It is gone: the other direction brings word of that, when it can.
                    heard = False
