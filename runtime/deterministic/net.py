"""A network in memory: links that delay, clog, and cut, and nodes that die.

``net.transport("bookie-2")`` is what the node of that name uses as its ``Transport``. Addresses
are names: a node listens on ``name`` or ``name:port`` (port 0: a free one; any other host is
replaced by the node's name, so that ``127.0.0.1:0`` works). The nemesis uses ``cut``, ``heal``,
``clog``, ``reset`` and ``kill``; every effect is drawn from the network's own generator.

What TCP keeps, this keeps: while a stream lives, nothing is lost or reordered. A link that stays
blocked for ``keepalive_seconds`` breaks every stream between its two nodes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Final

from tallybook.core.limits import MIB
from tallybook.runtime.rng import Rng

from .link import Link
from .stream import Connection

DEFAULT_DELAY_SECONDS: Final = (0.0001, 0.0005)
_FIRST_FREE_PORT: Final = 20_000


class SimNet:
    """All nodes and the links between them.

    Args:
        rng: decides delays, and what survives a break.
        delay_seconds: least and greatest time under way, on every link that has none of its own.
        window_bytes: unread bytes of one stream and direction above which ``send`` waits.
        keepalive_seconds: how long a blocked link goes unnoticed.
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
        """The transport of node ``name``. Asked again after ``kill``, it is that of the restarted node."""
        if name not in self._nodes:
            self._silent.pop(name, None)
            self._nodes[name] = SimTransport(self, name)
        return self._nodes[name]

    # -- the nemesis ----------------------------------------------------------------------

    def set_delay(self, source: str, target: str, delay_seconds: tuple[float, float]) -> None:
        """Give one direction a delay of its own."""
        self.link(source, target).delay_seconds = delay_seconds

    def cut(self, source: str, target: str) -> None:
        """Let nothing through from ``source`` to ``target`` until ``heal``."""
        link = self.link(source, target)
        link.block()
        asyncio.get_running_loop().call_later(self._keepalive_seconds, self._notice, source, target, link.blocks)

    def heal(self, source: str, target: str) -> None:
        """Undo ``cut`` or ``clog``: what was held arrives now."""
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
        """Hold everything from ``source`` to ``target`` for a while."""
        self.cut(source, target)
        blocks = self.link(source, target).blocks
        asyncio.get_running_loop().call_later(seconds, self._unclog, source, target, blocks)

    def reset(self, one: str, other: str) -> None:
        """Break every stream between two nodes; what was under way is lost in part."""
        for connection in self._between(one, other):
            connection.broken("connection reset")

    def kill(self, name: str, *, silent: bool = False) -> None:
        """End a node: its streams break, its listeners and their handlers are gone.

        With ``silent`` the machine itself is gone: nobody is told, and peers notice after the
        keepalive time. Otherwise its kernel resets the connections.
        """
        transport = self._nodes.pop(name, None)
        if transport is None:
            return
        transport.dead = True
        for listener in [listener for listener in self._listeners.values() if listener.node == name]:
            listener.drop()
        if silent:
            self._silent[name] = None
        for connection in [connection for connection in self._connections if name in connection.names]:
            own, peer = connection.ends_of(name)
            own.fail("this node was killed")
            if silent:
                asyncio.get_running_loop().call_later(self._keepalive_seconds, connection.broken, "no sign of life")
            else:
                connection.broken(f"{name} died")
            del peer

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
