"""Listings of what a store of streams has, piece by piece."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Sequence
from contextlib import aclosing
from typing import Any, Final, TypeVar, cast

from tallybook.core.errors import TallybookError
from tallybook.runtime.lifetime import Lifetime
from tallybook.runtime.steps import Listing, Steps

T = TypeVar("T")
K = TypeVar("K", str, int)

LISTED_TOGETHER: Final = 64
"""Items that a listing brings at a time."""


def listing(
    found: Callable[[K], AsyncIterator[T]],
    key_of: Callable[[T], K],
    after: K,
    spawn: Callable[[Coroutine[Any, Any, Any]], asyncio.Task[Any]],
    lifetime: Lifetime,
) -> Listing[T]:
    """What ``found`` gives; behind an error it goes on with the next item.

    Args:
        found: an async generator of what comes after a key, in the order of keys.
        key_of: the key of an item.
        after: key to begin after.
        spawn, lifetime: see ``Steps``.
    """

    async def pieces() -> AsyncGenerator[Sequence[T], None]:
        nonlocal after
        async with aclosing(cast("AsyncGenerator[T, None]", found(after))) as items:
            piece: list[T] = []
            try:
                async for each in items:
                    piece.append(each)
                    if len(piece) == LISTED_TOGETHER:
                        # Only now: what is cancelled before it has given a piece begins it anew.
                        after = key_of(each)
                        yield piece
                        piece = []
            except TallybookError:
                if piece:
                    after = key_of(piece[-1])
                    yield piece
                raise
            if piece:
                after = key_of(piece[-1])
                yield piece

    return Listing(Steps(pieces, spawn, lifetime))
