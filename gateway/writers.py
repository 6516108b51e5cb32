"""The writers of streams that a gateway has, each shared by all its clients who append to that stream.

    nobody -- an Append --> opening --> written -- the last Append ends --> idle -- after a while --> closing --> nobody
                  |            ^           ^                                 |
                  '-- waits ---'           '------------ an Append ----------'

While one is closed, or ends its stream, whoever comes waits for that. Where a gateway has as many as it may, the one
that is idle for longest is closed for who comes.

A stream that another process writes is waited for: it may be let go of, and its owner may be dead. Only who asks for it
takes a stream from an owner who lives. So two gateways behind one load balancer, with clients of one stream at both,
come to rest: one of them has the stream, and the other one's clients are told which. Where clients of both insist, the
one that was fenced does not take the stream back for a while.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from functools import partial
from typing import Final

from tallybook.core.config import GatewaySettings
from tallybook.core.errors import (
    Busy,
    Outcome,
    RequestTimeout,
    StreamClosed,
    StreamFenced,
    StreamOwned,
    TallybookError,
    is_defect,
)
from tallybook.runtime.clock import Clock
from tallybook.runtime.logging import logger
from tallybook.runtime.tasks import Tasks
from tallybook.stream import StreamStore, StreamWriter

from .limits import RETRY_MS
from .losses import Losses
from .metrics import Counts
from .stores import Stores
from .stream_messages import MOST_WAIT_SECONDS

_log = logger("gateway.writers")

OPEN_SECONDS: Final = 60.0
"""How long a stream that nobody owns may take to be opened: what its last writer left has to be settled."""
CLOSE_SECONDS: Final = 30.0
"""How long somebody waits for a writer that is being closed, or ends its stream, before there can be another one."""
LOOK_SECONDS: Final = 0.25
"""Pause between looks at who owns a stream, once a client has waited enough; and at what is closed to make room."""


class SharedWriter:
    """The writer of one stream, and who uses it."""

    def __init__(self, stream_id: str, store: StreamStore, held: ExitStack) -> None:
        self.stream_id = stream_id
        self.store = store
        self.users = 0
        """Calls that use it, or wait for it."""
        self.writer: StreamWriter | None = None
        self.opening: asyncio.Task[StreamWriter] | None = None
        self.at_once = False
        """Whether ``opening`` takes the stream from whoever has it."""
        self.idle_since = 0.0
        """When the last of them went."""
        self.leaving: asyncio.Task[None] | None = None
        """Closes the writer after a while."""
        self.closing = False
        """Whether that has begun."""
        self.ending: asyncio.Task[None] | None = None
        """Ends the stream for ever."""
        self._held = held

    def let_go(self) -> None:
        """Give up what there is of it."""
        opening, self.opening = self.opening, None
        if opening is not None:
            opening.cancel()
        if self.writer is not None:
            self.writer.abandon()
        self._held.close()


class Writers:
    """The writers of a gateway, by stream.

    Args:
        tasks: where they are opened, and closed.
    """

    def __init__(self, stores: Stores, settings: GatewaySettings, counts: Counts, clock: Clock, tasks: Tasks) -> None:
        self._stores = stores
        self._settings = settings
        self._counts = counts
        self._clock = clock
        self._tasks = tasks
        self._shared: dict[str, SharedWriter] = {}
        self._waiting = 0
        """How many wait for one of them to be closed."""
        self._losses = Losses(clock)

    @asynccontextmanager
    async def writer(
        self, namespace: str, name: str, *, wait_s: float, take_over: bool = False
    ) -> AsyncIterator[StreamWriter]:
        """The writer of a stream, for as long as the block lasts.

        Args:
            wait_s: how long to wait for somebody else who writes it.
            take_over: do not wait, but take it.

        Raises:
            StreamOwned: somebody else writes it still.
            Busy: too many streams are written here, all of them by somebody.
            RequestTimeout: it is nobody's, and cannot be opened in time; or this gateway has let go of it, or
                cannot close a writer that has to be closed before.
            As ``StreamStore.writer``.
        """
        with self._stores.of(namespace) as store:
            stream_id = (await store.info(name)).stream_id
            shared = await self._joined(namespace, stream_id)
            try:
                at_once = take_over and not self._losses.lately(stream_id)
                yield await self._opened(shared, name, wait_s, at_once=at_once)
            except StreamFenced:
                if self._losses.note(stream_id):
                    self._counts.writers_fenced += 1
                    _log.warning("stream taken by another writer", stream_id=stream_id)
                raise
            except StreamClosed as error:
                # This gateway has let go of it, which is no fault of the client's: there will be another writer.
                message = f"stream {name} was let go of here before everything was confirmed"
                raise RequestTimeout(message, outcome=error.outcome) from None
            finally:
                self._leave(shared)

    async def end(self, namespace: str, name: str, *, wait_s: float, take_over: bool = False) -> None:
        """End a stream for ever, behind all that its clients here have sent.

        Args:
            wait_s, take_over: as ``writer``.

        Raises:
            StreamEnded: it has ended before.
            As ``writer`` and ``StreamWriter.end_stream``.
        """
        async with self.writer(namespace, name, wait_s=wait_s, take_over=take_over) as writer:
            shared = self._shared[writer.stream_id]
            shared.ending = self._tasks.spawn(writer.end_stream(), name=f"end-{shared.stream_id}")
            await shared.ending

    async def close(self) -> None:
        """Close those that nobody uses, and wait for it. Bound the wait; ``abandon`` the rest."""
        for shared in list(self._shared.values()):
            if not shared.users and not shared.closing:
                self._close_after(shared, 0)
        under_way = [each for shared in self._shared.values() for each in (shared.leaving, shared.ending) if each]
        if under_way:
            await asyncio.wait(under_way)

    def abandon(self) -> None:
        """Let go of all; what they have not confirmed may be there or not."""
        for shared in list(self._shared.values()):
            self._forget(shared)

    # -- coming and going ---------------------------------------------------------------

    async def _joined(self, namespace: str, stream_id: str) -> SharedWriter:
        """What there is of the stream's writer, with one more user."""
        try:
            async with asyncio.timeout(CLOSE_SECONDS):
                while True:
                    shared = self._shared.get(stream_id)
                    if shared is None and len(self._shared) >= self._settings.max_writers:
                        await self._one_less()
                        continue
                    shared = shared or self._begun(namespace, stream_id)
                    if shared.closing and shared.leaving is not None:
                        await asyncio.wait([shared.leaving])
                        continue
                    break
        except TimeoutError:
            message = f"a writer that is to be closed before was not closed in {CLOSE_SECONDS:.0f} s"
            raise RequestTimeout(f"stream {stream_id}: {message}", outcome=Outcome.NOT_DONE) from None
        if shared.leaving is not None:
            shared.leaving.cancel()
            shared.leaving = None
        shared.users += 1
        return shared

    def _begun(self, namespace: str, stream_id: str) -> SharedWriter:
        held = ExitStack()
        shared = SharedWriter(stream_id, held.enter_context(self._stores.of(namespace)), held)
        self._shared[stream_id] = shared
        self._counts.writers += 1
        return shared

    async def _one_less(self) -> None:
        """Close the writer that nobody has used for longest, where there is no room for another one.

        Raises:
            Busy: all are in use.
        """
        unused = [shared for shared in self._shared.values() if not shared.users]
        if not unused:
            most = self._settings.max_writers
            raise Busy(f"{most} streams are written here, which is the limit", retry_after_ms=RETRY_MS)
        self._waiting += 1
        try:
            closing = [shared.leaving for shared in unused if shared.closing and shared.leaving is not None]
            if closing:
                done, _ = await asyncio.wait(closing, timeout=LOOK_SECONDS, return_when=asyncio.FIRST_COMPLETED)
                # One that takes long is not waited for alone, but no more are closed than there are who wait.
                if done or len(closing) >= self._waiting:
                    return
            idle = [shared for shared in unused if not (shared.closing or shared.users)]
            if idle:
                longest = min(idle, key=lambda shared: shared.idle_since)
                await asyncio.wait([self._close_after(longest, 0)], timeout=LOOK_SECONDS)
        finally:
            self._waiting -= 1

    def _leave(self, shared: SharedWriter) -> None:
        shared.users -= 1
        if shared.users:
            return
        writer = shared.writer
        if writer is None or writer.ended:
            self._forget(shared)
        elif self._shared.get(shared.stream_id) is shared:
            shared.idle_since = self._clock.monotonic()
            self._close_after(shared, self._settings.writer_idle_ms / 1000)

    def _forget(self, shared: SharedWriter) -> None:
        if self._shared.get(shared.stream_id) is shared:
            del self._shared[shared.stream_id]
            self._counts.writers -= 1
            shared.let_go()

    def _close_after(self, shared: SharedWriter, seconds: float) -> asyncio.Task[None]:
        if shared.leaving is not None:
            shared.leaving.cancel()
        shared.leaving = self._tasks.spawn(self._close_soon(shared, seconds), name=f"close-{shared.stream_id}")
        return shared.leaving

    async def _close_soon(self, shared: SharedWriter, seconds: float) -> None:
        if seconds:
            await self._clock.sleep(seconds)
        shared.closing = True
        try:
            if shared.writer is not None:
                await shared.writer.close()
        except TallybookError as error:
            if is_defect(error):
                raise
            # The next writer settles what is left.
            _log.info("stream not closed", stream_id=shared.stream_id, error=error.message)
        finally:
            self._forget(shared)

    # -- opening ------------------------------------------------------------------------

    async def _opened(self, shared: SharedWriter, name: str, wait_s: float, *, at_once: bool) -> StreamWriter:
        began = self._clock.monotonic()
        if at_once:
            wait_s = OPEN_SECONDS
        while True:
            if self._shared.get(shared.stream_id) is not shared:
                raise RequestTimeout(f"stream {name} is not opened: this gateway stops", outcome=Outcome.NOT_DONE)
            if shared.ending is not None and not shared.ending.done():
                await asyncio.wait([shared.ending], timeout=CLOSE_SECONDS)
                if not shared.ending.done():
                    raise RequestTimeout(f"stream {name} is being ended still", outcome=Outcome.NOT_DONE)
                continue
            if shared.writer is not None and not shared.writer.ended:
                return shared.writer
            opening = self._opening(shared, at_once=at_once)
            waited = self._clock.monotonic() - began
            await asyncio.wait([opening], timeout=wait_s - waited if waited < wait_s else LOOK_SECONDS)
            waited = self._clock.monotonic() - began
            if not opening.done():
                await self._check_owner(shared, name, waited, wait_s)
                continue
            # If it was cancelled, somebody has come who takes the stream at once.
            error = None if opening.cancelled() else opening.exception()
            if error is not None and (not isinstance(error, StreamOwned) or waited >= wait_s):
                # One of its own for each who waits: a traceback belongs to one only.
                raise error.told_as(error.outcome) if isinstance(error, TallybookError) else error

    def _opening(self, shared: SharedWriter, *, at_once: bool) -> asyncio.Task[StreamWriter]:
        """What makes this gateway the stream's writer; one at a time, for all who wait."""
        if shared.opening is not None and at_once and not shared.at_once:
            shared.opening.cancel()
            shared.opening = None
        if shared.opening is None:
            if shared.writer is not None:
                # It is over, for whatever reason.
                shared.writer.abandon()
                shared.writer = None
            shared.at_once = at_once
            # By its id: the name may be that of another stream by now.
            wanted = shared.store.writer_by_id(shared.stream_id, wait_s=None if at_once else MOST_WAIT_SECONDS)
            shared.opening = self._tasks.spawn(wanted, name=f"open-{shared.stream_id}")
            shared.opening.add_done_callback(partial(self._ready, shared))
        return shared.opening

    def _ready(self, shared: SharedWriter, opening: asyncio.Task[StreamWriter]) -> None:
        """An opening has ended; whoever waited for it may be gone."""
        expected = shared.opening is opening
        if expected:
            shared.opening = None
        if opening.cancelled() or opening.exception() is not None:
            return
        if expected:
            shared.writer = opening.result()
        else:
            opening.result().abandon()

    async def _check_owner(self, shared: SharedWriter, name: str, waited: float, wait_s: float) -> None:
        """See whether it is for somebody else that a client waits still.

        Raises:
            StreamOwned: it is.
            RequestTimeout: it is not, but the stream is not opened all the same.
        """
        info = await shared.store.info_by_id(shared.stream_id)
        if info.owner is not None and info.session != shared.store.session:
            message = f"stream {name} is written by {info.owner}, still so after {wait_s:g} s"
            raise StreamOwned(message, owner=info.owner)
        if waited > wait_s + OPEN_SECONDS:
            raise RequestTimeout(f"stream {name} cannot be opened in {waited:.0f} s: try again")
