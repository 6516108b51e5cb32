"""The archive part of the demo: closed ledgers are archived, and bookies drop their copies."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tallybook.client.client import Client
from tallybook.core.errors import RequestTimeout
from tallybook.core.settings import OffloadSettings
from tallybook.metadata.ledger.model import LedgerMetadata
from tallybook.runtime.clock import Clock
from tallybook.runtime.http.scrape import fetch_metrics
from tallybook.runtime.tasks import ThreadWorkers

from ..local.launcher import LocalCluster
from ..progress import human_bytes
from .view import DemoOutput

COLLECT: Final = ("--set", "collection.interval_ms=500")
"""Options for bookies to drop released copies soon."""

_WITHOUT_DELAY: Final = OffloadSettings(max_set_wait_s=0, deletion_lag_s=0)
_DROP_SECONDS: Final = 30.0
_POLL_SECONDS: Final = 0.1


async def archive_and_drop(cluster: LocalCluster, ledger_ids: Sequence[int], view: DemoOutput, clock: Clock) -> None:
    """Archive closed ledgers, and wait until the bookies have dropped their copies.

    Raises:
        ArchiveUnavailable, MetadataUnavailable: the archive cannot be written.
        RequestTimeout: a bookie still has its copy after ``_DROP_SECONDS``.
    """
    # Imported here because it takes long to load.
    from tallybook.offload.open_archive import open_archive  # noqa: PLC0415
    from tallybook.offload.service import OffloadService  # noqa: PLC0415

    url = archive_url(cluster)
    archive_directory(cluster).mkdir()
    async with Client(cluster.metadata) as client, open_archive(client, url, record=True) as archive:
        service = OffloadService(archive, archive.offloader(client, _WITHOUT_DELAY), _WITHOUT_DELAY)
        await service.work_off()
        known = [await client.ledger_metadata(ledger_id) for ledger_id in ledger_ids]
    objects = {each.archived.key: each.archived.object_bytes for each in known if each.archived}
    payload = sum(each.length for each in known)
    view.step(
        f"the offloader put both ledgers into {len(objects)} Parquet object{'s'[: len(objects) > 1]} of "
        f"{human_bytes(sum(objects.values()))} ({human_bytes(payload)} of flights), read back and compared"
    )
    copies = sum(len(holders(each)) for each in known)
    await _dropped(cluster, copies, clock)
    view.step(f"the bookies dropped their {copies} copies: the archive has the only ones")


def holders(metadata: LedgerMetadata) -> set[str]:
    """Bookies that have an entry of a closed ledger."""
    found = set()
    for fragment in metadata.fragments:
        first, last = fragment.first_entry_id, metadata.fragment_end(fragment)
        for bookie in fragment.bookies:
            without = any(
                missed.bookie_id == bookie
                and missed.first_entry_id <= first
                and (missed.last_entry_id is None or missed.last_entry_id >= last)
                for missed in metadata.missed
            )
            if first <= last and not without:
                found.add(bookie)
    return found


def archive_directory(cluster: LocalCluster) -> Path:
    """The directory of the archive's objects."""
    return cluster.directory / "archive"


def archive_url(cluster: LocalCluster) -> str:
    """The URL of the archive."""
    return f"file://{archive_directory(cluster)}"


async def _dropped(cluster: LocalCluster, copies: int, clock: Clock) -> None:
    """Wait until bookies have dropped ``copies`` copies of ledgers."""
    deadline, workers = clock.monotonic() + _DROP_SECONDS, ThreadWorkers(1, "look")
    try:
        while True:
            found = [
                await workers.run(fetch_metrics, bookie.ports["http"]) for bookie in cluster.bookies if bookie.running
            ]
            if sum(each.get("tallybook_bookie_ledgers_dropped_total", 0) for each in found) >= copies:
                return
            if clock.monotonic() > deadline:
                raise RequestTimeout(f"after {_DROP_SECONDS:.0f} s bookies still keep archived ledgers")
            await asyncio.sleep(_POLL_SECONDS)
    finally:
        await workers.close()
