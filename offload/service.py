"""The offloader of a cluster: one of however many run, round after round, until it is told to stop.

Who leads is settled through the metadata (``metadata/leader.py``). That only saves work: two who both believe
that they lead waste requests and harm nothing. After each round the leader writes down what it has done and
what is left, for ``tallybook offload status`` to show from anywhere.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict

from tallybook.archive.memory import give_back_memory
from tallybook.archive.metrics import ARCHIVE_METRICS
from tallybook.archive.metrics import numbers as asked
from tallybook.client.client import Client
from tallybook.client.metrics import show_client
from tallybook.core.config import OffloadSettings
from tallybook.core.errors import ArchiveDenied, ArchiveUnavailable, PeerError, StorageError, TallybookError
from tallybook.core.marks import sometimes
from tallybook.metadata.leader import Leadership
from tallybook.metadata.metered import METADATA_METRICS
from tallybook.metadata.model import LedgerMetadata
from tallybook.metadata.record_format import FIRST, over_known
from tallybook.metadata.store import Ok
from tallybook.runtime.http import Listening
from tallybook.runtime.logging import logger
from tallybook.runtime.metrics import Metrics
from tallybook.runtime.tasks import Workers
from tallybook.runtime.watched import watchable

from .leading import BUSY, LEADER_RECORD
from .metrics import OFFLOAD_METRICS, numbers
from .offloader import Offloader
from .process import SCANNING, Archive, opened
from .status_record import STATUS_RECORD, last_round
from .survey import Survey
from .totals import Totals

_log = logger("offload")


class OffloadService:
    """Runs an offloader, for as long as it leads.

    Args:
        give_back: gives back memory that was freed; called when there is nothing to do any more.
        client: what it reads ledgers with, for its metrics.
        listening: where it serves health and metrics; ``None``: where the settings say.
    """

    def __init__(
        self,
        archive: Archive,
        offloader: Offloader,
        settings: OffloadSettings,
        give_back: Callable[[Workers], Awaitable[None]] | None = None,
        client: Client | None = None,
        listening: Listening | None = None,
    ) -> None:
        self._listening = listening
        self._client = client
        self._archive = archive
        self._offloader = offloader
        self._settings = settings
        self._give_back = give_back
        self._leads = False
        self._leadership = Leadership(
            archive.metadata, archive.clock, archive.rng.fork("leader"), record=LEADER_RECORD, lease_s=settings.lease_s
        )

    async def run(self) -> None:
        """Work until cancelled, and serve health and metrics meanwhile.

        Raises:
            InvalidConfig: the address to serve them on cannot be bound.
        """
        clock, metrics = self._archive.clock, self.metrics()
        listen, security = self._listening or self._settings.http_listen, self._settings.security
        async with watchable(metrics, listen, security, clock, self._archive.tasks) as address:
            _log.info("serving", http_address=address)
            await self.lead()

    async def lead(self) -> None:
        """Work until cancelled, whenever this one leads, and serve nothing."""
        await self._leadership.lead(self._rounds)

    def metrics(self) -> Metrics:
        """What /metrics shows."""
        metrics = Metrics()
        patience, sealing = self._archive.store.patience, self._archive.sealing
        metrics.add(OFFLOAD_METRICS, lambda: numbers(self._offloader, leads=self._leads))
        metrics.add(ARCHIVE_METRICS, lambda: asked(patience, {} if sealing is None else sealing.readings()))
        if self._archive.metadata_load is not None:
            metrics.add(METADATA_METRICS, self._archive.metadata_load.readings)
        if self._client is not None:
            show_client(metrics, self._client, with_metadata=False, with_archive=False)
        return metrics

    async def work_off(self) -> Mapping[str, object]:
        """Lead, and do rounds until one finds nothing to do; say what was done.

        Raises:
            Conflict: another process leads, and goes on doing so.
            MetadataUnavailable: the metadata store does not say who leads.
            ArchiveUnavailable: something is left that was not come to, since several objects in a row have timed out.
            Whatever a round raises.
        """
        await self._leadership.lead_once(self._rounds_until_done, busy=BUSY)
        if left := self._offloader.passed_over:
            raise ArchiveUnavailable(
                f"{left} ledgers to be released, or objects to be removed, are left: several objects in a row have "
                f"timed out, and no more were asked for; the last error: {self._offloader.totals.last_error}"
            )
        return self.totals()

    async def _rounds_until_done(self) -> None:
        done = -1
        while (now := _progress(self._offloader.totals)) != done:
            done = now
            await self._round(tidy=True)

    def totals(self) -> Mapping[str, object]:
        """What was done since the start, and what is left."""
        return {**asdict(self._offloader.totals), **asdict(self._offloader.backlog)}

    async def _rounds(self) -> None:
        self._leads = True
        try:
            # Another term, or whoever led before, may have left much behind.
            self._offloader.begin_term()
            idle = False
            while True:
                was_idle, streamed_bytes = idle, self._offloader.streamed_bytes
                try:
                    await self._round()
                except (PeerError, StorageError, ArchiveDenied) as error:
                    sometimes("offload: a round ends early")
                    # The stores are away, a ledger's metadata are damaged, or keys have run out: what can be done
                    # again once that is mended is.
                    _log.warning("a round ended early", error=error.message)
                idle = self._offloader.streamed_bytes == streamed_bytes
                # While there is work, what was freed is of use to the next round: to get it anew costs 20 to 30 ms.
                if idle and not was_idle and self._give_back is not None:
                    await self._give_back(self._archive.workers)
                await self._archive.clock.sleep(self._settings.interval_s)
        finally:
            self._leads = False

    async def _round(self, *, tidy: bool = False) -> None:
        """Do a round, and write down what came of it, also where it ends with an error.

        Raises:
            Exception: what the round raises.
        """
        try:
            await self._offloader.round(tidy=tidy)
        except Exception as error:
            self._offloader.totals.ended_early(error.message if isinstance(error, TallybookError) else repr(error))
            await self._write_down()
            raise
        await self._write_down()

    async def _write_down(self) -> None:
        value = json.dumps({"format": FIRST, **self.totals(), "at_ms": self._archive.clock.wall_us() // 1000}).encode()
        try:
            # A request that hangs must not cost the lead: that would cut off the error that is about to be raised.
            async with asyncio.timeout(self._settings.lease_s / 4):
                record = await self._archive.metadata.read_record(STATUS_RECORD)
                over_known(STATUS_RECORD, value, None if record is None else record.value)
                written = await self._archive.metadata.write_record(
                    STATUS_RECORD, value, None if record is None else record.version
                )
        except TimeoutError:
            _log.warning("the status was not written down", error="the metadata store did not answer in time")
            return
        except TallybookError as error:
            _log.warning("the status was not written down", error=error.message)
            return
        if not isinstance(written, Ok):
            _log.info("the status was not written down: somebody else was first, or nobody knows")


async def status_of(archive: Archive) -> Mapping[str, object]:
    """What is archived, as the metadata say now, and what the leader wrote down last.

    Raises:
        MetadataUnavailable, DamagedFile: the metadata cannot be read; ledgers that cannot are only counted.
    """
    survey = Survey(archive.metadata)
    await survey.look()
    ledgers = list(survey.ledgers.values())
    last = await last_round(archive.metadata)
    at_ms = last.get("at_ms")
    return {
        "archive": archive.store.url,
        **_counts(ledgers),
        "unreadable_ledgers": len(survey.unreadable),
        "last_round_s_ago": None if at_ms is None else max(0, archive.clock.wall_us() // 1000 - at_ms) // 1000,
        "orphans": last.get("orphans"),
        "failures": last.get("failures"),
        "last_error": last.get("last_error"),
    }


def _counts(ledgers: list[LedgerMetadata]) -> dict[str, object]:
    closed = [metadata for metadata in ledgers if metadata.closed]
    archived = [metadata for metadata in closed if metadata.archived is not None]
    objects = {metadata.archived.key: metadata.archived.object_bytes for metadata in archived if metadata.archived}
    return {
        "ledgers": len(ledgers),
        "closed_ledgers": len(closed),
        "archived_ledgers": len(archived),
        "archived_bytes": sum(metadata.length for metadata in archived),
        "objects": len(objects),
        "object_bytes": sum(objects.values()),
        "being_archived": sum(metadata.archiving is not None for metadata in ledgers),
        "waiting_bytes": sum(metadata.length for metadata in closed if metadata.archived is None),
        "released_ledgers": sum(metadata.copies_released for metadata in archived),
    }


def _progress(totals: Totals) -> int:
    return totals.ledgers_archived + totals.ledgers_moved + totals.ledgers_released + totals.objects_removed


async def offloading(
    metadata_uri: str, url: str, settings: OffloadSettings, listening: Listening | None = None
) -> None:
    """Run an offloader until cancelled.

    Args:
        listening: where it serves health and metrics; ``None``: where the settings say.

    Raises:
        InvalidConfig: the cluster has another archive, or a URL makes no sense.
        ArchiveDenied, MetadataUnavailable: one of the stores is not there.
    """
    reading = SCANNING.model_copy(update={"security": settings.security, "archive_keys": settings.archive_keys})
    async with (
        Client(metadata_uri, reading) as client,
        opened(client, url, settle=True, archive_keys=settings.archive_keys) as archive,
    ):
        offloader = archive.offloader(client, settings)
        await OffloadService(archive, offloader, settings, give_back_memory, client, listening).run()
