"""Ends a child process when its parent ends.

``tallybook up`` and the demo start bookies as children, which must not outlive them. Each child inherits the read end
of a pipe whose write end only the parent has, so the operating system closes it when the parent ends. On Linux the
child also asks the kernel for SIGKILL then, which works even if its event loop is stuck.
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
    """End this process at once when the parent ends. ``pipe`` is the inherited read end. Call on the event loop."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    # If the parent died before the call above, the pipe is already closed.
    asyncio.get_running_loop().add_reader(pipe, _parent_is_gone)


def _parent_is_gone() -> None:
    os._exit(128 + signal.SIGKILL)
