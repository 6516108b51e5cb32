"""The pool of stream writers of a gateway. All clients that append to a stream share one writer.

    none -- Append --> opening --> open -- last Append ends --> idle -- writer_idle_ms --> closing --> none
              |           ^          ^                            |
              '-- waits --'          '---------- Append ----------'

- An Append waits while the writer is closed or ends its stream.
- At ``max_writers``, a new stream closes the writer that was idle for longest.
- An Append waits for the owner in another process, which may release the stream or be dead. Only an Append with
  ``take_over`` takes a stream from a live owner. So two gateways behind one load balancer do not fence each other in a
  loop: one owns the stream, and clients of the other get an error that names the owner. If clients of both take over,
  the gateway that was fenced does not take the stream back for a while (``takeovers``).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from functools import partial
from typing import Final

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
from tallybook.runtime.logging import logger
from tallybook.stream import StreamStore, StreamWriter

from ..context import GatewayContext
from ..limits import RETRY_MS
from ..takeovers import RecentTakeovers
from .messages import MAX_WAIT_SECONDS
from .stores import StreamStores

_log = logger("gateway.writers")

OPEN_SECONDS: Final = 60.0
"""How long opening a stream without an owner may take: the tail of its last writer has to be recovered."""
CLOSE_SECONDS: Final = 30.0
"""How long an Append waits for a writer that is being closed or ends its stream."""
OWNER_POLL_SECONDS: Final = 0.25
"""Interval between checks of the owner, after a client's wait has expired, and of writers closed for new ones."""


class SharedWriter:
    """The writer of one stream, with the number of calls that use it."""

    def __init__(self, stream_id: str, store: StreamStore, store_use: ExitStack) -> None:
        self.stream_id = stream_id
        self.store = store
        self.users = 0
        """Calls that use the writer or wait for it."""
        self.writer: StreamWriter | None = None
        self.open_task: asyncio.Task[StreamWriter] | None = None
        self.forced = False
        """Whether ``open_task`` takes the stream from a live owner."""
        self.idle_since = 0.0
        """When the last user left."""
        self.close_task: asyncio.Task[None] | None = None
        """Closes the writer after the idle time."""
        self.closing = False
        """Whether ``close_task`` is past its idle time."""
        self.end_task: asyncio.Task[None] | None = None
        """Ends the stream."""
        self._store_use = store_use

    def release(self) -> None:
        """Abandon the writer and release the store."""
        open_task, self.open_task = self.open_task, None
        if open_task is not None:
            open_task.cancel()
        if self.writer is not None:
            self.writer.abandon()
        self._store_use.close()


