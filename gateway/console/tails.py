"""Cache of the ends of streams and the lags of their subscriptions, for lists of streams.

The metadata of a stream has only the end of its last closed segment; the end of an open segment, and so each lag, is
read from bookies. Therefore results are cached, lookups run concurrently in the background, and a list waits for them
only ``WAIT_SECONDS``. Requests share lookups, so many open pages cause no more load than one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import aclosing, suppress
from math import inf
from typing import Final, NamedTuple

from tallybook.core.errors import NoSuchStream, TallybookError, is_defect
from tallybook.runtime.clock import Clock
from tallybook.runtime.logging import logger
from tallybook.runtime.tasks import Tasks
from tallybook.stream import StreamInfo, StreamStore, SubscriptionInfo

from ..streams.stores import StreamStores

_log = logger("console")

CACHE_SECONDS: Final = 10.0
MAX_CACHED: Final = 1_000
MAX_CONCURRENCY: Final = 8
WAIT_SECONDS: Final = 3.0
"""How long a list waits for lookups. Results older than ``CACHE_SECONDS + WAIT_SECONDS`` are left out."""
LOOKUP_SECONDS: Final = 30.0
"""Timeout of one lookup: lookups that hang must not block the others."""
MAX_SUBSCRIPTIONS: Final = 20
"""Number of subscriptions per stream whose lag is read."""


class StreamTail(NamedTuple):
    """The end of a stream and its largest lag."""

    next_sequence: int | None = None
    """Sequence number of the next record; ``None``: not known now."""
    lag: int | None = None
    """Largest lag of a subscription in records; ``None``: no subscription, or not known."""
    subscriptions: int | None = None
    """Number of subscriptions; ``MAX_SUBSCRIPTIONS`` if there may be more."""


class TailCache:
    """Recently read ends of streams.

    Args:
        tasks: runs lookups; closed before the stores.
    """

    def __init__(self, stores: StreamStores, clock: Clock, tasks: Tasks) -> None:
        self._stores = stores
        self._clock = clock
        self._tasks = tasks
        self._slots = asyncio.Semaphore(MAX_CONCURRENCY)
        self._lookups: dict[str, asyncio.Task[None]] = {}
        self._cached: dict[str, tuple[float, StreamTail]] = {}

    async def of(self, streams: Sequence[StreamInfo]) -> dict[str, StreamTail]:
        """The tails of streams by stream id; those not known in time are left out."""
        lookups = [lookup for each in streams if self._age(each) >= CACHE_SECONDS and (lookup := self._lookup(each))]
        if lookups:
            await asyncio.wait(lookups, timeout=WAIT_SECONDS)
            for lookup in lookups:
                if lookup.done() and not lookup.cancelled():
                    lookup.result()
        fresh = (each.stream_id for each in streams if self._age(each) < CACHE_SECONDS + WAIT_SECONDS)
        return {stream_id: self._cached[stream_id][1] for stream_id in fresh}

    def _age(self, found: StreamInfo) -> float:
        cached = self._cached.get(found.stream_id)
        return inf if cached is None else self._clock.monotonic() - cached[0]

    def _lookup(self, found: StreamInfo) -> asyncio.Task[None] | None:
        """The lookup of a stream in flight, or a new one; ``None``: too many lookups are queued."""
        lookup = self._lookups.get(found.stream_id)
        if lookup is None and len(self._lookups) < MAX_CACHED:
            lookup = self._tasks.spawn(self._refresh(found), name=f"tail of {found.stream_id}", detached=True)
            self._lookups[found.stream_id] = lookup
            lookup.add_done_callback(lambda done: self._lookup_ended(found.stream_id, done))
        return lookup

    def _lookup_ended(self, stream_id: str, lookup: asyncio.Task[None]) -> None:
        del self._lookups[stream_id]
        error = None if lookup.cancelled() else lookup.exception()
        if error is not None:
            # Logged because no request may be waiting for it.
            _log.error("lookup failed", what="tail", stream_id=stream_id, error=repr(error))

    async def _refresh(self, found: StreamInfo) -> None:
        async with self._slots:
            with suppress(TimeoutError), self._stores.of(found.namespace) as store:
                async with asyncio.timeout(LOOKUP_SECONDS):
                    tail = await _tail(store, found)
                self._cached.pop(found.stream_id, None)
                self._cached[found.stream_id] = self._clock.monotonic(), tail
        if len(self._cached) > MAX_CACHED:
            del self._cached[next(iter(self._cached))]


async def _tail(store: StreamStore, found: StreamInfo) -> StreamTail:
    try:
        last = None if found.sealed else await store.last(found.name)
        end = found.next_sequence if last is None else last[1] + 1
        lags: list[int | None] = []
        async with aclosing(store.subscriptions(found.name)) as all_of_them:
            async for each in all_of_them:
                if len(lags) == MAX_SUBSCRIPTIONS:
                    break
                lags.append(await _records_behind(store, found.name, each, end))
    except NoSuchStream:
        return StreamTail()
    except TallybookError as error:
        raise_defect(error)
        return StreamTail()
    return StreamTail(end, max((lag for lag in lags if lag is not None), default=None), len(lags))


async def _records_behind(store: StreamStore, stream: str, found: SubscriptionInfo, end: int) -> int | None:
    """Records between a subscription and the end of its stream; cheaper than ``StreamStore.lag``; ``None``: unknown."""
    if found.cursor is None:
        return None
    try:
        return max(0, end - await store.sequence_of(stream, found.cursor))
    except TallybookError as error:
        raise_defect(error)
        return None


def raise_defect(error: TallybookError) -> None:
    """Raise an error that is a defect; the caller leaves out the value for other errors."""
    if is_defect(error):
        raise error
