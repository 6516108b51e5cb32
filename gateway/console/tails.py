"""Where streams end, and how far their subscriptions are behind, for a list of them.

A stream says itself only where its last segment ended; of one that is being written the rest is asked of bookies, and
so is each lag. So it is kept for a while, several are asked at once, and a list waits for them only so long. A look
goes on beside whoever wants it, and is shared by all who do: a slow cluster is asked no more by many pages than by one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import aclosing, suppress
from math import inf
from typing import Final, NamedTuple

from tallybook.core.errors import NoSuchStream, TallybookError
from tallybook.runtime.clock import Clock
from tallybook.runtime.logging import logger
from tallybook.runtime.tasks import Tasks
from tallybook.stream import StreamInfo, StreamStore

from ..stores import Stores
from .lags import lag_of, raise_defect

_log = logger("console")

KEPT_SECONDS: Final = 10.0
MOST_KEPT: Final = 1_000
AT_ONCE: Final = 8
PATIENCE_SECONDS: Final = 3.0
"""How long a list waits for what is not kept. What is older than both together is left out."""
LOOK_SECONDS: Final = 30.0
"""How long one look may take: those that hang must not keep all others from their turn."""
MOST_SUBSCRIPTIONS: Final = 20
"""Of one stream, whose lags are looked at."""


class Tail(NamedTuple):
    """The end of a stream."""

    next_sequence: int | None = None
    """Of the record that comes next; ``None``: it cannot be told now."""
    lag: int | None = None
    """Of the subscription that is the furthest behind; ``None``: there is none, or it is not known."""
    subscriptions: int | None = None
    """How many there are, or ``MOST_SUBSCRIPTIONS`` if there may be more."""


class Tails:
    """Those that were looked at lately.

    Args:
        tasks: where looks run. They end before the stores do.
    """

    def __init__(self, stores: Stores, clock: Clock, tasks: Tasks) -> None:
        self._stores = stores
        self._clock = clock
        self._tasks = tasks
        self._turns = asyncio.Semaphore(AT_ONCE)
        self._looks: dict[str, asyncio.Task[None]] = {}
        self._kept: dict[str, tuple[float, Tail]] = {}

    async def of(self, streams: Sequence[StreamInfo]) -> dict[str, Tail]:
        """The tails of streams by their ids; those that nobody tells in time are left out."""
        looks = [look for each in streams if self._age(each) >= KEPT_SECONDS and (look := self._look(each))]
        if looks:
            await asyncio.wait(looks, timeout=PATIENCE_SECONDS)
            for look in looks:
                if look.done() and not look.cancelled():
                    look.result()
        fresh = (each.stream_id for each in streams if self._age(each) < KEPT_SECONDS + PATIENCE_SECONDS)
        return {stream_id: self._kept[stream_id][1] for stream_id in fresh}

    def _age(self, found: StreamInfo) -> float:
        kept = self._kept.get(found.stream_id)
        return inf if kept is None else self._clock.monotonic() - kept[0]

    def _look(self, found: StreamInfo) -> asyncio.Task[None] | None:
        """The look at a stream that is under way, or a new one; ``None``: too many wait for their turn."""
        look = self._looks.get(found.stream_id)
        if look is None and len(self._looks) < MOST_KEPT:
            look = self._tasks.spawn(self._keep(found), name=f"tail of {found.stream_id}", apart=True)
            self._looks[found.stream_id] = look
            look.add_done_callback(lambda done: self._ended(found.stream_id, done))
        return look

    def _ended(self, stream_id: str, look: asyncio.Task[None]) -> None:
        del self._looks[stream_id]
        error = None if look.cancelled() else look.exception()
        if error is not None:
            # Nobody may have waited for it.
            _log.error("a look has failed", what="tail", stream_id=stream_id, error=repr(error))

    async def _keep(self, found: StreamInfo) -> None:
        async with self._turns:
            with suppress(TimeoutError), self._stores.of(found.namespace) as store:
                async with asyncio.timeout(LOOK_SECONDS):
                    tail = await _tail(store, found)
                self._kept.pop(found.stream_id, None)
                self._kept[found.stream_id] = self._clock.monotonic(), tail
        if len(self._kept) > MOST_KEPT:
            del self._kept[next(iter(self._kept))]


async def _tail(store: StreamStore, found: StreamInfo) -> Tail:
    try:
        last = None if found.ended else await store.last(found.name)
        end = found.next_sequence if last is None else last[1] + 1
        lags: list[int | None] = []
        async with aclosing(store.subscriptions(found.name)) as all_of_them:
            async for each in all_of_them:
                if len(lags) == MOST_SUBSCRIPTIONS:
                    break
                lags.append((await lag_of(store, found.name, each, end)).records)
    except NoSuchStream:
        return Tail()
    except TallybookError as error:
        raise_defect(error)
        return Tail()
    return Tail(end, max((lag for lag in lags if lag is not None), default=None), len(lags))
