"""Tests whose body runs in a simulation: ``@simulated(run)`` above ``async def test_...(node, world, *, fixture)``."""

import functools
import inspect
from collections.abc import Callable, Coroutine
from typing import Any

Body = Callable[..., Coroutine[Any, Any, None]]


def simulated(run: Callable[..., object], *given: Any, **options: Any) -> Callable[[Body], Callable[..., None]]:
    """Turn the body into a test that calls ``run(*given, scenario, **options)``.

    The body takes what the run gives to a scenario, or the first of it; fixtures and parameters are its keywords.
    """

    def decorate(body: Body) -> Callable[..., None]:
        names = inspect.signature(body).parameters.values()
        keywords = [each for each in names if each.kind is each.KEYWORD_ONLY]
        taken = len(names) - len(keywords)

        @functools.wraps(body)
        def test(**parameters: Any) -> None:
            run(*given, lambda *stage: body(*stage[:taken], **parameters), **options)

        del test.__wrapped__
        test.__signature__ = inspect.Signature(keywords)  # type: ignore[attr-defined]
        return test

    return decorate
