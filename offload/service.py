"""Runs an offloader as a service: pass after pass while it leads, until it is stopped.

The leader is elected through the metadata (``metadata/records/leader.py``). That only saves work: two leaders waste
requests and do no harm. After each pass the leader writes its totals and backlog into the status record, which
``tallybook offload status`` shows.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict

from tallybook.archive.memory_release import release_memory
from tallybook.archive.metrics import ARCHIVE_METRICS, ArchiveNumbers
from tallybook.client.client import Client
from tallybook.client.metrics import show_client
from tallybook.core.coverage import sometimes
from tallybook.core.errors import ArchiveDenied, ArchiveUnavailable, PeerError, StorageError, TallybookError
from tallybook.core.settings import OffloadSettings
from tallybook.metadata.ledger.model import LedgerMetadata
from tallybook.metadata.metered_store import METADATA_METRICS
from tallybook.metadata.records.format import FIRST, check_overwritable
from tallybook.metadata.records.leader import Leadership
from tallybook.metadata.store import Ok
from tallybook.runtime.concurrency.backoff import with_drift
from tallybook.runtime.http.health_server import serve_health
from tallybook.runtime.listening import Listening
from tallybook.runtime.logging import logger
from tallybook.runtime.metrics.registry import Metrics
from tallybook.runtime.tasks import Workers

from .leading import BUSY, LEADER_RECORD
from .ledger_listing import LedgerListing
from .metrics import OFFLOAD_METRICS, OffloadNumbers
from .offloader import Offloader
from .open_archive import CLIENT_SETTINGS, Archive, open_archive
from .status_record import STATUS_RECORD, last_pass
from .totals import Totals

_log = logger("offload")


class OffloadService:
    """Runs an offloader while it leads.

    Args:
        give_back: returns freed memory to the system; called when there is nothing to do.
        client: reads the ledgers; for its metrics.
        listening: address for health and metrics; ``None``: from the settings.
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
        """Work until cancelled, and serve health and metrics.

        Raises:
            InvalidConfig: the listen address cannot be bound.
        """
        clock, metrics = self._archive.clock, self.metrics()
        listen, security = self._listening or self._settings.http_listen, self._settings.security
        async with serve_health(metrics, listen, security, clock, self._archive.tasks) as address:
            _log.info("serving", http_address=address)
            await self.lead()

    async def lead(self) -> None:
        """Work until cancelled, without serving health and metrics."""
        await self._leadership.lead(self._passes)

    def metrics(self) -> Metrics:
        """Content of /metrics."""
        metrics = Metrics()
        numbers = ArchiveNumbers(self._archive.store.retries, self._archive.encrypted_store)
        metrics.add(
            OFFLOAD_METRICS.catalog, lambda: OFFLOAD_METRICS.readings(OffloadNumbers(self._offloader, self._leads))
        )
        metrics.add_part(ARCHIVE_METRICS, numbers)
        if self._archive.metadata_load is not None:
            metrics.add_part(METADATA_METRICS, self._archive.metadata_load)
        if self._client is not None:
            show_client(metrics, self._client, with_metadata=False, with_archive=False)
        return metrics

    async def work_off(self) -> Mapping[str, object]:
        """Lead, and run passes until one finds nothing to do; returns the totals.

        Raises:
            Conflict: another process leads, and continues to.
            MetadataUnavailable: the leader cannot be determined.
            ArchiveUnavailable: work is left that was not reached, since several consecutive objects have timed out.
            Any error of a pass.
        """
        await self._leadership.lead_once(self._passes_until_done, busy=BUSY)
        if left := self._offloader.passed_over:
            raise ArchiveUnavailable(
                f"{left} ledgers to release, or objects to remove, are left, because several objects in a row "
                f"timed out; the last error: {self._offloader.totals.last_error}"
            )
        return self.totals()

    async def _passes_until_done(self) -> None:
        done = -1
        while (now := _progress(self._offloader.totals)) != done:
            done = now
            await self._pass(tidy=True)

    def totals(self) -> Mapping[str, object]:
        """Work done since the start, and the backlog."""
        return {**asdict(self._offloader.totals), **asdict(self._offloader.backlog)}

    async def _passes(self) -> None:
        self._leads = True
        rng = self._archive.rng.fork("passes")
        try:
            # Another leader may have left much work.
            self._offloader.begin_term()
            idle = False
            while True:
                was_idle, streamed_bytes = idle, self._offloader.streamed_bytes
                try:
                    await self._pass()
                except (PeerError, StorageError, ArchiveDenied) as error:
                    sometimes("offload: a pass ends early")
                    # The stores are unavailable, a ledger's metadata is damaged, or credentials expired: the next
                    # passes retry.
                    _log.warning("a pass ended early", error=error.message)
                idle = self._offloader.streamed_bytes == streamed_bytes
                # While there is work, the next pass reuses freed memory: allocating it again costs 20 to 30 ms.
                if idle and not was_idle and self._give_back is not None:
                    await self._give_back(self._archive.workers)
                await self._archive.clock.sleep(with_drift(rng, self._settings.interval_s))
        finally:
            self._leads = False

    async def _pass(self, *, tidy: bool = False) -> None:
        """Run a pass, and write its result into the status record, also after an error.

        Raises:
            Exception: any error of the pass.
        """
        try:
            await self._offloader.run_pass(tidy=tidy)
        except Exception as error:
            self._offloader.totals.ended_early(error.message if isinstance(error, TallybookError) else repr(error))
            await self._write_down()
            raise
        await self._write_down()

    async def _write_down(self) -> None:
        value = json.dumps({"format": FIRST, **self.totals(), "at_ms": self._archive.clock.wall_us() // 1000}).encode()
        try:
            # A hanging request must not cost the leadership, which would cancel the error that is about to be raised.
            async with asyncio.timeout(self._settings.lease_s / 4):
                record = await self._archive.metadata.read_record(STATUS_RECORD)
                check_overwritable(STATUS_RECORD, value, None if record is None else record.value)
                written = await self._archive.metadata.write_record(
                    STATUS_RECORD, value, None if record is None else record.version
                )
        except TimeoutError:
            _log.warning("the status was not written", error="the metadata store did not answer in time")
            return
        except TallybookError as error:
            _log.warning("the status was not written", error=error.message)
            return
        if not isinstance(written, Ok):
            _log.info("the status was not written: another process was first, or the outcome is unknown")


async def status_of(archive: Archive) -> Mapping[str, object]:
    """Archive totals from the current metadata, and the last status of the leader.

    Raises:
        MetadataUnavailable, DamagedFile: the metadata is unreadable; single unreadable ledgers are only counted.
    """
    listing = LedgerListing(archive.metadata)
    await listing.refresh()
    ledgers = list(listing.ledgers.values())
    last = await last_pass(archive.metadata)
    at_ms = last.get("at_ms")
    return {
        "archive": archive.store.url,
        **_counts(ledgers),
        "unreadable_ledgers": len(listing.unreadable),
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
        listening: address for health and metrics; ``None``: from the settings.

    Raises:
        InvalidConfig: the cluster has another archive, or a URL is invalid.
        ArchiveDenied, MetadataUnavailable: one of the stores does not exist.
    """
    reading = CLIENT_SETTINGS.model_copy(update={"security": settings.security, "archive_keys": settings.archive_keys})
    async with (
        Client(metadata_uri, reading) as client,
        open_archive(client, url, record=True, archive_keys=settings.archive_keys) as archive,
    ):
        offloader = archive.offloader(client, settings)
        await OffloadService(archive, offloader, settings, release_memory, client, listening).run()
