"""Calls that open a handle, for ``await`` and for ``async with``.

Either:

    writer = await client.create_ledger()

    async with client.create_ledger() as writer:      opens the handle, and closes it at the end of the block
        await writer.append(b"hello")
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator
from contextlib import AbstractAsyncContextManager
from functools import wraps
from types import TracebackType
from typing import Any, Generic, ParamSpec, TypeVar

from .handle_lifetime import while_open

P = ParamSpec("P")
H = TypeVar("H", bound=AbstractAsyncContextManager[Any, Any])


class Opening(Coroutine[Any, Any, H], Generic[H]):
    """The coroutine of a call that opens a handle; also an async context manager around the handle."""

    __slots__ = ("_coroutine", "_handle")

    def __init__(self, coroutine: Coroutine[Any, Any, H]) -> None:
        self._coroutine = coroutine
        self._handle: H

    def __await__(self) -> Generator[Any, Any, H]:
        return self._coroutine.__await__()

    def send(self, value: Any) -> Any:
        """See ``Coroutine``; asyncio calls it if the coroutine is a task."""
        return self._coroutine.send(value)

    def throw(self, *exception: Any) -> Any:
        """See ``Coroutine``."""
        return self._coroutine.throw(*exception)

    def close(self) -> None:
        """See ``Coroutine``: the handle will not be opened."""
        self._coroutine.close()

    async def __aenter__(self) -> H:
        self._handle = await self._coroutine
        await self._handle.__aenter__()
        return self._handle

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._handle.__aexit__(kind, error, trace)


def opens(method: Callable[P, Coroutine[Any, Any, H]]) -> Callable[P, Opening[H]]:
    """Decorator for a method that opens a handle: ``while_open``, and the call can stand in ``async with``."""
    guarded = while_open(method)

    @wraps(method)
    def call(*args: P.args, **kwargs: P.kwargs) -> Opening[H]:
        return Opening(guarded(*args, **kwargs))

    return call
