"""Offloaders and tiering readers: actors of runs with an archive.

An offloader is a client in its own process that runs the production offload service until it is killed. A tiering
reader reads archived ledgers slowly, while they are released, dropped, moved or deleted. Its slots and coverage marks
are named "historian", because slot names seed the random generators.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tallybook.client.background import client_tasks
from tallybook.core.errors import NoSuchLedger, TallybookError, is_defect
from tallybook.core.settings import OffloadSettings
from tallybook.offload.offloader import Offloader
from tallybook.offload.open_archive import Archive
from tallybook.offload.service import OffloadService
from tallybook.runtime.tasks import InlineWorkers

from ..cluster.bucket import Bucket
from ..cluster.process import SimProcess
from ..configuration.archive_configuration import ArchiveConfiguration
from ..deterministic import SimClock
from ..oracle.oracle import Oracle
from .history import History, LedgerEnd
from .ledgers import ClientProcess, Workload

READ_PAUSE_SECONDS: Final = 0.5
"""Mean pause of a slow tiering reader between two batches."""


class _WatchedService(OffloadService):
    """An offload service that reports when it starts and stops to lead.

    Args:
        rivals: whether it leads at once, without asking for the lead.
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
        """Run as in production, without HTTP server; with rivals, without asking for the lead."""
        await (self._passes() if self._rivals else self.lead())

    async def _passes(self) -> None:
        self._on_leading(True)
        try:
            await super()._passes()
        finally:
            self._on_leading(False)


class Offloading:
    """Runs offloaders, and counts those that believe to lead."""

    def __init__(self, config: ArchiveConfiguration, bucket: Bucket, oracle: Oracle) -> None:
        self._settings = config.settings()
        self.rivals = config.rivals
        """Whether all of them lead at the same time."""
        self.offloaders = config.offloaders
        """Number of concurrent offloaders."""
        self._bucket = bucket
        self._oracle = oracle
        self._leaders: dict[SimProcess, None] = {}
        """Processes that believe to lead, including those that died in the lead."""

    async def work(self, client: ClientProcess) -> None:
        """Actor: run an offloader for as long as the process lives."""
        process = client.process
        tasks = client_tasks(f"{process.name} offloader")
        archive = Archive(
            process.session.store,
            self._bucket.client_store(process),
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
            self._oracle.violated("client", f"{process.name} ends with {error!r}")
        finally:
            await tasks.close()

    def _count(self, process: SimProcess, *, now: bool) -> None:
        if not now:
            self._leaders.pop(process, None)
            return
        if any(not other.dead for other in self._leaders):
            self._oracle.mark("offloaders: two believe that they lead")
        self._leaders[process] = None


class TieringReaders:
    """Actors that read archived ledgers."""

    def __init__(self, workload: Workload, oracle: Oracle, history: History) -> None:
        self._workload = workload
        self._oracle = oracle
        self._history = history
        self._clock = SimClock()

    async def work(self, client: ClientProcess) -> None:
        """Read one archived ledger: a few single entries, then all of it."""
        await self._clock.sleep(client.rng.random())
        archived = [
            made
            for made in self._workload.ledgers
            if (known := self._oracle.ledgers.get(made.ledger_id)) is not None and known.metadata.archived is not None
        ]
        if not archived:
            return
        made = archived[client.rng.randint(0, len(archived) - 1)]
        try:
            await self._read(client, made.ledger_id, made.password)
        except NoSuchLedger:
            gone = made.ledger_id not in self._oracle.ledgers
            self._oracle.expect(gone, "I1", f"archived ledger {made.ledger_id} is not found")
        except TallybookError as error:
            if is_defect(error):
                raise
            self._oracle.mark(f"tiering reader: {type(error).__name__}")

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
        reading.done(LedgerEnd(last, reader.metadata.length))
        self._oracle.mark("tiering reader: read a ledger to its end")
