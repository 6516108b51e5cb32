"""The process seam: how a node gives up.

A node that can no longer keep its promises (a failed sync, a dead essential task) ends at
once, without running anything that could still answer a client.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from typing import Any, NoReturn, Protocol

from tallybook.core.errors import InvariantViolation


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


def host_name() -> str:
    """What this machine is called."""
    return socket.gethostname()


def end_on_broken_invariants(loop: asyncio.AbstractEventLoop, process: Process) -> None:
    """End the node where ``loop`` meets an ``InvariantViolation`` that nobody handled: in a callback, or a lost task.

    Other errors are reported as always.
    """

    def handle(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        loop.default_exception_handler(context)
        error = context.get("exception")
        if isinstance(error, InvariantViolation):
            process.fail_safe(f"{context.get('message', 'a callback failed')}: {error!r}")

    loop.set_exception_handler(handle)
