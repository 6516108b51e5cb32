"""Decorators that run an async test in simulated time; its other parameters are fixtures and parameters for pytest."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from inspect import Signature, signature
from typing import Any

from tallybook.sim.deterministic import World, run_seed
from tallybook.sim.stage.cluster import MemoryCluster
from tallybook.sim.stage.scenario import SMALL
from tallybook.stream import StreamStore

Body = Callable[..., Awaitable[None]]
Play = Callable[[World, dict[str, Any]], Awaitable[None]]


def simulated_test(body: Body, given: set[str], play: Play) -> Callable[..., None]:
    """A test that runs ``play(world, arguments)``; ``arguments`` are the parameters of ``body`` without ``given``."""

    def run(**arguments: Any) -> None:
        run_seed(1, lambda world: play(world, arguments), deadline_seconds=20_000)

    run.__name__, run.__doc__ = body.__name__, body.__doc__
    own = [each for name, each in signature(body).parameters.items() if name not in given]
    run.__signature__ = Signature(own)  # type: ignore[attr-defined]
    return run


def wanted(body: Body, **there: Any) -> dict[str, Any]:
    """Those of ``there`` that are parameters of ``body``."""
    return {name: value for name, value in there.items() if name in signature(body).parameters}


def simulated(body: Body) -> Callable[..., None]:
    """Run the decorated test with ``world``."""

    async def play(world: World, arguments: dict[str, Any]) -> None:
        await body(world, **arguments)

    return simulated_test(body, {"world"}, play)


def on_streams(body: Body) -> Callable[..., None]:
    """Run the decorated test with those it names of ``streams``, its ``client`` and ``cluster``, and ``others``.

    ``others`` are streams of another client.
    """
    named = signature(body).parameters

    async def play(world: World, arguments: dict[str, Any]) -> None:
        cluster = MemoryCluster(world, bookies=3)
        await cluster.start()
        async with AsyncExitStack() as stack:
            client = await stack.enter_async_context(cluster.client(SMALL))
            there = {"cluster": cluster, "client": client}
            if "streams" in named:
                there["streams"] = await stack.enter_async_context(StreamStore(client))
            if "others" in named:
                another = await stack.enter_async_context(cluster.client(SMALL))
                there["others"] = await stack.enter_async_context(StreamStore(another))
            await body(**wanted(body, **there), **arguments)
        await cluster.stop()

    return simulated_test(body, {"cluster", "client", "streams", "others"}, play)
