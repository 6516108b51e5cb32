"""Tests of one bookie on a simulated disk: a decorator that boots it, and common steps.

@on_a_bookie(write_cache_bytes=64 * KIB)
async def test_something(node, world): ...
"""

import asyncio
import inspect
from collections.abc import Callable
from typing import Any

from tallybook.sim.deterministic import SimDisk, World, run_seed
from tallybook.sim.stage.disk_bookie import DiskBookie, KnownMetadata, tiny_settings

JOURNAL = "journal/segment"
"""Part of the path of the files of the journal."""


def on_a_bookie(
    *,
    seed: int = 1,
    shuffle: bool = False,
    clean: bool = True,
    metadata: Callable[[], KnownMetadata] = KnownMetadata,
    read_cache_bytes: int | None = None,
    **tiny: Any,
) -> Callable[[Callable[..., Any]], Callable[..., None]]:
    """Run the decorated coroutine as a test, on a booted bookie and, if it wants that, its ``world``.

    The bookie must stop in order afterwards, and must not have failed, unless ``clean`` is false.
    """

    settings = tiny_settings(**tiny)
    if read_cache_bytes is not None:
        storage = settings.storage.model_copy(update={"read_cache_bytes": read_cache_bytes})
        settings = settings.model_copy(update={"storage": storage})

    def decorate(body: Callable[..., Any]) -> Callable[..., None]:
        parameters = inspect.signature(body).parameters

        def test(**others: Any) -> None:
            async def run(world: World) -> None:
                node = DiskBookie(SimDisk(world.rng), world.clock, metadata(), settings)
                await node.boot()
                await world.clock.sleep(1)  # the journal has made all its segments by then
                await body(node, **others, **({"world": world} if "world" in parameters else {}))
                if clean:
                    await node.stop()
                    assert node.failures == []

            run_seed(seed, run, deadline_seconds=3600, shuffle=shuffle)

        asked = [each for name, each in parameters.items() if name not in ("node", "world")]
        test.__signature__ = inspect.Signature(asked)  # type: ignore[attr-defined]
        test.__doc__ = body.__doc__
        return test

    return decorate


def hold_journal(node: DiskBookie, seconds: float = 30.0) -> None:
    """The next write to the journal takes this long."""
    node.disk.fail("write", JOURNAL, error=None, delay_seconds=seconds)


async def codes(answers: list[asyncio.Future]) -> list[int]:
    return [(await answer).code for answer in answers]
