"""Connections to bookies: opened when first asked for, shared by all handles of a client, replaced when broken.

The address and the present life of a bookie come from the membership, so a connection always
leads to the bookie that is registered now. However many ask for one bookie at once, one
attempt is made; after an attempt that failed, everyone hears its error until a pause has
passed.
"""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from tallybook.core.config import ClientSettings
from tallybook.core.errors import BookieUnavailable, TallybookError
from tallybook.metadata.store import Membership
from tallybook.runtime.clock import Clock
from tallybook.runtime.tasks import Tasks
from tallybook.runtime.transport import Transport
from tallybook.runtime.wire import FrameCache

from .bookie_rpc import BookieRpc, open_bookie


class _Failure(NamedTuple):
    """An attempt that failed, and the monotonic second from which another one may be made."""

    error: TallybookError
    again_at: float


class BookieConnections:
    """The connections of one client.

    Args:
        cluster_id: bookies of another cluster refuse; empty: any will do.
        client_id: names this client in the bookies' logs.
    """

    def __init__(
        self,
        transport: Transport,
        membership: Membership,
        settings: ClientSettings,
        clock: Clock,
        tasks: Tasks,
        *,
        cluster_id: str = "",
        client_id: str = "",
    ) -> None:
        self._transport = transport
        self._membership = membership
        self._settings = settings
        self._clock = clock
        self._tasks = tasks
        self._cluster_id = cluster_id
        self._client_id = client_id
        self._frames = FrameCache()
        self._open: dict[str, BookieRpc] = {}
        self._opening: dict[str, asyncio.Task[BookieRpc]] = {}
        self._failed: dict[str, _Failure] = {}
        self._closed = False

    @property
    def pending_bytes(self) -> int:
        """Cost of all adds that no bookie has answered yet, over all connections."""
        return sum(connection.pending_bytes for connection in self._open.values())

    async def get(self, bookie_id: str) -> BookieRpc:
        """A working connection.

        Raises:
            BookieUnavailable: the bookie is not registered, does not answer within the connect timeout, or did not a
                moment ago.
            StaleIncarnation: not the registered life of it answers.
            TallybookError: it refuses this client, for this reason.
        """
        held = self._open.get(bookie_id)
        if held is not None and not held.broken:
            return held
        if self._closed:
            raise BookieUnavailable("this client is closed")
        failed = self._failed.get(bookie_id)
        if failed is not None and self._clock.monotonic() < failed.again_at:
            raise failed.error.with_traceback(None)
        opening = self._opening.get(bookie_id)
        if opening is None:
            opening = self._tasks.spawn(self._connect(bookie_id), name=f"connect to {bookie_id}")
            opening.add_done_callback(_look_at)
            self._opening[bookie_id] = opening
        # Waited for in this way, a caller who gives up does not take the attempt away from the others.
        await asyncio.wait((opening,))
        if opening.cancelled():
            raise BookieUnavailable("this client is closed")
        return opening.result()

    async def close(self) -> None:
        """Close every connection."""
        self._closed = True
        opening = list(self._opening.values())
        for task in opening:
            task.cancel()
        await asyncio.gather(*opening, return_exceptions=True)
        held, self._open = self._open, {}
        await asyncio.gather(*(connection.close() for connection in held.values()))

    async def _connect(self, bookie_id: str) -> BookieRpc:
        try:
            broken = self._open.pop(bookie_id, None)
            if broken is not None:
                await broken.close()
            connection = await self._attempt(bookie_id)
        except TallybookError as error:
            pause_seconds = self._settings.reconnect_ms / 1000
            self._failed[bookie_id] = _Failure(error, self._clock.monotonic() + pause_seconds)
            raise
        finally:
            del self._opening[bookie_id]
        self._failed.pop(bookie_id, None)
        self._open[bookie_id] = connection
        return connection

    async def _attempt(self, bookie_id: str) -> BookieRpc:
        info = (await self._membership.bookies()).get(bookie_id)
        if info is None:
            raise BookieUnavailable(f"bookie {bookie_id} is not registered")
        return await open_bookie(
            self._transport,
            info.address,
            bookie_id=bookie_id,
            expected=info.incarnation,
            settings=self._settings,
            tasks=self._tasks,
            cluster_id=self._cluster_id,
            client_id=self._client_id,
            frames=self._frames,
        )


def _look_at(task: asyncio.Task[BookieRpc]) -> None:
    # The error has been kept; there may be nobody left who waits for this task.
    if not task.cancelled():
        task.exception()
