"""Living no longer than the process that started this one.

``tallybook up`` and the demo start bookies as children, and want none of them left over when
they die, however they die. Each child gets the reading end of a pipe whose writing end only
the parent holds: the operating system closes it with the parent. On Linux the kernel is also
asked to kill the child, which works even while the child's event loop is stuck.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import sys
from typing import Final

_PR_SET_PDEATHSIG: Final = 1


def die_with_parent(pipe: int) -> None:
    """End this process as SIGKILL would when the parent ends. ``pipe`` is the reading end it gave us.

    Call on the event loop.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    # A parent that died before the call above is noticed here: its end of the pipe is closed.
    asyncio.get_running_loop().add_reader(pipe, _parent_is_gone)


def _parent_is_gone() -> None:
    os._exit(128 + signal.SIGKILL)
