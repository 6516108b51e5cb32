"""Paged listings of streams, namespaces, segments and subscriptions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Sequence
from contextlib import aclosing
from typing import Any, Final, TypeVar, cast

from tallybook.core.errors import TallybookError
from tallybook.runtime.concurrency.async_iterators import PagedListing, ResumableIterator
from tallybook.runtime.concurrency.handle_lifetime import Lifetime

T = TypeVar("T")
K = TypeVar("K", str, int)

LISTED_TOGETHER: Final = 64
"""Items of one page."""


def listing(
    found: Callable[[K], AsyncIterator[T]],
    key_of: Callable[[T], K],
    after: K,
    spawn: Callable[[Coroutine[Any, Any, Any]], asyncio.Task[Any]],
    lifetime: Lifetime,
) -> PagedListing[T]:
    """A listing of the items of ``found``; after an error it resumes with the next item.

    Args:
        found: an async generator of the items after a key, in the order of keys.
        key_of: the key of an item.
        after: the key to begin after.
        spawn, lifetime: see ``ResumableIterator``.
    """

    async def pieces() -> AsyncGenerator[Sequence[T], None]:
        nonlocal after
        async with aclosing(cast("AsyncGenerator[T, None]", found(after))) as items:
            piece: list[T] = []
            try:
                async for each in items:
                    piece.append(each)
                    if len(piece) == LISTED_TOGETHER:
                        # Only now: if the page is cancelled, the next call reads it again.
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

    return PagedListing(ResumableIterator(pieces, spawn, lifetime))
