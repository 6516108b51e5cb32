"""An event loop for callers that block: it runs in a thread of its own, and they wait for what it does.

    with LoopThread("copy") as loop:
        reader = loop.run(client.open_ledger(7))
        for batch in loop.iterate(reader.read_batches(0, 99)): ...

What is iterated over is produced a little ahead of its consumer, who may stop at any item.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Coroutine, Iterator
from contextlib import aclosing
from types import TracebackType
from typing import Any, Final, Self, TypeVar

import uvloop

T = TypeVar("T")

_END: Final = object()


class LoopThread:
    """An event loop that runs until it is closed. Belongs to one thread: only that one may call it.

    Args:
        name: of the thread.
    """

    def __init__(self, name: str) -> None:
        self._loop = uvloop.new_event_loop()
        # A daemon: a process whose caller forgot to close may still end.
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run ``work`` to its end; whatever stops the caller meanwhile (Ctrl-C) cancels it.

        Raises:
            Whatever ``work`` raises.
        """
        running = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return running.result()
        except BaseException:
            running.cancel()
            raise

    def iterate(self, source: AsyncGenerator[T, None], *, ahead: int = 2) -> Iterator[T]:
        """The items of ``source``, which is ended with this iterator.

        Args:
            ahead: items that are made before they are asked for.

        Raises:
            Whatever ``source`` raises, at the place where it did.
        """
        items: asyncio.Queue[Any] = asyncio.Queue()
        room = asyncio.Semaphore(ahead)

        async def produce() -> None:
            try:
                async with aclosing(source):
                    while True:
                        await room.acquire()
                        items.put_nowait(await anext(source))
            except StopAsyncIteration:
                return
            finally:
                items.put_nowait(_END)

        async def take() -> Any:
            item = await items.get()
            room.release()
            return item

        producing: list[asyncio.Task[None]] = []

        async def begin() -> None:
            producing.append(asyncio.get_running_loop().create_task(produce()))

        async def outcome() -> None:
            await producing[0]

        async def end() -> None:
            for task in producing:
                task.cancel()
            await asyncio.gather(*producing, return_exceptions=True)

        try:
            # Who is interrupted here may not know yet that it has begun, and has to end it all the same.
            self.run(begin())
            while (item := self.run(take())) is not _END:
                yield item
            self.run(outcome())
        finally:
            self.run(end())

    def close(self) -> None:
        """End the loop, once what still runs on it has been cancelled."""
        if self._loop.is_closed():
            return
        self.run(_cancel_all())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


async def _cancel_all() -> None:
    me = asyncio.current_task()
    running = sorted(asyncio.all_tasks(), key=lambda task: task.get_name())
    others = [task for task in running if task is not me]
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
    loop = asyncio.get_running_loop()
    await loop.shutdown_asyncgens()
    await loop.shutdown_default_executor()
