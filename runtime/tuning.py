"""Tuning of a process with high throughput: memory allocator, scheduling policy and garbage collector.

*Memory.* A bookie allocates and frees about a thousand messages of some 100 KiB per second. By default glibc returns
each of them to the system, and the kernel must find and clear fresh pages for the next one. *Scheduling.* A message
passes through three threads of a bookie: gRPC, event loop, journal. By default Linux preempts the running thread in
favour of the one that was just woken, so they interrupt each other for every message. With the policy SCHED_BATCH a
thread runs until it has nothing to do, and the next one finds several messages. *Garbage collector.* A full collection
stops the process. The imported modules alone take 30 to 60 ms of it and never contain garbage.

docs/understand/performance.md has the figures that were measured.
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
"""A thread with this niceness gets a tenth of a processor beside a busy normal thread, and all of an idle one."""

# Option numbers of mallopt() in <malloc.h>.
_M_TRIM_THRESHOLD: Final = -1
_M_TOP_PAD: Final = -2
_M_MMAP_THRESHOLD: Final = -3
_M_ARENA_MAX: Final = -8

_OPTIONS: Final = (
    # Larger than any message. Larger blocks are still returned to the system when they are freed.
    (_M_MMAP_THRESHOLD, 8 * MIB),
    # Unused memory at the end of an arena. With the number of arenas it bounds the memory that is kept unused.
    (_M_TRIM_THRESHOLD, 64 * MIB),
    (_M_TOP_PAD, 4 * MIB),
    (_M_ARENA_MAX, 2),
)

_COLLECTED_AFTER: Final = (10_000, 20, 50)
"""Thresholds of ``gc.set_threshold`` for the three generations."""


def tune_process() -> None:
    """Tune allocator and scheduling of this process. Call it early, before threads and large allocations.

    The ``tallybook`` command calls it. A program that uses the client library may call it, too; it affects the whole
    process.
    """
    keep_freed_memory()
    take_turns()


def keep_freed_memory() -> bool:
    """Let the allocator keep freed memory for reuse, instead of returning it to the system.

    Returns:
        Whether it was set; without glibc nothing is changed.
    """
    mallopt = _libc("mallopt", ctypes.c_int, ctypes.c_int)
    return mallopt is not None and all(mallopt(option, value) for option, value in _OPTIONS)


def give_back_freed_memory() -> bool:
    """Return freed memory to the system, from everywhere in the heap.

    For a process that is idle after a high load.

    Returns:
        Whether it was done; without glibc nothing is changed.
    """
    trim = _libc("malloc_trim", ctypes.c_size_t)
    if trim is None:
        return False
    trim(0)
    return True


def _libc(name: str, *argument_types: type) -> Callable[..., int] | None:
    """The function of the C library with this name, returning an int; ``None`` if there is none."""
    try:
        function = getattr(ctypes.CDLL(None), name)
    except (AttributeError, OSError):
        return None
    function.argtypes, function.restype = argument_types, ctypes.c_int
    return cast(Callable[..., int], function)


def settle_memory() -> None:
    """Exempt all existing objects from garbage collection, and collect less often.

    Call it when a long-running program has finished its start-up. A program that uses the client library may call it.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_COLLECTED_AFTER)


def stand_back() -> bool:
    """Lower the priority of this thread, for background work.

    Returns:
        Whether the priority is low now; on other systems than Linux nothing is changed.
    """
    if sys.platform != "linux":
        return False
    try:
        # On Linux this sets the priority of a thread; by POSIX it would be that of the process.
        thread = threading.get_native_id()
        if os.getpriority(os.PRIO_PROCESS, thread) < BACKGROUND_NICENESS:
            os.setpriority(os.PRIO_PROCESS, thread, BACKGROUND_NICENESS)
    except OSError:
        return False
    return True


def take_turns() -> bool:
    """Set the scheduling policy SCHED_BATCH for this thread and the threads that it starts from now on.

    Needs no privilege. A policy that was set from outside is kept.

    Returns:
        Whether SCHED_BATCH is set now; on other systems than Linux nothing is changed.
    """
    try:
        if os.sched_getscheduler(0) == os.SCHED_OTHER:
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
        return os.sched_getscheduler(0) == os.SCHED_BATCH
    except (AttributeError, OSError):
        # Not Linux, or a sandbox that forbids the call: it matters for speed only.
        return False
