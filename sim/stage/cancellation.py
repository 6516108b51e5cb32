"""Work that is cancelled at one of its awaits: the first, the second, and so on, each of them in its turn.

async for _ in each_cut(lambda: reader.read_last_add_confirmed()):
    ...                                  # it was cancelled at another await; the last time it came to its end
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Generator
from typing import Any

MOST_AWAITS = 1_000


class _CutAt:
    """Awaits a coroutine, and cancels the task that does so where it waits for the ``at``-th time."""

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
            except BaseException as error:  # noqa: BLE001 - whatever it is belongs to the work
                failure = error


async def each_cut(begin: Callable[[], Coroutine[Any, Any, object]]) -> AsyncIterator[int]:
    """Cancel the work at its first await, then anew at its second one, and so on, until it ends before that.

    Yields:
        At which await it was cancelled, and at the end how many it had.
    """
    for at in range(1, MOST_AWAITS):
        cut = _CutAt(begin(), at)

        async def run(cut: _CutAt = cut) -> None:
            await cut

        # A task of a group may be cancelled alone; what else befalls it is raised.
        async with asyncio.TaskGroup() as group:
            group.create_task(run())
        yield min(at, cut.awaits)
        if cut.awaits < at:
            return
