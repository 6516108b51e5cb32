"""Maintains a bucket: checks its owner, writes the manifest, and removes orphans.

Nothing is removed while metadata or manifest may be incomplete (``locate_ledgers``): the metadata may be an older
copy, the manifest may be unreadable, or the object named by the metadata may be missing in the bucket.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from tallybook.archive.manifest import MANIFEST_KEY, Manifest
from tallybook.archive.objects.port import ObjectInfo, ObjectStore
from tallybook.archive.objects.probe import OBJECT_ERRORS, ObjectPass, RequestOrder, concerns_one_object, info_if_there
from tallybook.core.coverage import sometimes
from tallybook.core.settings import OffloadSettings
from tallybook.metadata.records.restored_store import MANIFEST, REMEDY, RestoreRecordStore, unapproved_restore
from tallybook.runtime.clock import Clock
from tallybook.runtime.logging import logger
from tallybook.runtime.rng import Rng
from tallybook.runtime.tasks import Workers, run_together

from ..ledger_listing import LedgerListing
from ..totals import Totals
from .ledger_locations import LedgerLocations, is_there, locate_ledgers
from .manifest_writer import ManifestWriter
from .orphans import Garbage, OrphanWatch, Owned
from .unknown_objects import CONCURRENT_READS, deletions_of, needed, unexplained

_log = logger("offload")

MAX_NAMED: Final = 20
"""Maximum ledgers named in a log line."""
MAX_LOOKUPS: Final = 1_000
"""Objects missing in a listing that are looked up by name, per pass; others count as missing."""


class BucketJanitor:
    """The bucket of a cluster, as maintained by one offloader.

    Args:
        workers: encode the manifest.
        totals: counters of removals and failures.
        forget: called with the key of each removed object.
    """

    def __init__(
        self,
        listing: LedgerListing,
        store: ObjectStore,
        workers: Workers,
        settings: OffloadSettings,
        clock: Clock,
        rng: Rng,
        totals: Totals,
        forget: Callable[[str], None],
    ) -> None:
        self._listing = listing
        self._store = store
        self._clock = clock
        self._totals = totals
        self._forget = forget
        self._manifest = ManifestWriter(store, workers)
        self._orphans = OrphanWatch(settings)
        self._turns = RequestOrder()
        self._behind = RestoreRecordStore(listing.store, clock, rng.fork("behind"))

    @property
    def orphans(self) -> int:
        """Orphans that wait to be removed."""
        return self._orphans.count

    @property
    def is_ours(self) -> bool:
        """Whether the manifest names this cluster as owner."""
        return self._manifest.cluster_id is not None

    # --- checks before any change -------------------------------------------------------------------------------------

    async def is_behind(self) -> bool:
        """Whether the metadata is known to be an older copy: it may lack the owners of objects."""
        behind = await unapproved_restore(self._listing.store)
        if behind is not None:
            self._totals.failed(f"nothing is merged or removed in {self._store.url}: {behind.description}: {REMEDY}")
        return behind is not None

    async def report_behind(self) -> bool:
        """Report the metadata as an older copy if the manifest counts ledgers beyond its id counter."""
        if not self.is_ours:
            return False  # perhaps another cluster's
        known, store = self._listing.ledgers, self._listing.store
        unknown = [ledger_id for ledger_id in self._manifest.ledgers if ledger_id not in known]
        if not unknown or max(unknown) < (id_counter := await store.id_counter()):
            return False
        for each in sorted((each for each in unknown if each >= id_counter), reverse=True):
            if await store.deletion(each) is None:
                sometimes("offload: the manifest shows that the metadata are an older copy")
                await self._behind.report(MANIFEST, id_counter, each)
                return True
        return False

    async def own(self, objects: Sequence[ObjectInfo], *, complete: bool) -> bool:
        """Whether the bucket belongs to this cluster; also takes over known orphans from the manifest.

        Args:
            objects: all objects in it, listed before the last pass of the listing.
            complete: whether the listing has all ledgers.
        """
        manifest = await self._manifest.load(next((each for each in objects if each.key == MANIFEST_KEY), None))
        owner = self._manifest.cluster_id
        if owner is not None and owner != await self._listing.cluster_id():
            self._totals.failed(
                f"{self._store.url} is the archive of cluster {owner}: nothing is merged or removed. "
                "If its metadata were lost, run 'offload rebuild-catalog --take-over'; else give this cluster another "
                "archive"
            )
            return False
        if self._manifest.remedy:
            why = f"{self._manifest.unreadable}: {self._manifest.remedy}"
            self._totals.failed(f"nothing is merged or removed, and the manifest is kept: {why}")
            return False
        if owner is None and complete and not await self._explained(objects):
            return False
        if manifest is not None:
            self._orphans.restore(manifest.dropped, monotonic_s=self._clock.monotonic(), wall_ms=self._now_ms())
        return True

    async def _explained(self, objects: Sequence[ObjectInfo]) -> bool:
        """Whether a manifest may be written although none can be read: the metadata must explain all objects."""
        lacks = self._manifest.unreadable or f"{self._store.url} has no manifest"
        owned = Owned.by(self._listing.ledgers.values())
        unowned = [found for found in objects if owned.is_orphan(found.key)]
        metadata, ledgers = self._listing.store, self._listing.ledgers
        for doubt in (await unexplained(self._store, metadata, ledgers, unowned, self._turns, limit=1)).values():
            self._totals.failed(
                f"nothing is merged or removed, and no manifest written: {lacks}, and {doubt.why}. If metadata were "
                "lost, run 'offload rebuild-catalog'; if it is another cluster's archive, give this cluster another "
                "one; remove the object yourself only if it is not needed"
            )
            return False
        return True

    # --- manifest and removals ----------------------------------------------------------------------------------------

    async def collect(self, objects: Sequence[ObjectInfo], *, complete: bool) -> int:
        """Write the manifest of the bucket, and remove orphans.

        Returns how many objects were not reached because several consecutive ones had timed out.

        The listing's known ledgers select the suspects. Only then, after the bucket was listed, all ledgers are read
        again; suspects that have an owner, or may be the last copy of a ledger, are kept.

        Args:
            objects: all objects in the bucket.
            complete: whether the listing has all ledgers. If not, nothing is written or removed.
        """
        # Without a manifest the missing ledgers are not known yet, although this pass writes one.
        explained = self.is_ours and not self._manifest.unreadable
        sizes = {each.key: each.size_bytes for each in objects}
        locations = await self._locate_ledgers(sizes) if complete else LedgerLocations({}, {}, {}, {}, {})
        self._report(locations)
        uploads = await self._store.unfinished_uploads()
        suspects = self._orphans.update(
            objects,
            uploads,
            Owned.by(self._listing.ledgers.values(), locations.kept),
            monotonic_s=self._clock.monotonic(),
            wall_ms=self._now_ms(),
        )
        if not complete:
            # Objects archived since the last manifest, of ledgers that are unknown now, have no line in it.
            return 0
        suspects, locations = await self._without_unexplained(suspects, objects, locations)
        # Before any removal: readers that use the manifest must not look for removed objects.
        if not await self._write_manifest(locations):
            return 0
        if not suspects:
            return 0
        if not explained:
            why = self._manifest.unreadable or f"{self._store.url} has no manifest"
            self._totals.failed(f"nothing is removed in this pass: {why}")
            return 0
        if not await self._listing.refresh(everything=True):
            sometimes("offload: removes nothing, for the listing of ledgers was incomplete")
            return 0
        if await self.is_behind():
            # Bookies have detected it since the pass began.
            return 0
        again = await self._locate_ledgers(sizes)
        garbage = suspects.without(Owned.by(self._listing.ledgers.values(), locations.kept | again.kept))
        if garbage != suspects:
            sometimes("offload: an orphan candidate has an owner")
        return await self._remove(await self._without_needed(garbage, again, sizes))

    async def _locate_ledgers(self, sizes: dict[str, int]) -> LedgerLocations:
        """Where the ledgers count; objects missing in the listing are looked up and added to ``sizes``."""
        ledgers, counted = self._listing.ledgers, self._manifest.ledgers
        named = {each.archived.key for each in ledgers.values() if each.archived and not is_there(each.archived, sizes)}
        looked_up = await self._look_up(self._turns.order(sorted(named), key=str)[:MAX_LOOKUPS])
        for key, found in looked_up.items():
            # It may have been written or removed since the listing.
            sizes.pop(key, None)
            if found is not None:
                sizes[key] = found.size_bytes
        deletions = await deletions_of(self._listing.store, [each for each in counted if each not in ledgers])
        deleted = [each for each, found in deletions.items() if found is not None]
        return locate_ledgers(ledgers, counted, sizes, deleted, named - looked_up.keys() - sizes.keys())

    async def _look_up(self, keys: Sequence[str]) -> dict[str, ObjectInfo | None]:
        """Listing entries of these objects, except those for which the store gives an error."""
        found, asked = dict[str, ObjectInfo | None](), ObjectPass(self._store)

        async def read_info(key: str) -> None:
            try:
                found[key] = await asked.ask(partial(info_if_there, self._store, key))
            except OBJECT_ERRORS as error:
                if not await asked.concerns_one_object(error):
                    raise
                self._turns.failed(key)

        for at in range(0, len(keys), CONCURRENT_READS):
            await run_together(*map(read_info, keys[at : at + CONCURRENT_READS]))
        return found

    def _report(self, locations: LedgerLocations) -> None:
        """Report ledgers about which metadata and bucket disagree."""
        if locations.missing:
            self._totals.failed(
                f"metadata of {len(locations.missing)} archived ledgers are missing, without a record that they were "
                "deleted: their objects stay; bring the metadata back",
                ledger_ids=sorted(locations.missing)[:MAX_NAMED],
            )
        if locations.astray:
            sometimes("offload: the manifest names a newer object than the metadata")
            self._totals.failed(
                f"{len(locations.astray)} ledgers are not in the objects that their metadata name, but where the "
                "manifest says: those objects stay; the metadata seem to be an older copy: bring newer ones back",
                ledger_ids=sorted(locations.astray)[:MAX_NAMED],
            )
        if locations.lost:
            sometimes("offload: an object with ledgers is not in the bucket")
            keys = sorted(set(locations.lost.values()))
            self._totals.failed(
                f"{len(keys)} objects with {len(locations.lost)} ledgers are not in {self._store.url}, as {keys[0]}: "
                "bring them back; older objects with the same ledgers stay",
                objects=keys[:MAX_NAMED],
            )
        if locations.unknown:
            keys = sorted(set(locations.unknown.values()))
            self._totals.failed(
                f"{self._store.url} does not report whether it has the objects of {len(locations.unknown)} ledgers, as "
                f"{keys[0]}: nothing is removed that these ledgers may be in",
                objects=keys[:MAX_NAMED],
            )

    async def _write_manifest(self, locations: LedgerLocations) -> bool:
        """Write the manifest if it changed; whether the bucket has the current one."""
        manifest = Manifest(await self._listing.cluster_id(), locations.counted, self._orphans.since_ms)
        try:
            if await self._manifest.write(manifest):
                ledgers, dropped = len(manifest.ledgers), len(manifest.dropped)
                _log.info("manifest written", ledger_count=ledgers, dropped_count=dropped)
        except OBJECT_ERRORS as error:
            if not await concerns_one_object(self._store, error):
                raise
            self._totals.failed(f"the manifest is not written, so nothing is removed: {error.message}")
            return False
        return True

    async def _without_unexplained(
        self, garbage: Garbage, objects: Sequence[ObjectInfo], locations: LedgerLocations
    ) -> tuple[Garbage, LedgerLocations]:
        """Keep objects with unknown ledgers that the manifest has not dropped yet.

        The manifest does not drop them: they count like younger objects. For unreadable ones it keeps the lines: they
        may contain other ledgers than the known ones with the same ids.
        """
        new = self._orphans.since_ms.keys() - self._manifest.dropped
        dropped = [found for found in objects if found.key in new]
        metadata, ledgers, named = self._listing.store, self._listing.ledgers, self._manifest.objects
        kept = await unexplained(self._store, metadata, ledgers, dropped, self._turns, locations.counted, named)
        for key in kept:
            self._orphans.removed(key)
        if kept:
            sometimes("offload: keeps an object of unknown ledgers")
            key, doubt = next(iter(kept.items()))
            self._totals.failed(f"{len(kept)} objects that no ledger's metadata name stay: {doubt.why}", object=key)
        lines = {each: key for key, doubt in kept.items() if doubt.unread for each in named.get(key, ())}
        counted = {ledger_id: lines.get(ledger_id, home) for ledger_id, home in locations.counted.items()}
        return garbage.without_objects(kept), replace(locations, counted=counted)

    async def _without_needed(self, garbage: Garbage, locations: LedgerLocations, sizes: Mapping[str, int]) -> Garbage:
        """Keep objects that may be the last copy of a ledger."""
        metadata, ledgers = self._listing.store, self._listing.ledgers
        kept = await needed(self._store, metadata, ledgers, garbage.objects, self._turns, locations.counted, sizes)
        if kept:
            sometimes("offload: keeps an object that no metadata name, and that a ledger needs")
            key, why = next(iter(kept.items()))
            self._totals.failed(f"{len(kept)} objects that no ledger's metadata name stay: {why}", object=key)
        return garbage.without_objects(kept)

    async def _remove(self, garbage: Garbage) -> int:
        """Remove objects and uploads; returns how many were not reached because several consecutive ones timed out."""
        asked, passed_over = ObjectPass(self._store), 0
        for found in self._turns.order(garbage.objects, key=lambda each: each.key):
            if asked.ended:
                passed_over += not self._turns.has_failed(found.key)  # the next pass begins with them
                continue
            if not await self._removed(asked, found.key, partial(self._store.delete, found.key)):
                continue
            self._forget(found.key)
            self._orphans.removed(found.key)
            self._totals.objects_removed += 1
            sometimes("offload: removes an orphaned object")
            _log.info("object removed: no ledger is in it", object=found.key)
        for upload in self._turns.order(garbage.uploads, key=lambda each: each.key):
            if asked.ended:
                passed_over += not self._turns.has_failed(upload.key)
                continue
            if not await self._removed(asked, upload.key, partial(self._store.abort_upload, upload)):
                continue
            self._totals.uploads_aborted += 1
            sometimes("offload: removes an unfinished upload")
            _log.info("unfinished upload removed", object=upload.key)
        return passed_over

    async def _removed(self, asked: ObjectPass, key: str, removal: Callable[[], Awaitable[None]]) -> bool:
        """Execute ``removal``; whether it succeeded. A failure (an object lock) does not stop other removals."""
        try:
            await asked.ask(removal)
        except OBJECT_ERRORS as error:
            if not await asked.concerns_one_object(error):
                raise
            self._turns.failed(key)
            self._totals.failed(f"it belongs to no ledger, and cannot be removed: {error.message}", object=key)
            return False
        return True

    def _now_ms(self) -> int:
        return self._clock.wall_us() // 1000
