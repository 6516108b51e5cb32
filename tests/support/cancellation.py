"""Cancels a coroutine at each of its awaits in turn.

async for _ in each_cut(lambda: reader.read_last_add_confirmed()):
    ...                                  # it was cancelled at one more await; the last time it ran to its end
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Generator
from typing import Any

MAX_AWAITS = 1_000


class _CutAt:
    """Awaits a coroutine, and cancels its task at the ``at``-th wait."""

    def __init__(self, work: Coroutine[Any, Any, object], at: int) -> None:
        self._steps = work.__await__()
        self._at = at
        self.awaits = 0

    def __await__(self) -> Generator[Any, Any, object]:
        failure: BaseException | None = None
        while True:
            try:
                waits = self._steps.send(None) if failure is None else self._steps.throw(failure)
            except StopIteration as end:
                return end.value
            self.awaits += 1
            if self.awaits == self._at:
                task = asyncio.current_task()
                if task is not None:
                    task.cancel()
            try:
                yield waits
                failure = None
            except BaseException as error:  # noqa: BLE001 - passed on to the coroutine
                failure = error


async def each_cut(begin: Callable[[], Coroutine[Any, Any, object]]) -> AsyncIterator[int]:
    """Run the work again and again, cancelled at its first await, its second one, and so on, until it ends first.

    Yields:
        The number of the await at which it was cancelled; the last time, how many awaits it had.
    """
    for at in range(1, MAX_AWAITS):
        cut = _CutAt(begin(), at)

        async def run(cut: _CutAt = cut) -> None:
            await cut

        # In a task group the cancellation stays in this task, and other errors are raised.
        async with asyncio.TaskGroup() as group:
            group.create_task(run())
        yield min(at, cut.awaits)
        if cut.awaits < at:
            return
