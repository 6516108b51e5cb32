"""Tasks of a run that nobody waits for, and that must not die unnoticed.

Without them a run goes on and passes, and has tested less than it says.
"""

from __future__ import annotations

import asyncio
from typing import Any

from tallybook.runtime.deterministic import outside

from .god import God


def vital(god: God, task: asyncio.Task[Any], invariant: str = "simulation") -> None:
    """If ``task`` ends with an error, that is a violation of ``invariant``; to end, or to be cancelled, is none."""

    def ended(task: asyncio.Task[Any]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None:
            god.violated(invariant, f"{task.get_name()}: {error!r}")

    # In no process: the one that the task belongs to may be dead by then.
    task.add_done_callback(ended, context=outside())
