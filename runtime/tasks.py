"""The tasks seam: background tasks whose failure is never lost, and worker threads.

An asyncio ``TaskGroup`` ends with its block, but the background tasks of a server run until it stops.
``Tasks`` keeps references to them. When an *essential* task ends, the owner must stop, too: a bookie
without its checkpoint task must not go on answering requests.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextvars import Context
from typing import Any, ParamSpec, Protocol, Self, TypeVar

from tallybook.core.errors import InvariantViolation, TallybookError

from .concurrency.thread_pools import shut_down_pools
from .tuning import stand_back

P = ParamSpec("P")
T = TypeVar("T")


class Tasks:
    """The background tasks of one owner.

    Args:
        owner: name used in task names and messages.
        on_fatal: called on the event loop with the name and the error of an essential task that ended.
        closed: error class that ``spawn`` raises after the close; a caller error where callers can cause it.
    """

    def __init__(
        self,
        owner: str,
        on_fatal: Callable[[str, BaseException], None],
        *,
        closed: type[TallybookError] = InvariantViolation,
    ) -> None:
        self._owner = owner
        self._on_fatal = on_fatal
        self._closed = closed
        # A dict, because it keeps its order and a set of tasks does not.
        self._running: dict[asyncio.Task[Any], bool] = {}
        self._closing = False

    @property
    def closing(self) -> bool:
        """Whether ``spawn`` is refused."""
        return self._closing

    def spawn(
        self, work: Coroutine[Any, Any, T], *, name: str, essential: bool = False, detached: bool = False
    ) -> asyncio.Task[T]:
        """Run ``work`` in the background.

        An essential task must run until the group closes: if it raises or returns before,
        ``on_fatal`` is called. The error of any other task stays in the returned task.

        Args:
            detached: run outside the trace of the caller, for work that also serves others.

        Raises:
            TallybookError: the group is closed; the class is the ``closed`` argument of the constructor.
        """
        if self._closing:
            work.close()
            raise self._closed(f"{self._owner} is closed: task {name} is not started")
        context = Context() if detached else None
        task = asyncio.get_running_loop().create_task(work, name=f"{self._owner}/{name}", context=context)
        self._running[task] = essential
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        essential = self._running.pop(task)
        if task.cancelled() or self._closing:
            return
        error = task.exception()
        if essential:
            self._on_fatal(task.get_name(), error or RuntimeError(f"{task.get_name()} ended early"))

    def stop(self) -> None:
        """Cancel all tasks and refuse new ones. ``close`` waits for their end."""
        self._closing = True
        for task in list(self._running):
            task.cancel()

    async def close(self) -> None:
        """Cancel all tasks and wait until they have ended."""
        running = list(self._running)
        self.stop()
        await asyncio.gather(*running, return_exceptions=True)


def raise_defect(owner: str) -> Callable[[str, BaseException], None]:
    """An ``on_fatal`` that raises in the event loop, which logs the error; the owner continues without the task."""

    def fail(name: str, error: BaseException) -> None:
        raise InvariantViolation(f"task {name} of {owner} died: {error!r}") from error

    return fail


async def run_together(*works: Coroutine[Any, Any, object]) -> None:
    """Run all of ``works`` concurrently until the last one has ended.

    The first failure cancels the others and is raised by itself, not in an exception group.
    """
    try:
        async with asyncio.TaskGroup() as group:
            for work in works:
                group.create_task(work)
    except ExceptionGroup as failed:
        raise failed.exceptions[0] from None


async def run_until_set(stop: asyncio.Event, work: Coroutine[Any, Any, T]) -> T | None:
    """Run ``work`` until it ends or ``stop`` is set; then it is cancelled, and the result is ``None``."""
    loop = asyncio.get_running_loop()
    working, stopping = loop.create_task(work), loop.create_task(stop.wait())
    try:
        await asyncio.wait((working, stopping), return_when=asyncio.FIRST_COMPLETED)
    finally:
        stopping.cancel()
        working.cancel()  # no effect if it has ended
        await asyncio.gather(working, stopping, return_exceptions=True)
    return None if working.cancelled() else working.result()


class SideTask:
    """One concurrent task at a time beside its owner, for reading ahead or writing behind.

    An async context manager: on exit it cancels the task that still runs and waits for its end.
    """

    def __init__(self) -> None:
        self._task: asyncio.Task[Any] | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def start(self, work: Coroutine[Any, Any, Any]) -> None:
        """Wait for the previous task, then start ``work``.

        Raises:
            The error of the previous task: then ``work`` is not started.
        """
        try:
            await self.result()
        except BaseException:
            work.close()
            raise
        self._task = asyncio.get_running_loop().create_task(work)

    async def result(self) -> Any:
        """Wait for the task that was started last and return its result; ``None`` if that was returned before.

        Raises:
            The error of the task.
        """
        if self._task is None:
            return None
        await asyncio.wait([self._task])
        task, self._task = self._task, None
        return task.result()


class Workers(Protocol):
    """Runs long computations without I/O outside the event loop."""

    async def run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call ``function`` and return its result or raise its error."""

    async def close(self) -> None:
        """Let running calls finish, then stop."""


class ThreadWorkers:
    """A small thread pool.

    Args:
        background: run the threads at low priority (``tuning.stand_back``).
    """

    def __init__(self, threads: int, name: str, *, background: bool = False) -> None:
        self._name = name
        prepare = stand_back if background else None
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix=name, initializer=prepare)

    async def run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call ``function`` on one of the threads."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._pool, lambda: function(*args, **kwargs))

    async def close(self) -> None:
        """Let running calls finish, drop queued calls and end the threads.

        Raises:
            RequestTimeout: a call did not end in time.
        """
        await shut_down_pools([self._pool], self._name, drop_queued=True)


class InlineWorkers:
    """Runs calls on the event loop, for simulation, which has no threads."""

    async def run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call ``function`` now."""
        return function(*args, **kwargs)

    async def close(self) -> None:
        """Nothing to end."""
