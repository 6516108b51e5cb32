"""Letting an operation of a store in memory take effect at one moment, outside of whoever asked for it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar, cast

from tallybook.core.errors import MetadataUnavailable, TallybookError, check

T = TypeVar("T")


def at_once(effect: Callable[[], Awaitable[T]]) -> T | TallybookError:
    """Run an operation that never waits to its end; what it returns, or the error that it raises."""
    steps = cast("Coroutine[Any, Any, T]", effect())
    try:
        steps.send(None)
    except StopIteration as done:
        return cast("T", done.value)
    except TallybookError as error:
        return error
    check(False, "an operation in memory has waited")
    return MetadataUnavailable("it has waited")
