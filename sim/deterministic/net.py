"""A network in memory: links that can be delayed, clogged and cut, and nodes that can be killed.

``net.transport("bookie-2")`` is the ``Transport`` of the node with that name. Addresses are names: a node listens on
``name`` or ``name:port`` (port 0: a free one; any other host is replaced by the node's name, so that ``127.0.0.1:0``
works). The nemesis uses ``cut``, ``heal``, ``clog``, ``reset`` and ``kill``; all delays are drawn from the network's
own generator.

As with TCP, nothing is lost or reordered while a stream lives. A link that stays blocked for ``keepalive_seconds``
breaks every stream between its two nodes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextvars import copy_context
from typing import Final

from tallybook.core.errors import InvalidConfig, PeerUnavailable, TallybookError
from tallybook.core.limits import MIB
from tallybook.runtime.rng import Rng
from tallybook.runtime.transport import Acceptor

from .link import Link
from .stream import Connection, SimStream

DEFAULT_DELAY_SECONDS: Final = (0.0001, 0.0005)
_FIRST_FREE_PORT: Final = 20_000


class SimNet:
    """All nodes and the links between them.

    Args:
        rng: draws delays, and what survives a break.
        delay_seconds: minimum and maximum delay of links without their own.
        window_bytes: unread bytes per stream and direction above which ``send`` waits.
        keepalive_seconds: time after which a blocked link is noticed.
    """

    def __init__(
        self,
        rng: Rng,
        *,
        delay_seconds: tuple[float, float] = DEFAULT_DELAY_SECONDS,
        window_bytes: int = MIB,
        keepalive_seconds: float = 15.0,
    ) -> None:
        self._rng = rng
        self._delay_seconds = delay_seconds
        self._window_bytes = window_bytes
        self._keepalive_seconds = keepalive_seconds
        self._links: dict[tuple[str, str], Link] = {}
        self._nodes: dict[str, SimTransport] = {}
        self._listeners: dict[str, SimListener] = {}
        self._connections: dict[Connection, None] = {}
        self._connected = 0
        self._ports = _FIRST_FREE_PORT
        self._silent: dict[str, None] = {}

    def transport(self, name: str) -> SimTransport:
        """The transport of node ``name``; after ``kill``, that of the restarted node."""
        if name not in self._nodes:
            self._silent.pop(name, None)
            self._nodes[name] = SimTransport(self, name)
        return self._nodes[name]

    # -- the nemesis ----------------------------------------------------------------------

    def set_delay(self, source: str, target: str, delay_seconds: tuple[float, float]) -> None:
        """Set the delay of one direction."""
        self.link(source, target).delay_seconds = delay_seconds

    def cut(self, source: str, target: str) -> None:
        """Block everything from ``source`` to ``target`` until ``heal``."""
        link = self.link(source, target)
        link.block()
        asyncio.get_running_loop().call_later(self._keepalive_seconds, self._notice, source, target, link.blocks)

    def heal(self, source: str, target: str) -> None:
        """Undo ``cut`` or ``clog``: held messages arrive now."""
        self.link(source, target).open()

    def heal_all(self) -> None:
        """Open every link."""
        for link in self._links.values():
            link.open()

    def partition(self, left: Iterable[str], right: Iterable[str]) -> None:
        """Cut both directions between two groups of nodes."""
        others = list(right)
        for one in left:
            for other in others:
                self.cut(one, other)
                self.cut(other, one)

    def clog(self, source: str, target: str, seconds: float) -> None:
        """Block everything from ``source`` to ``target`` for ``seconds``."""
        self.cut(source, target)
        blocks = self.link(source, target).blocks
        asyncio.get_running_loop().call_later(seconds, self._unclog, source, target, blocks)

    def reset(self, one: str, other: str) -> None:
        """Break every stream between two nodes; messages in flight are lost in part."""
        for connection in self._between(one, other):
            connection.broken("connection reset")

    def reset_all(self, name: str) -> None:
        """Break every stream of one node."""
        for connection in [connection for connection in self._connections if name in connection.names]:
            connection.broken("connection reset")

    def kill(self, name: str, *, silent: bool = False) -> None:
        """Kill a node: its streams break, its listeners and their handlers are gone.

        With ``silent`` the machine itself is gone, and peers notice after the keepalive time. Otherwise its kernel
        resets the connections.
        """
        transport = self._nodes.pop(name, None)
        if transport is None:
            return
        transport.dead = True
        if silent:
            self._silent[name] = None
        for listener in [listener for listener in self._listeners.values() if listener.node == name]:
            listener.drop()
        for connection in [connection for connection in self._connections if name in connection.names]:
            connection.end_of(name).fail("this node was killed")
            connection.broken(f"{name} died", unnoticed_seconds=self._keepalive_seconds if silent else 0.0)

    @property
    def stream_count(self) -> int:
        """Streams that are not over at both ends."""
        return len(self._connections)

    # -- for transports -------------------------------------------------------------------

    def link(self, source: str, target: str) -> Link:
        """The link of one direction."""
        key = (source, target)
        if key not in self._links:
            self._links[key] = Link(self._rng.fork(f"{source}>{target}"), self._delay_seconds)
        return self._links[key]

    async def connect(self, source: str, address: str, kind: str) -> SimStream:
        """Open a stream from node ``source``; return when the other side has accepted it."""
        target = address.partition(":")[0]
        answer: asyncio.Future[SimStream] = asyncio.get_running_loop().create_future()
        self.link(source, target).carry(lambda: self._knock(source, address, kind, answer))
        try:
            return await answer
        except asyncio.CancelledError:
            if answer.done() and not answer.cancelled() and answer.exception() is None:
                answer.result().abort()
            raise

    def bind(self, node: str, address: str, acceptor: Acceptor) -> SimListener:
        """Let ``acceptor`` listen at ``address``."""
        host, colon, port = address.partition(":")
        if not host or (colon and not port.isdecimal()):
            raise InvalidConfig(f"{address!r} is not an address: use name or name:port")
        if colon and int(port) == 0:
            self._ports += 1
            port = str(self._ports)
        bound = f"{node}:{port}" if colon else node
        if bound in self._listeners:
            raise InvalidConfig(f"cannot listen on {address}: {bound} is in use")
        listener = self._listeners[bound] = SimListener(self, node, bound, acceptor)
        return listener

    def unbind(self, address: str) -> None:
        """Stop to listen at ``address``."""
        self._listeners.pop(address, None)

    def _knock(self, source: str, address: str, kind: str, answer: asyncio.Future[SimStream]) -> None:
        """Process a connection request at the target."""
        target = address.partition(":")[0]
        if target in self._silent:
            return
        there, back = self.link(source, target), self.link(target, source)
        listener = self._listeners.get(address)
        if listener is None:
            back.carry(lambda: _refuse(answer, address))
            return
        self._connected += 1
        rng = self._rng.fork(f"stream {self._connected}")
        connection = Connection((source, target), address, kind, (there, back), rng, self._window_bytes)
        self._connections[connection] = None
        connection.over.add_done_callback(lambda _: self._connections.pop(connection, None))
        listener.accept(kind, connection.acceptor)
        back.carry(lambda: _welcome(answer, connection.connector))

    def _between(self, one: str, other: str) -> list[Connection]:
        return [connection for connection in self._connections if set(connection.names) == {one, other}]

    def _notice(self, source: str, target: str, blocks: int) -> None:
        """Break streams if the link is still in the same block after the keepalive time."""
        link = self.link(source, target)
        if link.blocked and link.blocks == blocks:
            for connection in self._between(source, target):
                connection.broken("no sign of life")

    def _unclog(self, source: str, target: str, blocks: int) -> None:
        if self.link(source, target).blocks == blocks:
            self.heal(source, target)


class SimTransport:
    """The ``Transport`` of one node, until the node is killed."""

    def __init__(self, net: SimNet, name: str) -> None:
        self._net = net
        self._name = name
        self.dead = False

    async def connect(self, address: str, kind: str, *, timeout_seconds: float) -> SimStream:
        """Open a stream; see the port."""
        self._check_alive()
        try:
            async with asyncio.timeout(timeout_seconds):
                stream = await self._net.connect(self._name, address, kind)
        except TimeoutError:
            raise PeerUnavailable(f"{address} did not answer within {timeout_seconds} s") from None
        self._check_alive()
        return stream

    async def listen(self, address: str, acceptor: Acceptor) -> SimListener:
        """Serve an address; see the port."""
        self._check_alive()
        return self._net.bind(self._name, address, acceptor)

    def _check_alive(self) -> None:
        if self.dead:
            raise PeerUnavailable(f"{self._name} was killed")


class SimListener:
    """A served address and the streams accepted there."""

    def __init__(self, net: SimNet, node: str, address: str, acceptor: Acceptor) -> None:
        self._net = net
        self._address = address
        self._acceptor = acceptor
        self._serving: dict[asyncio.Task[None], SimStream] = {}
        self._context = copy_context()  # handlers belong to the process that listens, not to the one that connects
        self.node = node

    @property
    def address(self) -> str:
        """Address for clients."""
        return self._address

    async def close(self, grace_seconds: float) -> None:
        """Stop to accept, wait ``grace_seconds`` for streams to end, then abort them."""
        self._net.unbind(self._address)
        serving = dict(self._serving)
        if serving:
            await asyncio.wait(list(serving), timeout=grace_seconds)
        for task, stream in serving.items():
            if not task.done():
                stream.abort()
                task.cancel()
        await asyncio.gather(*serving, return_exceptions=True)

    def accept(self, kind: str, stream: SimStream) -> None:
        """Serve one stream in a task of its own."""
        task = asyncio.get_running_loop().create_task(
            self._serve(kind, stream),
            name=f"{self._address} {kind} from {stream.peer}",
            context=self._context.copy(),
        )
        self._serving[task] = stream
        task.add_done_callback(self._served)

    def drop(self) -> None:
        """Cancel all handlers, because the node was killed."""
        self._net.unbind(self._address)
        for task in self._serving:
            task.cancel()

    def _served(self, task: asyncio.Task[None]) -> None:
        del self._serving[task]

    async def _serve(self, kind: str, stream: SimStream) -> None:
        try:
            await self._acceptor(kind, stream)
        except TallybookError:
            # A declared error (the stream broke, or the peer violated the protocol) ends this stream only.
            stream.abort()
        except BaseException:
            stream.abort()
            raise
        else:
            await stream.close()


def _welcome(answer: asyncio.Future[SimStream], stream: SimStream) -> None:
    if answer.done():
        stream.abort()  # the caller has timed out
    else:
        answer.set_result(stream)


def _refuse(answer: asyncio.Future[SimStream], address: str) -> None:
    if not answer.done():
        answer.set_exception(PeerUnavailable(f"{address} refuses connections"))
