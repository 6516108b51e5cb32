"""Background tasks of a client, and the reporting of their unexpected errors.

No task of a client is essential in the sense of ``Tasks``: the client keeps working without it. But an unexpected
error must reach the component that depends on the task.
"""

from __future__ import annotations

import asyncio
from typing import Any

from tallybook.core.errors import HandleClosed, InvariantViolation, TallybookError
from tallybook.runtime.logging import logger
from tallybook.runtime.tasks import Tasks

_log = logger("client.background")


def client_tasks(owner: str) -> Tasks:
    """A task group for a client: none of its tasks may be essential, and spawning after its close is a caller error."""
    return Tasks(owner, _never_essential, closed=HandleClosed)


def defect_of(task: asyncio.Task[Any]) -> TallybookError | None:
    """Log and return the error that ended ``task``; a done-callback for tasks that handle every error they expect."""
    if task.cancelled() or (error := task.exception()) is None:
        return None
    return defect(task.get_name(), error)


def defect(name: str, error: BaseException) -> TallybookError:
    """Log an unexpected error of background work and return it as a ``TallybookError``."""
    _log.error("background task died", task=name, error=repr(error))
    return error if isinstance(error, TallybookError) else InvariantViolation(f"{name} died: {error!r}")


def _never_essential(name: str, error: BaseException) -> None:
    raise InvariantViolation(f"{name} was started as an essential task of a client") from error
