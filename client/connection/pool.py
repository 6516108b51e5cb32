"""The connection pool: one connection per bookie, opened on first use, shared by all handles, replaced when broken.

A broken connection over which ledgers are written is replaced at once, any other on its next use.

The address and incarnation of a bookie come from the membership and are cached: until the bookie restarts, reconnecting
needs no metadata. Concurrent callers share one attempt. After a failed attempt, callers get its error until a pause
has passed.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Final, NamedTuple

from tallybook.core.errors import BookieUnavailable, MetadataUnavailable, TallybookError
from tallybook.core.settings import ClientSettings
from tallybook.metadata.store import BookieInfo, Membership
from tallybook.runtime.clock import Clock
from tallybook.runtime.concurrency.backoff import jittered
from tallybook.runtime.logging import logger
from tallybook.runtime.rate_limited_log import LogRateLimiter
from tallybook.runtime.rng import Rng, SystemRng
from tallybook.runtime.tasks import Tasks
from tallybook.runtime.transport import Transport
from tallybook.wire.batches import FrameCache

from ..load import ClientLoad
from ..open_ledgers import OpenLedgers
from ..refusals import is_refusal
from .connection import BookieRpc, open_bookie
from .tcp_routes import TcpRoutes

REFUSAL_SECONDS: Final = 60.0
"""Interval of the log warning that a bookie and this client refuse each other; attempts are far more frequent."""

_log = logger("client.connections")


class _FailedAttempt(NamedTuple):
    """A failed attempt, and the monotonic second from which another one may be made."""

    error: TallybookError
    again_at: float


class BookieConnections:
    """The connections of one client.

    Args:
        cluster_id: bookies of another cluster refuse the connection; empty: not checked.
        client_id: names this client in the bookies' logs.
        rng: for pauses before a reconnect; ``None``: the system's.
        tcp: see ``open_bookie``.
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
        tcp: TcpRoutes | None = None,
    ) -> None:
        self._transport = transport
        self._tcp = tcp
        self._membership = membership
        self._settings = settings
        self._clock = clock
        self._tasks = tasks
        self._cluster_id = cluster_id
        self._client_id = client_id
        self._frames = FrameCache()
        self.load = ClientLoad(clock)
        """Counters of requests to all bookies."""
        self._open: dict[str, BookieRpc] = {}
        self._opening: dict[str, asyncio.Task[BookieRpc]] = {}
        self._failed: dict[str, _FailedAttempt] = {}
        self._known: dict[str, BookieInfo] = {}
        self._refusal_log_limit = LogRateLimiter(REFUSAL_SECONDS)
        self._rng = rng or SystemRng()
        self._ledgers = OpenLedgers(self.get, clock, tasks, self._rng, first_pause_s=settings.reconnect_ms / 1000)
        self._closed = False

    async def get(self, bookie_id: str) -> BookieRpc:
        """A working connection.

        Raises:
            BookieUnavailable: the bookie is not registered, or does not answer within the connect timeout; also for a
                short time after such a failure.
            StaleIncarnation: another incarnation than the registered one answers.
            MetadataUnavailable: the bookie's address is not known.
            TallybookError: the bookie refuses this client, for this reason.
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
            opening = self._tasks.spawn(self._connect(bookie_id), name=f"connect to {bookie_id}", detached=True)
            opening.add_done_callback(_retrieve_error)
            self._opening[bookie_id] = opening
        # ``asyncio.wait`` does not cancel the attempt if one caller is cancelled: others wait for it, too.
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
            pause_seconds = jittered(self._rng, self._settings.reconnect_ms / 1000)
            self._failed[bookie_id] = _FailedAttempt(error, self._clock.monotonic() + pause_seconds)
            self._log_refusal(bookie_id, error)
            raise
        finally:
            del self._opening[bookie_id]
        self._failed.pop(bookie_id, None)
        self._refusal_log_limit.forget(bookie_id)
        self._open[bookie_id] = connection
        return connection

    def _log_refusal(self, bookie_id: str, error: TallybookError) -> None:
        """Log, rate-limited, if a bookie and this client refuse each other: an operator has to act."""
        if is_refusal(error):
            suppressed = self._refusal_log_limit.due(self._clock.monotonic(), bookie_id)
            if suppressed is not None:
                message = error.message
                _log.warning("no connection to bookie", bookie_id=bookie_id, error=message, untold_count=suppressed)

    async def _attempt(self, bookie_id: str) -> BookieRpc:
        """Close a broken connection and open another one, within the connect timeout in total."""
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

    async def _find(self, bookie_id: str, timeout_seconds: float) -> BookieRpc:
        """Connect to the cached address of the bookie; ask the membership only if that fails.

        So a lost connection can be reopened while the metadata store is unavailable. The hello verifies that the
        bookie's incarnation is the cached one.
        """
        known = self._known.get(bookie_id)
        missed: TallybookError | None = None
        if known is not None:
            try:
                async with asyncio.timeout(timeout_seconds):
                    return await self._open_at(known)
            except TimeoutError:
                missed = BookieUnavailable(f"{bookie_id} does not answer at {known.address}")
            except TallybookError as error:
                # Another bookie may answer at that address now.
                missed = error
        try:
            async with asyncio.timeout(timeout_seconds):
                info = (await self._membership.bookies()).get(bookie_id)
        except TimeoutError:
            # Not BookieUnavailable: the bookie must not be blamed for the metadata store.
            raise missed or MetadataUnavailable("the metadata store did not list the bookies in time") from None
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
                tcp=self._tcp,
            )
        except TallybookError as error:
            self.load.errors.count(error.wire_code)
            raise


def _retrieve_error(task: asyncio.Task[BookieRpc]) -> None:
    # ``_failed`` has the error; without this asyncio would warn if no caller waits for the task any more.
    if not task.cancelled():
        task.exception()
