"""Lifetime of a handle: refuses calls after the close and ends the calls that wait during it.

    self._lifetime = Lifetime("ledger 7: its writer", parent=client_lifetime)

    with self._lifetime.use():     in each call that waits: raises at once if the handle is closed
        await ...                  the close cancels this wait, and the call raises HandleClosed

Only a wait that the close has cancelled raises ``HandleClosed``; a cancellation by the caller stays a cancellation. A
handle belongs to the event loop that used it first; a call from another loop is refused.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine
from functools import wraps
from itertools import count
from threading import get_ident
from types import TracebackType
from typing import Any, Protocol, TypeVar, cast
from weakref import WeakValueDictionary

from tallybook.core.errors import HandleClosed, InvalidArgument, Outcome, PeerError, TallybookError

_forks = 0
"""Number of forks between the first process and this one: a fork copies a loop that seems to run."""


def _count_fork() -> None:
    global _forks  # noqa: PLW0603 - of the process, like the loop
    _forks += 1


os.register_at_fork(after_in_child=_count_fork)


class Lifetime:
    """The time from the construction of a handle to its close.

    Args:
        what: the handle's name in errors.
        parent: lifetime of the handle's owner; its end also ends this one.
        error: class of the error that calls raise after the end.
        on_end: called once, at the end, before waiting calls are cancelled.
    """

    def __init__(
        self,
        what: str,
        *,
        parent: Lifetime | None = None,
        error: type[HandleClosed] = HandleClosed,
        on_end: Callable[[], object] | None = None,
    ) -> None:
        self._what = what
        self._error = error
        self._on_end = on_end
        self._parent = parent
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = (0, 0)
        """The thread in which the loop runs, and ``_forks`` in its process."""
        self._message: str | None = None
        self._uses: dict[HandleUse, None] = {}
        # Keyed by number: a WeakSet has no order, but simulation needs a fixed one.
        self._children: WeakValueDictionary[int, Lifetime] = WeakValueDictionary()
        self._numbers = count()
        if parent is not None:
            parent.adopt(self)

    def adopt(self, child: Lifetime) -> None:
        """Register a child lifetime, which ends with this one."""
        self._children[next(self._numbers)] = child
        if self._message is not None:
            child.end(self._message)

    @property
    def ended(self) -> bool:
        """Whether the handle is closed."""
        return self._message is not None

    def check(self) -> None:
        """Refuse a call after the end or from another event loop.

        Raises:
            HandleClosed: the handle or its owner is closed.
            InvalidArgument: the handle belongs to another event loop.
        """
        if self._message is not None:
            raise self.closed(Outcome.NOT_DONE)
        self.check_loop()

    def check_loop(self) -> None:
        """Refuse a call from another event loop than that of the first call.

        Raises:
            InvalidArgument: the handle belongs to another event loop.
        """
        # Once per append. Before Python 3.12, get_running_loop makes a system call, of half a microsecond.
        if self._loop is None or (get_ident(), _forks) != self._thread or not self._loop.is_running():
            self._bind()

    def _bind(self) -> None:
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            raise InvalidArgument(f"{self._what} is used outside of its event loop") from None
        if self._loop not in {None, loop}:
            raise InvalidArgument(f"{self._what} belongs to another event loop: open a client in each asyncio.run")
        if self._parent is not None:
            self._parent.check_loop()
        self._loop, self._thread = loop, (get_ident(), _forks)

    def closed(self, outcome: Outcome = Outcome.UNKNOWN) -> TallybookError:
        """The error of a call that comes after the end or was cancelled by it."""
        return self._error(self._message or f"{self._what} is closed", outcome=outcome)

    def use(self, outcome: Outcome = Outcome.UNKNOWN) -> HandleUse:
        """A context manager around the waits of one call.

        Args:
            outcome: outcome in the error of a call that the end cancels.
        """
        return HandleUse(self, self._uses, outcome)

    def end(self, message: str = "") -> None:
        """End the lifetime: cancel waiting calls and refuse later ones. A second call does nothing."""
        if self._message is not None:
            return
        self._message = message or f"{self._what} is closed"
        for child in list(self._children.values()):
            child.end(self._message)
        if self._on_end is not None:
            self._on_end()
        for use in list(self._uses):
            use.cut_off()


class HandleUse:
    """One call of a handle while it waits."""

    __slots__ = ("_cut_off", "_lifetime", "_outcome", "_requests", "_task", "_uses")

    def __init__(self, lifetime: Lifetime, uses: dict[HandleUse, None], outcome: Outcome) -> None:
        self._lifetime = lifetime
        self._uses = uses
        self._outcome = outcome
        self._task: asyncio.Task[Any] | None = None
        self._requests = 0
        self._cut_off = False

    def __enter__(self) -> None:
        self._lifetime.check()
        self._task = asyncio.current_task()
        if self._task is not None:
            self._requests = self._task.cancelling()
        self._uses[self] = None

    def cut_off(self) -> None:
        """Cancel the wait, unless its task itself ends the handle."""
        if self._task is not None and self._task is not asyncio.current_task():
            self._cut_off = True
            self._task.cancel()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._uses.pop(self, None)
        if self._cut_off and self._task is not None:
            requests = self._task.uncancel()
            if kind is asyncio.CancelledError and requests <= self._requests:
                raise self._lifetime.closed(self._outcome) from error
        if isinstance(error, PeerError) and self._lifetime.ended:
            # A part of the handle that it waited for was closed first.
            raise self._lifetime.closed(error.outcome) from error


class Closable(Protocol):
    """A handle that can be closed gracefully or abandoned."""

    async def close(self) -> object:
        """Finish pending work and close the handle."""

    def abandon(self) -> None:
        """Release everything at once, without finishing pending work."""


async def close_or_abandon(handle: Closable, *, failed: bool) -> None:
    """Leave the ``with`` block of a handle: close it; abandon it if the block or the close has failed.

    Args:
        failed: the block has raised.

    Raises:
        Any error of the close.
    """
    if failed:
        handle.abandon()
        return
    try:
        await handle.close()
    except BaseException:
        handle.abandon()
        raise


class BlockingClosable(Protocol):
    """``Closable`` of the blocking API."""

    def close(self) -> object:
        """Finish pending work and close the handle."""

    def abandon(self) -> None:
        """Release everything at once, without finishing pending work."""


def end_block(handle: BlockingClosable, *, failed: bool) -> None:
    """``close_or_abandon`` of the blocking API."""
    if failed:
        handle.abandon()
        return
    try:
        handle.close()
    except BaseException:
        handle.abandon()
        raise


F = TypeVar("F", bound=Callable[..., Coroutine[Any, Any, Any]])


def while_open(method: F) -> F:
    """Decorator for a method of a handle: runs it under ``Lifetime.use`` of the handle's ``_lifetime``."""

    @wraps(method)
    async def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        with self._lifetime.use():
            return await method(self, *args, **kwargs)

    return cast("F", call)
