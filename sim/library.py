"""The archive as the clients of one process of a run read it."""

from __future__ import annotations

from tallybook.archive.reader import ArchiveReader
from tallybook.client.background import client_tasks
from tallybook.runtime.tasks import InlineWorkers

from .bucket import Bucket
from .process import SimProcess


class ProcessArchive(ArchiveReader):
    """A reader with a door of its own to the bucket; it ends with its client."""

    def __init__(self, process: SimProcess, bucket: Bucket) -> None:
        self._background = client_tasks(f"{process.name} archive")
        super().__init__(bucket.door(process), InlineWorkers(), self._background)

    async def close(self) -> None:
        """See the port."""
        await self._background.close()
