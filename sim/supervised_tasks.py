"""Supervision of background tasks: a task that fails is a violation.

Without it a run could pass although one of its actors had died early.
"""

from __future__ import annotations

import asyncio
from typing import Any

from .deterministic import outside
from .oracle.oracle import Oracle


def vital(oracle: Oracle, task: asyncio.Task[Any], invariant: str = "simulation") -> None:
    """Record a violation of ``invariant`` if ``task`` fails; ending or being cancelled is no violation."""

    def ended(task: asyncio.Task[Any]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None:
            oracle.violated(invariant, f"{task.get_name()}: {error!r}")

    # Outside any simulated process: the process of the task may be dead by then.
    task.add_done_callback(ended, context=outside())
