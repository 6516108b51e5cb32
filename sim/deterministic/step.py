"""One operation of a simulated disk: counted, traced, delayed, and perhaps failing.

step = disk.begin("rename", path)
if step.acts:
    ...                     # make the effect pending: visible, but not durable
await step.in_flight()      # time passes; raises a planned fault, or DiskFailed after a power loss
...                         # make the effect durable
step.ended()
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from .faults import DiskFault, DiskOperation, Effect

if TYPE_CHECKING:
    from .disk import SimDisk


class DiskStep:
    """One operation. Created by ``SimDisk.begin``."""

    __slots__ = ("_disk", "_fault", "_life", "_seconds", "operation")

    def __init__(self, disk: SimDisk, operation: DiskOperation, fault: DiskFault | None, seconds: float) -> None:
        self._disk = disk
        self._fault = fault
        self._life = disk.life
        self._seconds = seconds
        self.operation = operation

    @property
    def effect(self) -> Effect | None:
        """Effect of its planned failure; ``None`` if it is to succeed."""
        return self._fault.effect if self._fault is not None and self._fault.error is not None else None

    @property
    def acts(self) -> bool:
        """Whether it has any effect."""
        return self.effect is not Effect.NOTHING

    async def in_flight(self) -> None:
        """Wait for the time that it takes.

        Raises:
            DiskFailed, DiskFull: a planned fault, or the disk lost power meanwhile.
        """
        self._disk.on_submit(self.operation)
        await asyncio.sleep(self._seconds)
        self._disk.check_life(self._life, self.operation.path)
        if self._fault is not None and self._fault.error is not None:
            raise self._fault.error(f"planned failure of {self.operation}")

    def ended(self) -> None:
        """Call the hook of successful operations."""
        self._disk.on_operation(self.operation)
