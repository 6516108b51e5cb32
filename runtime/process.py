"""The process seam: how a node gives up.

A node that can no longer keep its promises (a failed sync, a dead essential task) ends at
once, without running anything that could still answer a client.
"""

from __future__ import annotations

import os
import sys
from typing import NoReturn, Protocol


class Process(Protocol):
    """The life of this node."""

    def fail_safe(self, reason: str) -> None:
        """End the node now: no clean-up, no further answer."""


class RealProcess:
    """A process of the operating system."""

    EXIT_CODE = 70
    """``EX_SOFTWARE`` of sysexits.h: told apart from a crash and from a refused start."""

    def fail_safe(self, reason: str) -> NoReturn:
        """Write ``reason`` to standard error and exit without unwinding."""
        sys.stderr.write(f"tallybook: stopping at once: {reason}\n")
        sys.stderr.flush()
        os._exit(self.EXIT_CODE)
