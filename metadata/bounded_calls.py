"""Many small calls to a metadata store, a bounded number at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Final, TypeVar

T = TypeVar("T")
U = TypeVar("U")

AT_ONCE: Final = 32
"""Calls under way at a time: enough to hide round trips, too few to crowd others out."""


async def each(work: Callable[[T], Awaitable[U]], items: Iterable[T]) -> list[U]:
    """What ``work`` gives for each item, in their order; ``AT_ONCE`` of them are under way at a time.

    Raises:
        Whatever ``work`` raised for the first item that failed, once nothing is under way any more.
    """
    wanted, found = list(items), list[U]()
    for at in range(0, len(wanted), AT_ONCE):
        for result in await asyncio.gather(*map(work, wanted[at : at + AT_ONCE]), return_exceptions=True):
            if isinstance(result, BaseException):
                raise result
            found.append(result)
    return found
