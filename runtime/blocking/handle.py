"""The base of blocking handles: runs the calls of an asyncio handle on its loop.

The public methods of the blocking handles are generated from the asyncio handles by ``scripts/gen-blocking``.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, Final, ParamSpec, TypeVar

from ..concurrency.async_iterators import PagedListing
from .iteration import LoopIterator
from .loop_thread import LoopThread

P = ParamSpec("P")
T = TypeVar("T")

LISTED_TOGETHER: Final = 1_000
"""Items of a listing that are passed from the loop to the caller at a time."""


class BlockingHandle:
    """A handle for callers that block."""

    def __init__(self, loop: LoopThread) -> None:
        self._thread = loop

    @property
    def _loop(self) -> LoopThread:
        return self._thread

    def _run(self, work: Callable[P, Coroutine[Any, Any, T]], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a call of the asyncio handle, and wait for its result."""
        return self._loop.run(work(*args, **kwargs))

    def _iterate(self, source: Callable[P, AsyncIterator[T]], *args: P.args, **kwargs: P.kwargs) -> LoopIterator[T]:
        """Iterate over what a call of the asyncio handle returns."""
        loop, items = self._loop, source(*args, **kwargs)
        return loop.iterate(items, together=LISTED_TOGETHER if isinstance(items, PagedListing) else 1)
