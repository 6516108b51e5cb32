"""Sleeps on an event loop with a precision of some microseconds.

Event loop timers have a resolution of a millisecond, which is too coarse for an open loop of 20,000 entries per second.
On Linux this uses a timerfd; elsewhere the loop's own timer.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import sys
import time
from typing import Final, Self

_CLOCK_MONOTONIC: Final = 1
_TFD_TIMER_ABSTIME: Final = 1
_TFD_FLAGS: Final = os.O_NONBLOCK | os.O_CLOEXEC
_NS_PER_S: Final = 1_000_000_000


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class _TimerSpec(ctypes.Structure):
    _fields_ = (("interval", _Timespec), ("value", _Timespec))


class Pacer:
    """Sleeps until a time of ``time.monotonic_ns``. One sleeper at a time. Close it after use."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._due: asyncio.Future[None] | None = None
        self._descriptor = -1
        if sys.platform == "linux":
            self._library = ctypes.CDLL(None, use_errno=True)
            self._descriptor = self._library.timerfd_create(_CLOCK_MONOTONIC, _TFD_FLAGS)
        if self._descriptor >= 0:
            self._loop.add_reader(self._descriptor, self._ticked)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._descriptor >= 0:
            self._loop.remove_reader(self._descriptor)
            os.close(self._descriptor)

    async def until(self, moment_ns: int) -> None:
        """Return at ``moment_ns`` or a little later; at once if it has passed."""
        if moment_ns <= time.monotonic_ns():
            return
        if self._descriptor < 0:
            await asyncio.sleep((moment_ns - time.monotonic_ns()) / _NS_PER_S)
            return
        self._due = self._loop.create_future()
        value = _TimerSpec(_Timespec(0, 0), _Timespec(moment_ns // _NS_PER_S, moment_ns % _NS_PER_S))
        if self._library.timerfd_settime(self._descriptor, _TFD_TIMER_ABSTIME, ctypes.byref(value), None):
            raise OSError(ctypes.get_errno(), "the timer cannot be set")
        await self._due

    def _ticked(self) -> None:
        os.read(self._descriptor, 8)
        if self._due is not None and not self._due.done():
            self._due.set_result(None)
