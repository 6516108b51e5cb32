"""The process seam: ending a node that can no longer keep its guarantees.

After a failed sync or the end of an essential task, the node exits at once, without running
any code that could still answer a client.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from typing import Any, NoReturn, Protocol

from tallybook.core.errors import InvariantViolation


class Process(Protocol):
    """The process of this node."""

    def fail_safe(self, reason: str) -> None:
        """End the node now, without clean-up and without another answer."""


class RealProcess:
    """A process of the operating system."""

    EXIT_CODE = 70
    """``EX_SOFTWARE`` of sysexits.h; differs from the code of a crash and of a refused start."""

    def fail_safe(self, reason: str) -> NoReturn:
        """Write ``reason`` to standard error and exit without unwinding."""
        sys.stderr.write(f"tallybook: stopping at once: {reason}\n")
        sys.stderr.flush()
        os._exit(self.EXIT_CODE)


def host_name() -> str:
    """The host name of this machine."""
    return socket.gethostname()


def end_on_broken_invariants(loop: asyncio.AbstractEventLoop, process: Process) -> None:
    """End the node on an ``InvariantViolation`` that reaches ``loop`` unhandled, from a callback or a dropped task.

    Other errors go to the loop's default handler.
    """

    def handle(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        loop.default_exception_handler(context)
        error = context.get("exception")
        if isinstance(error, InvariantViolation):
            process.fail_safe(f"{context.get('message', 'a callback failed')}: {error!r}")

    loop.set_exception_handler(handle)
