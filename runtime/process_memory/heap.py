"""What a process has in use of the memory it holds, as its allocators tell.

The kernel knows what a process holds. Of that, part is in use and part was freed and is kept for what comes next; which
of the two grows tells a leak from a heap that found its size.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from typing import Final, NamedTuple


class HeapUsage(NamedTuple):
    """What allocators say.

    Attributes:
        used_bytes: what the C library has given out and not got back, mapped blocks included.
        kept_bytes: what it got back and keeps.
        blocks: small blocks that Python has given out by itself, of 512 B at most each.
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
        # Another C library than glibc, or one from before 2.33.
        return None
    mallinfo.restype = _MallocInfo
    return mallinfo


_MALLINFO: Final = _mallinfo()


def heap_usage() -> HeapUsage:
    """What is in use now; of the C library's, zeros where it is not glibc.

    It takes each arena's lock in turns and goes along its free blocks: for who asks now and then.
    """
    blocks = sys.getallocatedblocks()
    if _MALLINFO is None:
        return HeapUsage(0, 0, blocks)
    info = _MALLINFO()
    return HeapUsage(info.uordblks + info.hblkhd, info.fordblks, blocks)
