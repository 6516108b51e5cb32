"""Offloaders and historians: what takes part in a run because there is an archive.

An offloader is a client in a process of its own, like the others, and runs the service of production until it is
killed. A historian reads what is archived, slowly: the ledger is released, dropped, moved or deleted meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tallybook.client.background import client_tasks
from tallybook.core.config import OffloadSettings
from tallybook.core.errors import NoSuchLedger, TallybookError, is_defect
from tallybook.offload.offloader import Offloader
from tallybook.offload.process import Archive
from tallybook.offload.service import OffloadService
from tallybook.runtime.deterministic import SimClock
from tallybook.runtime.tasks import InlineWorkers

from .archive_swarm import ArchiveSwarm
from .bucket import Bucket
from .god import God
from .history import End, History
from .process import SimProcess
from .workload import ClientProcess, Workload

READ_PAUSE_SECONDS: Final = 0.5
"""Mean pause of a historian between two batches, where it is a slow one."""


class _WatchedService(OffloadService):
    """A service that says when it begins to lead, and when it ends.

    Args:
        rivals: it leads at once, whoever else does.
    """

    def __init__(
        self,
        archive: Archive,
        offloader: Offloader,
        settings: OffloadSettings,
        leads: Callable[[bool], None],
        *,
        rivals: bool,
    ) -> None:
        super().__init__(archive, offloader, settings)
        self._on_leading = leads
        self._rivals = rivals

    async def run(self) -> None:
        """As in production, but for what it serves, and unless there are rivals."""
        await (self._rounds() if self._rivals else self.lead())

    async def _rounds(self) -> None:
        self._on_leading(True)
        try:
            await super()._rounds()
        finally:
            self._on_leading(False)


class Offloading:
    """What offloaders do."""

    def __init__(self, swarm: ArchiveSwarm, bucket: Bucket, god: God) -> None:
        self._settings = swarm.settings()
        self.rivals = swarm.rivals
        """All of them lead, all of the time."""
        self.offloaders = swarm.offloaders
        """How many take part in a run at once."""
        self._bucket = bucket
        self._god = god
        self._leaders: dict[SimProcess, None] = {}
        """Processes that believe to lead, those that have died so included."""

    async def work(self, client: ClientProcess) -> None:
        """Be an offloader, for as long as the process lives."""
        process = client.process
        tasks = client_tasks(f"{process.name} offloader")
        archive = Archive(
            process.session.store,
            self._bucket.door(process),
            InlineWorkers(),
            tasks,
            process.clock,
            client.rng.fork("offloader"),
        )
        offloader = archive.offloader(client.client, self._settings)

        def leads(now: bool) -> None:
            self._count(process, now=now)

        try:
            await _WatchedService(archive, offloader, self._settings, leads, rivals=self.rivals).run()
        except TallybookError as error:
            self._god.violated("client", f"{process.name} ends with {error!r}")
        finally:
            await tasks.close()

    def _count(self, process: SimProcess, *, now: bool) -> None:
        if not now:
            self._leaders.pop(process, None)
            return
        if any(not other.dead for other in self._leaders):
            self._god.mark("offloaders: two believe that they lead")
        self._leaders[process] = None


class Historians:
    """Readers of what is archived."""

    def __init__(self, workload: Workload, god: God, history: History) -> None:
        self._workload = workload
        self._god = god
        self._history = history
        self._clock = SimClock()

    async def work(self, client: ClientProcess) -> None:
        """Read one ledger that is archived, a few entries by themselves and then all of it."""
        await self._clock.sleep(client.rng.random())
        archived = [
            made
            for made in self._workload.ledgers
            if (known := self._god.ledgers.get(made.ledger_id)) is not None and known.metadata.archived is not None
        ]
        if not archived:
            return
        made = archived[client.rng.randint(0, len(archived) - 1)]
        try:
            await self._read(client, made.ledger_id, made.password)
        except NoSuchLedger:
            gone = made.ledger_id not in self._god.ledgers
            self._god.expect(gone, "I1", f"archived ledger {made.ledger_id} is not found")
        except TallybookError as error:
            if is_defect(error):
                raise
            self._god.mark(f"historian: {type(error).__name__}")

    async def _read(self, client: ClientProcess, ledger_id: int, password: bytes) -> None:
        rng = client.rng
        reader = await client.client.open_ledger(ledger_id, password=password, recover=False)
        reading = self._history.reading(client.name, ledger_id)
        last = reader.last_add_confirmed
        pause_seconds = 2 * READ_PAUSE_SECONDS * rng.random() if rng.random() < 0.5 and not self._workload.over else 0.0
        for _ in range(rng.randint(0, 2) if last >= 0 else 0):
            entry = await reader.read_entry(rng.randint(0, last))
            reading.saw(entry.entry_id, entry.payload)
            reading.begin()
        if last >= 0:
            async for group in reader.read_batches(0, last):
                for entry in group:
                    reading.saw(entry.entry_id, entry.payload)
                if pause_seconds:
                    await self._clock.sleep(pause_seconds)
        reading.done(End(last, reader.metadata.length))
        self._god.mark("historian: read a ledger to its end")
