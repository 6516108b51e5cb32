"""Runs an operation of an in-memory store in one step, independent of the process that sent it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar, cast

from tallybook.core.errors import MetadataUnavailable, TallybookError, check

T = TypeVar("T")


def run_in_one_step(effect: Callable[[], Awaitable[T]]) -> T | TallybookError:
    """Run an operation that never waits; return its result, or the error that it raised."""
    steps = cast("Coroutine[Any, Any, T]", effect())
    try:
        steps.send(None)
    except StopIteration as done:
        return cast("T", done.value)
    except TallybookError as error:
        return error
    check(False, "an operation in memory has waited")
    return MetadataUnavailable("it has waited")
