"""Tests of one bookie on a simulated disk: a stage that boots it, and common steps.

@on_a_bookie(write_cache_bytes=64 * KIB)
async def test_something(node, world): ...
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from tallybook.sim.deterministic import SimDisk, World
from tallybook.sim.stage.disk_bookie import DiskBookie, KnownMetadata, tiny_settings

from ..simulated import Parts, on_stage

JOURNAL = "journal/segment"
"""Part of the path of the files of the journal."""


@asynccontextmanager
async def booted(
    world: World,
    *,
    metadata: Callable[[], KnownMetadata] = KnownMetadata,
    clean: bool = True,
    read_cache_bytes: int | None = None,
    **tiny: Any,
) -> AsyncIterator[Parts]:
    """A running bookie, which must stop in order afterwards unless ``clean`` is false."""
    settings = tiny_settings(**tiny)
    if read_cache_bytes is not None:
        storage = settings.storage.model_copy(update={"read_cache_bytes": read_cache_bytes})
        settings = settings.model_copy(update={"storage": storage})
    node = DiskBookie(SimDisk(world.rng), world.clock, metadata(), settings)
    await node.boot()
    await world.clock.sleep(1)  # the journal has made all its segments by then
    yield {"node": node}
    if clean:
        await node.stop()
        assert node.failures == []


on_a_bookie = partial(on_stage, booted, deadline_seconds=3600)


def hold_journal(node: DiskBookie, seconds: float = 30.0) -> None:
    """The next write to the journal takes this long."""
    node.disk.fail("write", JOURNAL, error=None, delay_seconds=seconds)


async def codes(answers: list[asyncio.Future]) -> list[int]:
    return [(await answer).code for answer in answers]
