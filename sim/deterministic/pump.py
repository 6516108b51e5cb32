"""The pump of a simulated disk: a task that writes what its source provides, one write at a time.

It behaves like the threaded pump where that matters to a source: the next ``take`` may come before ``done`` of the
previous write, and ``done`` always comes in a turn of its own.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final

from tallybook.core.errors import InvariantViolation, RequestTimeout, StorageError
from tallybook.core.limits import BLOCK_BYTES
from tallybook.runtime.disk.port import PlannedWrite, WriteSource
from tallybook.runtime.metrics.histogram import Histogram
from tallybook.runtime.rng import Rng

_CLOSE_SECONDS: Final = 600.0


class SimPump:
    """A ``Pump`` on the running loop."""

    def __init__(self, source: WriteSource, *, name: str, rng: Rng) -> None:
        self._source = source
        self._rng = rng
        self._loop = asyncio.get_running_loop()
        self._work = asyncio.Event()
        self._completed: deque[PlannedWrite] = deque()
        self._closing = False
        self.write_seconds = Histogram()
        self._killed = False
        self._failure_reported = False
        self._task = self._loop.create_task(self._run(), name=f"pump {name}")

    @property
    def ended(self) -> bool:
        """Whether it has stopped."""
        return self._task.done()

    def kick(self) -> None:
        """Notify it that the source has work."""
        self._work.set()

    async def close(self) -> None:
        """Finish the write in progress, report completed writes, stop."""
        self._closing = True
        self._work.set()
        _, running = await asyncio.wait([self._task], timeout=_CLOSE_SECONDS)
        if running:
            raise RequestTimeout(f"{self._task.get_name()} did not stop within {_CLOSE_SECONDS} s")
        self._deliver()
        if not self._task.cancelled():
            self._task.result()  # raise the error of a source whose ``failed`` raised

    def kill(self) -> None:
        """Stop as in a power loss: nothing more is written or reported."""
        self._killed = True
        self._completed.clear()
        self._task.cancel()

    async def _run(self) -> None:
        while not self._closing:
            self._work.clear()
            try:
                write = self._source.take()
            except Exception as error:  # noqa: BLE001 - any error is reported to the source
                self._deliver()
                self._fail(None, self._violation(error))
                return
            if write is None:
                await self._work.wait()
                continue
            began, data = self._loop.time(), bytes(write.data)
            try:
                if len(data) % BLOCK_BYTES or write.offset % BLOCK_BYTES:
                    # A real device refuses unaligned direct writes.
                    raise InvariantViolation(f"{self._task.get_name()}: {len(data)} bytes at {write.offset}")
                await write.file.write(write.offset, [data])
                if write.data != data:
                    # A device reads the buffer at any moment of the write, so the result would be undefined.
                    raise InvariantViolation(f"{self._task.get_name()}: its source changed what was being written")
                self.write_seconds.observe(self._loop.time() - began)
            except (StorageError, InvariantViolation) as error:
                self._deliver()
                self._fail(write, error)
                return
            self._completed.append(write)
            self._loop.call_soon(self._deliver)
            if self._rng.random() < 0.5:
                await asyncio.sleep(0)

    def _deliver(self) -> None:
        try:
            while self._completed and not self._killed and not self._failure_reported:
                self._source.done(self._completed.popleft())
        except Exception as error:  # noqa: BLE001 - the source missed a completion, so report no later ones
            self._closing = True
            self._work.set()
            self._fail(None, self._violation(error))

    def _fail(self, write: PlannedWrite | None, error: Exception) -> None:
        if not self._failure_reported and not self._killed:
            self._failure_reported = True
            self._source.failed(write, error)

    def _violation(self, cause: Exception) -> InvariantViolation:
        violation = InvariantViolation(f"{self._task.get_name()}: its source raised {cause!r}")
        violation.__cause__ = cause
        return violation
