"""One operation of a simulated disk on its way: counted, traced, delayed, perhaps failing.

step = disk.begin("rename", path)
if step.acts:
    ...                     # the effect is now in flight: visible, but not durable
await step.in_flight()      # time passes; raises what was planned, or that power was lost
...                         # what becomes durable becomes so here
step.ended()
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from .faults import DiskFault, Effect, Operation

if TYPE_CHECKING:
    from .disk import SimDisk


class Step:
    """The life of one operation. Made by ``SimDisk.begin``."""

    __slots__ = ("_disk", "_fault", "_life", "_seconds", "operation")

    def __init__(self, disk: SimDisk, operation: Operation, fault: DiskFault | None, seconds: float) -> None:
        self._disk = disk
        self._fault = fault
        self._life = disk.life
        self._seconds = seconds
        self.operation = operation

    @property
    def effect(self) -> Effect | None:
        """What a planned failure leaves of it; ``None`` if it is to succeed."""
        return self._fault.effect if self._fault is not None and self._fault.error is not None else None

    @property
    def acts(self) -> bool:
        """Whether it has an effect at all."""
        return self.effect is not Effect.NOTHING

    async def in_flight(self) -> None:
        """Let its time pass.

        Raises:
            DiskFailed, DiskFull: as planned, or because the disk lost power meanwhile.
        """
        self._disk.on_submit(self.operation)
        await asyncio.sleep(self._seconds)
        self._disk.check_life(self._life, self.operation.path)
        if self._fault is not None and self._fault.error is not None:
            raise self._fault.error(f"planned failure of {self.operation}")

    def ended(self) -> None:
        """It has succeeded: tell who listens."""
        self._disk.on_operation(self.operation)
