"""Where streams end, and how far their subscriptions are behind, for a list of them.

A stream says itself only where its last segment ended; of one that is being written the rest is asked of bookies, and
so is each lag. So it is kept for a while, several are asked at once, and a list waits for them only so long.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import aclosing, suppress
from typing import Final, NamedTuple

from tallybook.core.errors import NoSuchStream, TallybookError
from tallybook.runtime.clock import Clock
from tallybook.stream import StreamInfo, StreamStore

from .lags import lag_of, raise_defect

KEPT_SECONDS: Final = 10.0
MOST_KEPT: Final = 1_000
AT_ONCE: Final = 8
PATIENCE_SECONDS: Final = 3.0
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
    """Those that were looked at lately."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._kept: dict[str, tuple[float, Tail]] = {}

    async def of(self, store: StreamStore, streams: Sequence[StreamInfo]) -> dict[str, Tail]:
        """The tails of streams by their ids; those that nobody tells in time are left out."""
        turns = asyncio.Semaphore(AT_ONCE)

        async def look(found: StreamInfo) -> None:
            async with turns:
                tail = await _tail(store, found)
            self._kept.pop(found.stream_id, None)
            self._kept[found.stream_id] = self._clock.monotonic(), tail
            if len(self._kept) > MOST_KEPT:
                del self._kept[next(iter(self._kept))]

        now = self._clock.monotonic()
        old = [each for each in streams if now - self._kept.get(each.stream_id, (-KEPT_SECONDS,))[0] >= KEPT_SECONDS]
        with suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE_SECONDS):
                await asyncio.gather(*map(look, old))
        return {each.stream_id: self._kept[each.stream_id][1] for each in streams if each.stream_id in self._kept}


async def _tail(store: StreamStore, found: StreamInfo) -> Tail:
    try:
        last = None if found.ended else await store.last(found.name)
        end = found.next_sequence if last is None else last[1] + 1
        lags: list[int | None] = []
        async with aclosing(store.subscriptions(found.name)) as all_of_them:  # type: ignore[type-var]
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
