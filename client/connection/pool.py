"""Connections to bookies: opened when first asked for, shared by all handles of a client, replaced when broken.

One over which ledgers are written is replaced at once; any other when it is next asked for.

The address and the present life of a bookie come from the membership, and are remembered: while
that life goes on, reconnecting needs no metadata. However many ask for one bookie at once, one
attempt is made; after an attempt that failed, everyone hears its error until a pause has
passed.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Final, NamedTuple

from tallybook.core.config import ClientSettings
from tallybook.core.errors import BookieUnavailable, MetadataUnavailable, TallybookError
from tallybook.metadata.store import BookieInfo, Membership
from tallybook.runtime.clock import Clock
from tallybook.runtime.logging import logger
from tallybook.runtime.rng import Rng, SystemRng
from tallybook.runtime.seldom import Seldom
from tallybook.runtime.tasks import Tasks
from tallybook.runtime.transport import Transport
from tallybook.runtime.wire import FrameCache

from .bookie_rpc import BookieRpc, open_bookie
from .load import ClientLoad
from .open_ledgers import OpenLedgers
from .refusals import is_refusal

REFUSAL_SECONDS: Final = 60.0
"""Between two lines in the log that a bookie refuses this client: it is asked far more often."""

_log = logger("client.connections")


class _Failure(NamedTuple):
    """An attempt that failed, and the monotonic second from which another one may be made."""

    error: TallybookError
    again_at: float


class BookieConnections:
    """The connections of one client.

    Args:
        cluster_id: bookies of another cluster refuse; empty: any will do.
        client_id: names this client in the bookies' logs.
        rng: for pauses before a bookie is reached again; ``None``: the system's.
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
        rng: Rng | None = None,
    ) -> None:
        self._transport = transport
        self._membership = membership
        self._settings = settings
        self._clock = clock
        self._tasks = tasks
        self._cluster_id = cluster_id
        self._client_id = client_id
        self._frames = FrameCache()
        self.load = ClientLoad(clock)
        """What is asked of all bookies."""
        self._open: dict[str, BookieRpc] = {}
        self._opening: dict[str, asyncio.Task[BookieRpc]] = {}
        self._failed: dict[str, _Failure] = {}
        self._known: dict[str, BookieInfo] = {}
        self._refusals = Seldom(REFUSAL_SECONDS)
        self._rng = rng or SystemRng()
        self._ledgers = OpenLedgers(self.get, clock, tasks, self._rng, first_pause_s=settings.reconnect_ms / 1000)
        self._closed = False

    async def get(self, bookie_id: str) -> BookieRpc:
        """A working connection.

        Raises:
            BookieUnavailable: the bookie is not registered, does not answer within the connect timeout, or did not a
                moment ago.
            StaleIncarnation: not the registered life of it answers.
            MetadataUnavailable: where it is cannot be told.
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
            opening = self._tasks.spawn(self._connect(bookie_id), name=f"connect to {bookie_id}", apart=True)
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
        await self._ledgers.close()
        opening = list(self._opening.values())
        for task in opening:
            task.cancel()
        await asyncio.gather(*opening, return_exceptions=True)
        held, self._open = self._open, {}
        await asyncio.gather(*(connection.close() for connection in held.values()))

    async def _connect(self, bookie_id: str) -> BookieRpc:
        try:
            connection = await self._attempt(bookie_id)
        except TallybookError as error:
            pause_seconds = self._settings.reconnect_ms / 1000
            self._failed[bookie_id] = _Failure(error, self._clock.monotonic() + pause_seconds)
            self._tell(bookie_id, error)
            raise
        finally:
            del self._opening[bookie_id]
        self._failed.pop(bookie_id, None)
        self._refusals.forget(bookie_id)
        self._open[bookie_id] = connection
        return connection

    def _tell(self, bookie_id: str, error: TallybookError) -> None:
        """Have the log say now and then that a bookie refuses this client: an operator has to see to it."""
        if is_refusal(error):
            untold = self._refusals.due(self._clock.monotonic(), bookie_id)
            if untold is not None:
                message = error.message
                _log.warning("bookie refuses this client", bookie_id=bookie_id, error=message, untold_count=untold)

    async def _attempt(self, bookie_id: str) -> BookieRpc:
        """Replace what is broken, within the connect timeout in all."""
        timeout_seconds = self._settings.connect_timeout_ms / 1000
        try:
            async with asyncio.timeout(timeout_seconds):
                broken = self._open.pop(bookie_id, None)
                if broken is not None:
                    await broken.close()
                return await self._find(bookie_id, timeout_seconds / 2)
        except TimeoutError:
            reason = f"bookie {bookie_id} was not reached within {timeout_seconds} s"
            raise BookieUnavailable(reason) from None

    async def _find(self, bookie_id: str, patience_seconds: float) -> BookieRpc:
        """Connect to where the bookie was last, and ask the membership only if it is not there any more.

        So a lost connection comes back while the metadata store is away. The hello says whether it is still the same
        life of the bookie.
        """
        known = self._known.get(bookie_id)
        missed: TallybookError | None = None
        if known is not None:
            try:
                async with asyncio.timeout(patience_seconds):
                    return await self._open_at(known)
            except TimeoutError:
                missed = BookieUnavailable(f"{bookie_id} does not answer at {known.address}")
            except TallybookError as error:
                # Whoever answers there now, with whatever reason, may be another one.
                missed = error
        try:
            async with asyncio.timeout(patience_seconds):
                info = (await self._membership.bookies()).get(bookie_id)
        except TimeoutError:
            # Not the bookie's fault, and it must not be blamed for it.
            raise missed or MetadataUnavailable("the metadata store does not tell in time who is registered") from None
        except MetadataUnavailable as error:
            raise missed or error from None
        if info is None:
            self._known.pop(bookie_id, None)
            raise missed or BookieUnavailable(f"bookie {bookie_id} is not registered")
        if missed and known and (info.address, info.incarnation) == (known.address, known.incarnation):
            raise missed
        connection = await self._open_at(info)
        self._known[bookie_id] = info
        return connection

    async def _open_at(self, info: BookieInfo) -> BookieRpc:
        self.load.connects += 1
        try:
            return await open_bookie(
                self._transport,
                info.address,
                bookie_id=info.bookie_id,
                expected=info.incarnation,
                settings=self._settings,
                tasks=self._tasks,
                cluster_id=self._cluster_id,
                client_id=self._client_id,
                load=self.load,
                frames=self._frames,
                ledgers=self._ledgers.at(info.bookie_id),
                on_lost=partial(self._ledgers.lost, info.bookie_id),
                rng=self._rng.fork(f"LACs to {info.bookie_id}"),
            )
        except TallybookError as error:
            self.load.errors.count(error.wire_code)
            raise


def _look_at(task: asyncio.Task[BookieRpc]) -> None:
    # The error has been kept; there may be nobody left who waits for this task.
    if not task.cancelled():
        task.exception()
