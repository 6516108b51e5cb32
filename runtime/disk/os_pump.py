"""The pump of the real disk: a thread that executes the writes of its source, one durable write at a time.

The thread takes the next write as soon as the device is
free, without a turn of the event loop in between. Completed writes are reported to the event
loop in batches, with at most one scheduled call at a time. A kick costs a flag test while the
thread is awake.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Final

from tallybook.core.errors import InvariantViolation, RequestTimeout

from ..metrics.histogram import Histogram
from .os_file import RealFile
from .port import PlannedWrite, WriteSource

CLOSE_SECONDS: Final = 60.0
_JOIN_SECONDS: Final = 1.0


class ThreadPump:
    """A ``Pump`` with its own thread. Constructed, kicked and closed on one event loop."""

    def __init__(self, source: WriteSource, *, name: str) -> None:
        self._source = source
        self._name = name
        self._loop = asyncio.get_running_loop()
        self._ended: asyncio.Future[None] = self._loop.create_future()
        self._completed: deque[PlannedWrite] = deque()
        self._failure: tuple[PlannedWrite, Exception] | None = None
        self._defect: BaseException | None = None
        self._failure_reported = False
        self._drain_scheduled = False
        self._closing = False
        self.write_seconds = Histogram()
        """Duration of each write on the device; updated by the thread only."""
        # The thread sleeps by acquiring the gate. Only ``kick`` releases it, and only while the thread sleeps.
        self._gate = threading.Lock()
        self._gate.acquire()
        self._asleep = False
        self._thread = threading.Thread(target=self._run, name=f"pump-{name}", daemon=True)
        self._thread.start()

    def kick(self) -> None:
        """Signal that the source has work."""
        if self._asleep:
            self._asleep = False
            self._gate.release()

    async def close(self) -> None:
        """Finish the write in progress, report completed writes and stop.

        Raises:
            RequestTimeout: the write in progress did not end within ``CLOSE_SECONDS``.
        """
        self._closing = True
        self.kick()
        done, _ = await asyncio.wait([self._ended], timeout=CLOSE_SECONDS)
        if not done:
            raise RequestTimeout(f"pump {self._name}: a write did not end within {CLOSE_SECONDS} s")
        self._thread.join(_JOIN_SECONDS)  # the thread has just set the future and ends: this does not block

    # -- on the pump's thread -------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._pump()
        except BaseException as error:  # noqa: BLE001 - any error must be reported to the source
            self._defect = error
        self._tell(self._end)

    def _pump(self) -> None:
        take = self._source.take
        while not self._closing:
            write = take() or self._sleep()
            if write is None:
                continue
            try:
                file = write.file
                if not isinstance(file, RealFile):
                    raise InvariantViolation(f"pump {self._name}: {file.path} is a file of another disk")
                began = time.monotonic()
                file.write_aligned(write.data, write.offset)
                self.write_seconds.observe(time.monotonic() - began)
            except Exception as error:  # noqa: BLE001 - any error must be reported to the source
                self._failure = (write, error)
                return
            self._completed.append(write)
            if not self._drain_scheduled:
                self._drain_scheduled = True
                self._tell(self._drain)

    def _sleep(self) -> PlannedWrite | None:
        """Wait for a kick, unless work arrived before the thread was marked as asleep."""
        self._gate.acquire(blocking=False)  # discard a kick that came too late for an earlier sleep
        self._asleep = True
        write = self._source.take()
        if write is None and not self._closing:
            self._gate.acquire()
        self._asleep = False
        return write

    def _tell(self, callback: Callable[[], None]) -> None:
        try:
            self._loop.call_soon_threadsafe(callback)
        except RuntimeError:
            # The loop is closed: completed writes cannot be reported any more.
            self._closing = True

    # -- on the event loop ----------------------------------------------------------------

    def _drain(self) -> None:
        self._drain_scheduled = False  # first, so that writes that complete from now on schedule another drain
        completed, done = self._completed, self._source.done
        try:
            while completed and not self._failure_reported:
                done(completed.popleft())
        except Exception as error:  # noqa: BLE001 - it has missed a write, so later ones must not be reported
            self._closing = True
            self.kick()
            self._fail(None, self._violation(error))

    def _end(self) -> None:
        self._drain()
        try:
            if self._failure is not None:
                self._fail(*self._failure)
            elif self._defect is not None:
                self._fail(None, self._violation(self._defect))
        finally:
            self._ended.set_result(None)

    def _fail(self, write: PlannedWrite | None, error: Exception) -> None:
        """Report to the source, once, that the pump has stopped."""
        if not self._failure_reported:
            self._failure_reported = True
            self._source.failed(write, error)

    def _violation(self, cause: BaseException) -> InvariantViolation:
        violation = InvariantViolation(f"pump {self._name}: its source raised {cause!r}")
        violation.__cause__ = cause
        return violation