class WriterPool:
    """The writers of a gateway by stream."""

    def __init__(self, stores: StreamStores, context: GatewayContext) -> None:
        self._stores = stores
        self._settings = context.settings
        self._counts = context.counts
        self._clock = context.clock
        self._tasks = context.tasks
        self._shared: dict[str, SharedWriter] = {}
        self._waiting = 0
        """Appends that wait for another stream's writer to be closed."""
        self._takeovers = RecentTakeovers(context.clock)

    @asynccontextmanager
    async def writer(
        self, namespace: str, name: str, *, wait_s: float, take_over: bool = False
    ) -> AsyncIterator[StreamWriter]:
        """The writer of a stream, while the block lasts.

        Args:
            wait_s: how long to wait for another owner.
            take_over: take the stream from its owner at once.

        Raises:
            StreamOwned: another writer still owns the stream.
            Busy: ``max_writers`` streams are in use.
            RequestTimeout: the stream has no owner but could not be opened in time; or this gateway abandoned its
                writer, or could not close another writer first.
            As ``StreamStore.writer``.
        """
        with self._stores.of(namespace) as store:
            stream_id = (await store.info(name)).stream_id
            shared = await self._acquire(namespace, stream_id)
            try:
                forced = take_over and not self._takeovers.is_recent(stream_id)
                yield await self._wait_until_open(shared, name, wait_s, forced=forced)
            except StreamFenced:
                if self._takeovers.note(stream_id):
                    self._counts.writers_fenced += 1
                    _log.warning("stream taken by another writer", stream_id=stream_id)
                raise
            except StreamClosed as error:
                # This gateway abandoned the writer. The client is not at fault: it gets a new writer on retry.
                message = f"stream {name}: the gateway abandoned its writer before all records were confirmed"
                raise RequestTimeout(message, outcome=error.outcome) from None
            finally:
                self._release(shared)

    async def end(self, namespace: str, name: str, *, wait_s: float, take_over: bool = False) -> None:
        """Seal a stream after all records that clients of this gateway have sent.

        Args:
            wait_s, take_over: as ``writer``.

        Raises:
            StreamEnded: the stream is sealed already.
            As ``writer`` and ``StreamWriter.seal``.
        """
        async with self.writer(namespace, name, wait_s=wait_s, take_over=take_over) as writer:
            shared = self._shared[writer.stream_id]
            shared.end_task = self._tasks.spawn(writer.seal(), name=f"end-{shared.stream_id}")
            await shared.end_task

    async def close(self) -> None:
        """Close all unused writers. The caller limits the wait and then calls ``abandon``."""
        for shared in list(self._shared.values()):
            if not shared.users and not shared.closing:
                self._schedule_close(shared, 0)
        pending_tasks = [
            each for shared in self._shared.values() for each in (shared.close_task, shared.end_task) if each
        ]
        if pending_tasks:
            await asyncio.wait(pending_tasks)

    def abandon(self) -> None:
        """Abandon all writers. The outcome of unconfirmed records is unknown."""
        for shared in list(self._shared.values()):
            self._forget(shared)

    # -- sharing ------------------------------------------------------------------------

    async def _acquire(self, namespace: str, stream_id: str) -> SharedWriter:
        """The shared writer of a stream, new or existing, with one more user."""
        try:
            async with asyncio.timeout(CLOSE_SECONDS):
                while True:
                    shared = self._shared.get(stream_id)
                    if shared is None and len(self._shared) >= self._settings.max_writers:
                        await self._evict_idle()
                        continue
                    shared = shared or self._new_shared(namespace, stream_id)
                    if shared.closing and shared.close_task is not None:
                        await asyncio.wait([shared.close_task])
                        continue
                    break
        except TimeoutError:
            message = f"another writer, to be closed first, was not closed within {CLOSE_SECONDS:.0f} s"
            raise RequestTimeout(f"stream {stream_id}: {message}", outcome=Outcome.NOT_DONE) from None
        if shared.close_task is not None:
            shared.close_task.cancel()
            shared.close_task = None
        shared.users += 1
        return shared

    def _new_shared(self, namespace: str, stream_id: str) -> SharedWriter:
        store_use = ExitStack()
        shared = SharedWriter(stream_id, store_use.enter_context(self._stores.of(namespace)), store_use)
        self._shared[stream_id] = shared
        self._counts.writers += 1
        return shared

    async def _evict_idle(self) -> None:
        """Close the writer that has been idle for longest, to make space for a new one.

        Raises:
            Busy: all writers are in use.
        """
        unused = [shared for shared in self._shared.values() if not shared.users]
        if not unused:
            limit = self._settings.max_writers
            raise Busy(f"{limit} streams are being written, which is max_writers", retry_after_ms=RETRY_MS)
        self._waiting += 1
        try:
            closing = [shared.close_task for shared in unused if shared.closing and shared.close_task is not None]
            if closing:
                done, _ = await asyncio.wait(closing, timeout=OWNER_POLL_SECONDS, return_when=asyncio.FIRST_COMPLETED)
                # If these closes take long, close another one, but never more than there are waiting Appends.
                if done or len(closing) >= self._waiting:
                    return
            idle = [shared for shared in unused if not (shared.closing or shared.users)]
            if idle:
                longest = min(idle, key=lambda shared: shared.idle_since)
                await asyncio.wait([self._schedule_close(longest, 0)], timeout=OWNER_POLL_SECONDS)
        finally:
            self._waiting -= 1

    def _release(self, shared: SharedWriter) -> None:
        shared.users -= 1
        if shared.users:
            return
        writer = shared.writer
        if writer is None or writer.ended:
            self._forget(shared)
        elif self._shared.get(shared.stream_id) is shared:
            shared.idle_since = self._clock.monotonic()
            self._schedule_close(shared, self._settings.writer_idle_ms / 1000)

    def _forget(self, shared: SharedWriter) -> None:
        if self._shared.get(shared.stream_id) is shared:
            del self._shared[shared.stream_id]
            self._counts.writers -= 1
            shared.release()

    def _schedule_close(self, shared: SharedWriter, seconds: float) -> asyncio.Task[None]:
        if shared.close_task is not None:
            shared.close_task.cancel()
        shared.close_task = self._tasks.spawn(self._close_later(shared, seconds), name=f"close-{shared.stream_id}")
        return shared.close_task

    async def _close_later(self, shared: SharedWriter, seconds: float) -> None:
        if seconds:
            await self._clock.sleep(seconds)
        shared.closing = True
        try:
            if shared.writer is not None:
                await shared.writer.close()
        except TallybookError as error:
            if is_defect(error):
                raise
            # The next writer recovers the tail.
            _log.info("stream not closed", stream_id=shared.stream_id, error=error.message)
        finally:
            self._forget(shared)

    # -- opening ------------------------------------------------------------------------

    async def _wait_until_open(self, shared: SharedWriter, name: str, wait_s: float, *, forced: bool) -> StreamWriter:
        began = self._clock.monotonic()
        if forced:
            wait_s = OPEN_SECONDS
        while True:
            if self._shared.get(shared.stream_id) is not shared:
                raise RequestTimeout(f"stream {name} was not opened: the gateway stops", outcome=Outcome.NOT_DONE)
            if shared.end_task is not None and not shared.end_task.done():
                await asyncio.wait([shared.end_task], timeout=CLOSE_SECONDS)
                if not shared.end_task.done():
                    raise RequestTimeout(f"stream {name} is still being sealed", outcome=Outcome.NOT_DONE)
                continue
            if shared.writer is not None and not shared.writer.ended:
                return shared.writer
            open_task = self._start_opening(shared, forced=forced)
            waited = self._clock.monotonic() - began
            await asyncio.wait([open_task], timeout=wait_s - waited if waited < wait_s else OWNER_POLL_SECONDS)
            waited = self._clock.monotonic() - began
            if not open_task.done():
                await self._check_owner(shared, name, waited, wait_s)
                continue
            # A call with ``take_over`` cancels the task and starts another one.
            error = None if open_task.cancelled() else open_task.exception()
            if error is not None and (not isinstance(error, StreamOwned) or waited >= wait_s):
                # Each waiting call raises its own copy: an exception has only one traceback.
                raise error.with_outcome(error.outcome) if isinstance(error, TallybookError) else error

    def _start_opening(self, shared: SharedWriter, *, forced: bool) -> asyncio.Task[StreamWriter]:
        """The task that opens the writer; all waiting calls share it."""
        if shared.open_task is not None and forced and not shared.forced:
            shared.open_task.cancel()
            shared.open_task = None
        if shared.open_task is None:
            if shared.writer is not None:
                # The writer has failed or ended.
                shared.writer.abandon()
                shared.writer = None
            shared.forced = forced
            # By id: the name may belong to another stream by now.
            wanted = shared.store.writer_by_id(shared.stream_id, wait_s=None if forced else MAX_WAIT_SECONDS)
            shared.open_task = self._tasks.spawn(wanted, name=f"open-{shared.stream_id}")
            shared.open_task.add_done_callback(partial(self._on_opened, shared))
        return shared.open_task

    def _on_opened(self, shared: SharedWriter, open_task: asyncio.Task[StreamWriter]) -> None:
        """Keep the writer of an ended ``open_task``, or abandon it if no call waits for that task."""
        expected = shared.open_task is open_task
        if expected:
            shared.open_task = None
        if open_task.cancelled() or open_task.exception() is not None:
            return
        if expected:
            shared.writer = open_task.result()
        else:
            open_task.result().abandon()

    async def _check_owner(self, shared: SharedWriter, name: str, waited: float, wait_s: float) -> None:
        """Give up waiting if another writer owns the stream, or if opening takes too long.

        Raises:
            StreamOwned: another writer owns the stream.
            RequestTimeout: no one owns it, but it was not opened within ``OPEN_SECONDS``.
        """
        info = await shared.store.info_by_id(shared.stream_id)
        if info.owner is not None and info.session != shared.store.session:
            message = f"stream {name} is owned by {info.owner}, still after {wait_s:g} s"
            raise StreamOwned(message, owner=info.owner)
        if waited > wait_s + OPEN_SECONDS:
            raise RequestTimeout(f"stream {name} was not opened within {waited:.0f} s: try again")
