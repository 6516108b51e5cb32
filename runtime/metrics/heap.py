"""Heap usage of the process, from the counters of its allocators.

The resident size that the kernel reports includes memory that was freed and is kept for reuse. If used memory grows,
there is a leak; if only kept memory grows, the heap has not reached its size yet.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from typing import Final, NamedTuple


class HeapUsage(NamedTuple):
    """Counters of the allocators.

    Attributes:
        used_bytes: allocated from the C library and not freed, mapped blocks included.
        kept_bytes: freed, and kept by the C library.
        blocks: allocated small blocks of Python's own allocator, of at most 512 B each.
    """

    used_bytes: int
    kept_bytes: int
    blocks: int


class _MallocInfo(ctypes.Structure):
    """``struct mallinfo2`` of <malloc.h>."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in (
            "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost",
        )
    )  # fmt: skip


def _mallinfo() -> Callable[[], _MallocInfo] | None:
    try:
        mallinfo = ctypes.CDLL(None).mallinfo2
    except (AttributeError, OSError):
        # Not glibc, or glibc before 2.33.
        return None
    mallinfo.restype = _MallocInfo
    return mallinfo


_MALLINFO: Final = _mallinfo()


def heap_usage() -> HeapUsage:
    """Current usage; the values of the C library are zero where it is not glibc.

    Takes the lock of each arena in turn and walks its free blocks: call it rarely.
    """
    blocks = sys.getallocatedblocks()
    if _MALLINFO is None:
        return HeapUsage(0, 0, blocks)
    info = _MALLINFO()
    return HeapUsage(info.uordblks + info.hblkhd, info.fordblks, blocks)
