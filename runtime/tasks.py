"""The tasks seam: background work that cannot die unnoticed.

A ``TaskGroup`` of asyncio ends with its block; the parts of a server live until it stops.
``Tasks`` keeps them, and treats the death of an *essential* one as the death of the owner:
a bookie whose checkpoint task is gone must not go on answering.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextvars import Context
from typing import Any, ParamSpec, Protocol, Self, TypeVar

from tallybook.core.errors import InvariantViolation, TallybookError

from .thread_pools import end_pools
from .tuning import stand_back

P = ParamSpec("P")
T = TypeVar("T")


class Tasks:
    """The background tasks of one owner.

    Args:
        owner: name for task names and messages.
        on_fatal: called once, on the event loop, with the error that ended an essential task.
        closed: class of the error of a start after the close, where the caller may be the one to blame for it.
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
        """Whether no more may be started."""
        return self._closing

    def spawn(
        self, work: Coroutine[Any, Any, T], *, name: str, essential: bool = False, apart: bool = False
    ) -> asyncio.Task[T]:
        """Run ``work`` in the background.

        An essential task is to run until the group closes: if it raises, or returns early,
        ``on_fatal`` is called. The error of another task is kept in the task, for whoever
        holds it.

        Args:
            apart: it serves others than whoever starts it, so it is part of no trace of theirs.

        Raises:
            HandleClosed, InvariantViolation: the group is closed; which of them, the group was made with.
        """
        if self._closing:
            work.close()
            raise self._closed(f"{self._owner} is closed: task {name} is not started")
        context = Context() if apart else None
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
        """Cancel everything, and let nothing be started any more; ``close`` waits for the end."""
        self._closing = True
        for task in list(self._running):
            task.cancel()

    async def close(self) -> None:
        """Cancel everything and wait until it has ended."""
        running = list(self._running)
        self.stop()
        await asyncio.gather(*running, return_exceptions=True)


async def run_together(*works: Coroutine[Any, Any, object]) -> None:
    """Run all of ``works`` at once, until the last one has ended.

    The first failure cancels the others, and is raised as it is: who waits expects one error, and no group of them.
    """
    try:
        async with asyncio.TaskGroup() as group:
            for work in works:
                group.create_task(work)
    except ExceptionGroup as failed:
        raise failed.exceptions[0] from None


async def unless_set(stop: asyncio.Event, work: Coroutine[Any, Any, T]) -> T | None:
    """The result of ``work``, or ``None`` where ``stop`` was set first: then ``work`` was cancelled, and has ended."""
    loop = asyncio.get_running_loop()
    working, stopping = loop.create_task(work), loop.create_task(stop.wait())
    try:
        await asyncio.wait((working, stopping), return_when=asyncio.FIRST_COMPLETED)
    finally:
        stopping.cancel()
        working.cancel()  # nothing, if it has ended
        await asyncio.gather(working, stopping, return_exceptions=True)
    return None if working.cancelled() else working.result()


class Beside:
    """One piece of work at a time, beside what its owner does meanwhile: reading ahead, or sending behind.

    An async context manager: when the block is left, what still runs is cancelled, and has ended.
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
        """Run ``work`` once what ran before has ended.

        Raises:
            Whatever that raised: then ``work`` does not begin.
        """
        try:
            await self.result()
        except BaseException:
            work.close()
            raise
        self._task = asyncio.get_running_loop().create_task(work)

    async def result(self) -> Any:
        """Wait for what was started last; its result, the first time. ``None`` if there is nothing.

        Raises:
            Whatever it raised.
        """
        if self._task is None:
            return None
        await asyncio.wait([self._task])
        task, self._task = self._task, None
        return task.result()


class Workers(Protocol):
    """Where pure but long computations run, so that the event loop's turns stay short."""

    async def run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call ``function`` and return its result or raise its error."""

    async def close(self) -> None:
        """Finish what runs and stop."""


class ThreadWorkers:
    """A small pool of threads.

    Args:
        background: every other thread of the machine goes before them.
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
        """Let running calls finish, drop queued ones, end the threads.

        Raises:
            RequestTimeout: a call did not end in time.
        """
        await end_pools([self._pool], self._name, drop_queued=True)


class InlineWorkers:
    """Calls at once: for simulation, where there are no threads."""

    async def run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call ``function`` now."""
        return function(*args, **kwargs)

    async def close(self) -> None:
        """Nothing to end."""
