"""How a process that moves much data uses the machine: its memory, its processors, and the time of the collector.

*Memory.* Messages of some hundred KiB come and go a thousand times a second. As it is set up,
glibc gives each of them back to the system when it is freed, and the next one is made of fresh
pages, which the kernel must find and clear first. That was one page fault for every 3 KiB
written, and most of the time of a bookie in the kernel; with freed memory kept, there is hardly
any (measured: 180 to 350 faults a MiB against 1 to 7, and half as many entries again in a second).

*Processors.* A message passes through three threads of a bookie: gRPC's, the event loop, the
journal's. Linux takes the processor from whoever runs to give it to the thread that was just
woken, so they interrupt each other for every message. As "batch" threads they get it in turns:
whoever runs goes on until it has nothing to do, and the next one finds more than one message
waiting (measured, three bookies and a client on two cores: a sixth to a third more entries a
second with a fifth less processor time for each, and 0.6 of the latency at half load).

*The collector of garbage* stops everything while it looks at what lives. The modules of a program alone are
30 to 60 ms at each full collection, and find nothing (measured with a writer of 1,000 records a second: each of the
two in 15 s held up some fifty records).
"""

from __future__ import annotations

import ctypes
import gc
import os
import sys
import threading
from collections.abc import Callable
from typing import Final, cast

from tallybook.core.limits import MIB

BACKGROUND_NICENESS: Final = 10
"""Beside a busy thread of the usual kind it gets a tenth of a processor; where one is idle, all of it."""

# The numbers that <malloc.h> gives to the options.
_M_TRIM_THRESHOLD: Final = -1
_M_TOP_PAD: Final = -2
_M_MMAP_THRESHOLD: Final = -3
_M_ARENA_MAX: Final = -8

_OPTIONS: Final = (
    # Larger than any message: what is above it goes back to the system when it is freed, as before.
    (_M_MMAP_THRESHOLD, 8 * MIB),
    # So much may lie unused at the end of an arena. It bounds, with the number of arenas, what is kept for nothing.
    (_M_TRIM_THRESHOLD, 64 * MIB),
    (_M_TOP_PAD, 4 * MIB),
    (_M_ARENA_MAX, 2),
)

_COLLECTED_AFTER: Final = (10_000, 20, 50)
"""Objects, collections of the youngest, collections of the next: after so many each generation is looked at."""


def tune_process() -> None:
    """Keep freed memory, and let threads take turns. To be called early: before there are threads and much memory.

    The command line does it. A program that uses the client library may, since it is about the whole process.
    """
    keep_freed_memory()
    take_turns()


def keep_freed_memory() -> bool:
    """Let the process use freed memory again, instead of giving it back and asking for other.

    Returns:
        Whether the C library knows how; where it is not glibc, nothing is changed.
    """
    mallopt = _libc("mallopt", ctypes.c_int, ctypes.c_int)
    return mallopt is not None and all(mallopt(option, value) for option, value in _OPTIONS)


def give_back_freed_memory() -> bool:
    """Give the system back what was freed and kept, wherever it lies in the heap.

    For a process that has done much at once and now waits: what it keeps is for what comes next, and nothing comes.

    Returns:
        Whether the C library knows how; where it is not glibc, nothing is changed.
    """
    trim = _libc("malloc_trim", ctypes.c_size_t)
    if trim is None:
        return False
    trim(0)
    return True


def _libc(name: str, *argument_types: type) -> Callable[..., int] | None:
    """A function of the C library that returns an int, if it has one of this name."""
    try:
        function = getattr(ctypes.CDLL(None), name)
    except (AttributeError, OSError):
        return None
    function.argtypes, function.restype = argument_types, ctypes.c_int
    return cast(Callable[..., int], function)


def settle_memory() -> None:
    """What was made until now stays: the collector of garbage need not look at it again, nor look so often.

    To be called when a program that runs for long has made what it needs throughout. A user's program may, too.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_COLLECTED_AFTER)


def stand_back() -> bool:
    """Let every other thread of the machine go before this one where there are not processors for all.

    For work that somebody wants done, and nobody waits for.

    Returns:
        Whether it is so now; elsewhere than on Linux nothing is changed.
    """
    if sys.platform != "linux":
        return False
    try:
        # On Linux, the priority of a thread, where POSIX has that of its process.
        thread = threading.get_native_id()
        if os.getpriority(os.PRIO_PROCESS, thread) < BACKGROUND_NICENESS:
            os.setpriority(os.PRIO_PROCESS, thread, BACKGROUND_NICENESS)
    except OSError:
        return False
    return True


def take_turns() -> bool:
    """Let this thread, and those it starts from now on, run in turns instead of interrupting each other.

    Needs no privilege. A scheduling policy that was given to the process from outside stays.

    Returns:
        Whether it is so now; elsewhere than on Linux nothing is changed.
    """
    try:
        if os.sched_getscheduler(0) == os.SCHED_OTHER:
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
        return os.sched_getscheduler(0) == os.SCHED_BATCH
    except (AttributeError, OSError):
        # Not Linux, or a sandbox that forbids the call: it is about speed alone.
        return False
