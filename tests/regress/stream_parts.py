"""Builders for regression tests of streams."""

from tallybook.sim.stage.scenario import lines
from tallybook.stream import Position, StreamStore


async def filled(streams: StreamStore, count: int = 10, **policy: object) -> list[Position]:
    """A stream ``s`` of that many records."""
    await streams.create("s", **policy)
    async with await streams.writer("s") as writer:
        return [await writer.append(line) for line in lines(count)]
