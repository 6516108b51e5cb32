"""The pump of a simulated disk beyond the contract of every pump: it detects a faulty source."""

import asyncio

from tallybook.core.errors import InvariantViolation
from tallybook.core.limits import BLOCK_BYTES
from tallybook.runtime.disk.port import DiskFile, PlannedWrite
from tallybook.sim.deterministic import SimDisk


class Careless:
    """A source that goes on filling the block it has handed out."""

    def __init__(self, disk: SimDisk, file: DiskFile) -> None:
        self.file = file
        self.buffer = disk.buffer(BLOCK_BYTES)
        self.error: asyncio.Future[Exception] = asyncio.get_running_loop().create_future()
        self.taken = False

    def take(self) -> PlannedWrite | None:
        if self.taken:
            return None
        self.taken = True
        asyncio.get_running_loop().call_soon(self.buffer.__setitem__, 100, 7)
        return PlannedWrite(self.file, 0, self.buffer, "careless")

    def done(self, write: PlannedWrite) -> None:
        raise AssertionError(write)

    def failed(self, write: PlannedWrite | None, error: Exception) -> None:
        self.error.set_result(error)


async def test_a_block_that_is_changed_while_it_is_written_is_a_failure() -> None:
    """A real device would write the old bytes, the new ones, or some of each."""
    disk = SimDisk()
    source = Careless(disk, await disk.open("/f", create=True, durable=True))
    pump = disk.pump(source, name="test")
    assert isinstance(await source.error, InvariantViolation)
    await pump.close()
