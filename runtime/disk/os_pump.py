"""The pump of the real disk: a thread that writes what its source gives it, one durable write at a time.

This is the hottest loop of a bookie. The thread takes the next write itself as soon as the
device is free, so no turn of the event loop lies between two writes; the event loop hears of
finished writes in bunches, by at most one scheduled call at a time; and a kick costs a flag
test while the thread is awake.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Final

from tallybook.core.errors import InvariantViolation, RequestTimeout

from .disk import PlannedWrite, WriteSource
from .disk_file import RealFile
from .histogram import Histogram

CLOSE_SECONDS: Final = 60.0
_JOIN_SECONDS: Final = 1.0


class ThreadPump:
    """A ``Pump`` with a thread of its own. Made, kicked and closed on one event loop."""

    def __init__(self, source: WriteSource, *, name: str) -> None:
        self._source = source
        self._name = name
        self._loop = asyncio.get_running_loop()
        self._ended: asyncio.Future[None] = self._loop.create_future()
        self._completed: deque[PlannedWrite] = deque()
        self._failure: tuple[PlannedWrite, Exception] | None = None
        self._defect: BaseException | None = None
        self._told = False
        self._drain_scheduled = False
        self._closing = False
        self.write_seconds = Histogram()
        """How long the device took for each write; written by the thread alone."""
        # The thread sleeps by acquiring the gate. Only ``kick`` opens it, and only for a sleeper.
        self._gate = threading.Lock()
        self._gate.acquire()
        self._asleep = False
        self._thread = threading.Thread(target=self._run, name=f"pump-{name}", daemon=True)
        self._thread.start()

    def kick(self) -> None:
        """Say that the source has work."""
        if self._asleep:
            self._asleep = False
            self._gate.release()

    async def close(self) -> None:
        """Finish the write in progress, deliver what is done, and stop.

        Raises:
            RequestTimeout: the write in progress did not end within ``CLOSE_SECONDS``.
        """
        self._closing = True
        self.kick()
        done, _ = await asyncio.wait([self._ended], timeout=CLOSE_SECONDS)
        if not done:
            raise RequestTimeout(f"pump {self._name}: a write did not end within {CLOSE_SECONDS} s")
        self._thread.join(_JOIN_SECONDS)  # its last act was to set the future: this does not wait

    # -- on the pump's thread -------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._pump()
        except BaseException as error:  # noqa: BLE001 - whatever it is, the source must hear of it
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
            except Exception as error:  # noqa: BLE001 - whatever it is, the source must hear of it
                self._failure = (write, error)
                return
            self._completed.append(write)
            if not self._drain_scheduled:
                self._drain_scheduled = True
                self._tell(self._drain)

    def _sleep(self) -> PlannedWrite | None:
        """Wait for a kick, unless work came before anybody could know that a kick was needed."""
        self._gate.acquire(blocking=False)  # drop the kick of an earlier sleep that came too late for it
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
            # The loop is closed: nobody is left to be told, and nothing more may be promised.
            self._closing = True

    # -- on the event loop ----------------------------------------------------------------

    def _drain(self) -> None:
        self._drain_scheduled = False  # before looking: what completes from now on schedules again
        completed, done = self._completed, self._source.done
        try:
            while completed and not self._told:
                done(completed.popleft())
        except Exception as error:  # noqa: BLE001 - it has missed a write: it must not hear of later ones
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
        """Tell the source that there will be nothing more."""
        if not self._told:
            self._told = True
            self._source.failed(write, error)

    def _violation(self, cause: BaseException) -> InvariantViolation:
        violation = InvariantViolation(f"pump {self._name}: its source raised {cause!r}")
        violation.__cause__ = cause
        return violation
