"""Decorators that run an async test in simulated time.

    @simulated
    async def test_something(world, *, tmp_path): ...

    @scenario(bookies=4)
    async def test_something_else(cluster, client, *, kind): ...

Parameters before ``*`` are ``world`` and the parts of the stage that the test needs, by their names. Those after it are
fixtures and parameters for pytest.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from functools import partial, wraps
from inspect import Signature, signature
from typing import Any

from tallybook.core.settings import ClientSettings
from tallybook.sim.deterministic import World, run_seed
from tallybook.sim.deterministic.world import DAY_SECONDS

from .support.ledger_scenario import SMALL
from .support.memory_cluster import MemoryCluster

Body = Callable[..., Awaitable[None]]
Parts = dict[str, Any]
Stage = Callable[..., AbstractAsyncContextManager[Parts]]


def on_stage(
    stage: Stage, *, seed: int = 1, deadline_seconds: float = DAY_SECONDS, shuffle: bool = False, **settings: Any
) -> Callable[[Body], Callable[..., None]]:
    """Run the decorated test within ``stage(world, **settings)``, an async context manager that provides its parts."""

    def decorate(body: Body) -> Callable[..., None]:
        parameters = signature(body).parameters.values()
        of_pytest = [each for each in parameters if each.kind is each.KEYWORD_ONLY]
        named = [each.name for each in parameters if each not in of_pytest]

        @wraps(body)
        def test(**given: Any) -> None:
            async def play(world: World) -> None:
                async with stage(world, **settings) as parts:
                    there = {"world": world, **parts}
                    await body(*(there[name] for name in named), **given)

            run_seed(seed, play, deadline_seconds=deadline_seconds, shuffle=shuffle)

        test.__signature__ = Signature(of_pytest)  # type: ignore[attr-defined]
        return test

    return decorate


def world_alone(_world: World) -> AbstractAsyncContextManager[Parts]:
    return nullcontext({})


simulated = on_stage(world_alone)
"""Run the decorated test with nothing but ``world``."""


@asynccontextmanager
async def memory_cluster(
    world: World, *, bookies: int = 3, client_settings: ClientSettings = SMALL
) -> AsyncIterator[Parts]:
    """A ``cluster`` of in-memory bookies, and a ``client``."""
    cluster = MemoryCluster(world, bookies=bookies)
    await cluster.start()
    async with cluster.client(client_settings) as client:
        yield {"cluster": cluster, "client": client}
    await cluster.stop()


scenario = partial(on_stage, memory_cluster, deadline_seconds=600)
