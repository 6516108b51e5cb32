"""Decorators that run an async test in simulated time.

    @simulated
    async def test_something(world, *, tmp_path): ...

    @on_stage(booted, write_cache_bytes=64 * KIB)
    async def test_something_else(node, world, *, kind): ...

Parameters before ``*`` are ``world`` and the parts of the stage that the test needs, by their names. Those after it are
fixtures and parameters for pytest.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from functools import wraps
from inspect import Signature, signature
from typing import Any

from tallybook.sim.deterministic import World, run_seed
from tallybook.sim.deterministic.world import DAY_SECONDS

Body = Callable[..., Awaitable[None]]
Parts = dict[str, Any]
Stage = Callable[..., AbstractAsyncContextManager[Parts]]


def on_stage(
    stage: Stage, *, seed: int = 1, deadline_seconds: float = DAY_SECONDS, shuffle: bool = False, **settings: Any
) -> Callable[[Body], Callable[..., None]]:
    """Run the decorated test between start and end of ``stage(world, **settings)``, which provides its parts."""

    def decorate(body: Body) -> Callable[..., None]:
        parameters = signature(body).parameters.values()
        named = [each.name for each in parameters if each.kind is not each.KEYWORD_ONLY]

        @wraps(body)
        def test(**given: Any) -> None:
            async def play(world: World) -> None:
                async with stage(world, **settings) as parts:
                    there = {"world": world, **parts}
                    await body(*(there[name] for name in named), **given)

            run_seed(seed, play, deadline_seconds=deadline_seconds, shuffle=shuffle)

        test.__signature__ = Signature(  # type: ignore[attr-defined]
            [each for each in parameters if each.kind is each.KEYWORD_ONLY]
        )
        return test

    return decorate


def world_alone(_world: World) -> AbstractAsyncContextManager[Parts]:
    return nullcontext({})


simulated = on_stage(world_alone)
"""Run the decorated test with nothing but ``world``."""
