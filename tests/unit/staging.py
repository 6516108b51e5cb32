"""Decorator for tests that are scenarios: the stage supplies the first arguments, pytest the fixtures after them."""

import functools
import inspect
from collections.abc import Awaitable, Callable
from typing import Any

from tallybook.sim.deterministic import run_seed


def staged(play: Callable[..., None], stage_arguments: int = 2) -> Callable[..., Any]:
    """``@staged(play)(**settings)`` makes a test of ``async def test(*stage, *fixtures)``, run by ``play``."""

    def with_settings(**settings: Any) -> Callable[[Callable[..., Awaitable[None]]], Callable[..., None]]:
        def decorate(scenario: Callable[..., Awaitable[None]]) -> Callable[..., None]:
            @functools.wraps(scenario)
            def test(**fixtures: Any) -> None:
                play(functools.partial(scenario, **fixtures), **settings)

            signature = inspect.signature(scenario)
            fixtures = list(signature.parameters.values())[stage_arguments:]
            test.__signature__ = signature.replace(parameters=fixtures)  # type: ignore[attr-defined]
            return test

        return decorate

    return with_settings


simulated = staged(functools.partial(run_seed, 1), 1)()
"""Makes a test of a scenario of a simulated world alone."""
