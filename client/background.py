"""Background work of a client: how its end is looked at.

No task of a client is essential in the sense of ``Tasks``: a client serves on without any one of
them. But an error that nobody expected must be seen by whoever depends on the work.
"""

from __future__ import annotations

import asyncio
from typing import Any

from tallybook.core.errors import HandleClosed, InvariantViolation, TallybookError
from tallybook.runtime.logging import logger
from tallybook.runtime.tasks import Tasks

_log = logger("client.background")


def client_tasks(owner: str) -> Tasks:
    """A group of tasks, none of which may be called essential. To use it after its close is the fault of the caller."""
    return Tasks(owner, _never_essential, closed=HandleClosed)


def defect_of(task: asyncio.Task[Any]) -> TallybookError | None:
    """The error that ended ``task``, logged; for a callback of tasks that handle every error they expect."""
    if task.cancelled() or (error := task.exception()) is None:
        return None
    return defect(task.get_name(), error)


def defect(name: str, error: BaseException) -> TallybookError:
    """The error of background work that ended with one that nobody expected, logged."""
    _log.error("background task died", task=name, error=repr(error))
    return error if isinstance(error, TallybookError) else InvariantViolation(f"{name} died: {error!r}")


def _never_essential(name: str, error: BaseException) -> None:
    raise InvariantViolation(f"{name} was started as an essential task of a client") from error
