"""Concurrent calls to a metadata store, with a bound on their number."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Final, TypeVar

T = TypeVar("T")
U = TypeVar("U")

MAX_CONCURRENCY: Final = 32
"""Concurrent calls: enough to hide round trips, too few to starve other clients."""


async def map_bounded(work: Callable[[T], Awaitable[U]], items: Iterable[T]) -> list[U]:
    """Results of ``work`` for all items, in order; at most ``MAX_CONCURRENCY`` calls are in flight.

    Raises:
        The error of the first item that failed, after all calls in flight have ended.
    """
    wanted, found = list(items), list[U]()
    for at in range(0, len(wanted), MAX_CONCURRENCY):
        for result in await asyncio.gather(*map(work, wanted[at : at + MAX_CONCURRENCY]), return_exceptions=True):
            if isinstance(result, BaseException):
                raise result
            found.append(result)
    return found
