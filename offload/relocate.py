"""Records the new URL of a cluster's archive after its objects were moved, once they were found there."""

from __future__ import annotations

from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import cast

from tallybook.archive.objects.open import open_store
from tallybook.archive.objects.port import ObjectStore
from tallybook.archive.url_record import relocate
from tallybook.client.client import Client
from tallybook.core.errors import Conflict, DamagedFile, check
from tallybook.core.settings import OffloadSettings
from tallybook.metadata.records.leader import Leadership
from tallybook.metadata.store import MetadataStore
from tallybook.runtime.clock import Clock, RealClock
from tallybook.runtime.rng import Rng, SystemRng

from .leading import BUSY, LEADER_RECORD
from .ledger_listing import LedgerListing
from .verify import by_object


@dataclass(frozen=True, slots=True)
class Relocation:
    """Result of the comparison with the new URL."""

    objects: int
    """Objects that contain ledgers, found or missing."""
    missing: tuple[str, ...]
    """Keys of objects that are missing, or have another size."""
    relocated: bool
    """Whether the metadata names the new URL now."""


async def relocate_archive(
    client: Client, url: str, *, accept_missing: bool = False, archive_keys: str = ""
) -> Relocation:
    """Make ``url`` the archive of a cluster, if every object that contains a ledger is there.

    Args:
        client: of the cluster.
        accept_missing: relocate although objects are missing.
        archive_keys: file with the keys of the archive; empty: none.

    Raises:
        InvalidConfig: the URL is invalid.
        Conflict: an offloader is running, or a ledger is being written to an object at the old URL.
        DamagedFile: the metadata of a ledger is unreadable.
        MetadataUnavailable, MetadataOutcomeUnknown: the metadata store does not answer.
        ArchiveUnavailable, ArchiveDenied: the new URL cannot be listed.
    """
    clock, rng = RealClock(), SystemRng()
    async with AsyncExitStack() as stack:
        store = await open_store(url, clock, rng.fork("store"), archive_keys=archive_keys)
        stack.push_async_callback(store.close)
        return await relocate_to(client.world.store, store, url, clock, rng, accept_missing=accept_missing)


async def relocate_to(
    metadata: MetadataStore, store: ObjectStore, url: str, clock: Clock, rng: Rng, *, accept_missing: bool = False
) -> Relocation:
    """Like ``relocate_archive``, with opened stores.

    Takes the leadership of the offloaders meanwhile: an object written to the old URL between the comparison and the
    change would be lost.
    """
    found: Relocation | None = None
    settings = OffloadSettings()

    async def work() -> None:
        nonlocal found
        found = await _relocate(metadata, store, url, clock, settings, accept_missing=accept_missing)

    leadership = Leadership(metadata, clock, rng.fork("leader"), record=LEADER_RECORD, lease_s=settings.lease_s)
    await leadership.lead_once(work, busy=BUSY)
    check(found is not None, "the comparison came to its end")
    return cast("Relocation", found)


async def _relocate(
    metadata: MetadataStore,
    store: ObjectStore,
    url: str,
    clock: Clock,
    settings: OffloadSettings,
    *,
    accept_missing: bool,
) -> Relocation:
    sizes = {each.key: each.size_bytes async for page in store.list() for each in page}
    # After the listing, which may take long: a compaction by Spark, which leads in the same way, may have begun.
    listing = LedgerListing(metadata)
    if not await listing.refresh():
        why = next(iter(listing.unreadable.values()), "the listing of ledgers was incomplete")
        raise DamagedFile(f"not relocated: it is not known which objects contain the ledgers: {why}")
    _refuse_attempts(listing, clock.wall_us() // 1000, settings.attempt_ttl_s)
    wanted = by_object(listing.ledgers.values())
    missing = tuple(
        key for key, receipts in wanted.items() if sizes.get(key) != next(iter(receipts.values())).object_bytes
    )
    if missing and not accept_missing:
        return Relocation(len(wanted), missing, relocated=False)
    await relocate(metadata, url)
    return Relocation(len(wanted), missing, relocated=True)


def _refuse_attempts(listing: LedgerListing, now_ms: int, ttl_s: float) -> None:
    for metadata in listing.ledgers.values():
        attempt = metadata.archiving
        if attempt is not None and not attempt.is_dead(now_ms, int(ttl_s * 1000)):
            raise Conflict(
                f"not relocated: ledger {metadata.ledger_id} is being archived to the old location: try again later; "
                f"the attempt of a dead process expires after {ttl_s:g} s"
            )
