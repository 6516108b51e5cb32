"""A decorator for tests in simulated time: the first parameter of a test is what its stage provides in a new world."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from inspect import signature
from typing import Any

from tallybook.sim.deterministic import World, run_seed
from tallybook.sim.deterministic.world import DAY_SECONDS

Body = Callable[..., Awaitable[None]]


def on_stage(
    stage: Callable[[World], AbstractAsyncContextManager[Any]], *, deadline_seconds: float = DAY_SECONDS
) -> Callable[[Body], Callable[..., None]]:
    """Run the decorated test with what ``stage(world)`` provides; its other parameters are those of pytest."""

    def decorate(body: Body) -> Callable[..., None]:
        def test(*values: Any, **given: Any) -> None:
            async def play(world: World) -> None:
                async with stage(world) as made:
                    await body(made, *values, **given)

            run_seed(1, play, deadline_seconds=deadline_seconds)

        of_body = signature(body)
        test.__name__, test.__doc__ = body.__name__, body.__doc__
        test.__signature__ = of_body.replace(parameters=list(of_body.parameters.values())[1:])  # type: ignore[attr-defined]
        return test

    return decorate
