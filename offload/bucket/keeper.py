"""Keeps a bucket in order: settles whose it is, writes down what counts in it, and removes what belongs to nobody.

Nothing goes while the metadata or the manifest may know too little (``standing``): the metadata may be an older copy,
the manifest may not be readable, and the object that the metadata name may have been lost from the bucket.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from tallybook.archive.manifest import MANIFEST_KEY, Manifest
from tallybook.archive.objects.port import ObjectInfo, ObjectStore
from tallybook.archive.objects.probe import OBJECT_ERRORS, ObjectPass, Turns, concerns_one_object, info_if_there
from tallybook.core.config import OffloadSettings
from tallybook.core.marks import sometimes
from tallybook.metadata.behind import MANIFEST, REMEDY, BehindRecord, unapproved
from tallybook.runtime.clock import Clock
from tallybook.runtime.logging import logger
from tallybook.runtime.rng import Rng
from tallybook.runtime.tasks import Workers, run_together

from .manifest_writer import ManifestWriter
from .orphans import Garbage, OrphanWatch, Owned
from .standing import Standing, is_there, standing
from .survey import Survey
from .totals import Totals
from .unexplained import CONCURRENT_READS, deletions_of, needed, unexplained

_log = logger("offload")

MAX_NAMED: Final = 20
"""Ledgers that the log names."""
MOST_LOOKED_FOR: Final = 1_000
"""Objects that a listing lacks and that are looked for by name, in one pass; others count as not there."""


class BucketKeeper:
    """The bucket of a cluster, as one offloader keeps it.

    Args:
        workers: where the manifest is encoded.
        totals: where what was removed, and what failed, is counted.
        forget: called with the key of each object that is gone.
    """

    def __init__(
        self,
        survey: Survey,
        store: ObjectStore,
        workers: Workers,
        settings: OffloadSettings,
        clock: Clock,
        rng: Rng,
        totals: Totals,
        forget: Callable[[str], None],
    ) -> None:
        self._survey = survey
        self._store = store
        self._clock = clock
        self._totals = totals
        self._forget = forget
        self._manifest = ManifestWriter(store, workers)
        self._orphans = OrphanWatch(settings)
        self._turns = Turns()
        self._behind = BehindRecord(survey.store, clock, rng.fork("behind"))

    @property
    def orphans(self) -> int:
        """Objects that have no owner, and wait to be removed."""
        return self._orphans.count

    @property
    def is_ours(self) -> bool:
        """Whether the manifest says that it is this cluster's bucket."""
        return self._manifest.cluster_id is not None

    # --- whether anything may change ----------------------------------------------------------------------------------

    async def is_behind(self) -> bool:
        """Whether the metadata are known to be an older copy: what they do not know has owners that they forgot."""
        behind = await unapproved(self._survey.store)
        if behind is not None:
            self._totals.failed(f"nothing is merged or removed in {self._store.url}: {behind.told}: {REMEDY}")
        return behind is not None

    async def report_behind(self) -> bool:
        """Report the metadata as an older copy if the manifest counts ledgers beyond their id counter."""
        if not self.is_ours:
            return False  # perhaps another cluster's
        known, store = self._survey.ledgers, self._survey.store
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
        """Whether the bucket is of this cluster; what another process has seen of orphans is taken over from there.

        Args:
            objects: all that are in it, listed before the last look of the survey.
            complete: whether no ledger can be missing from the survey.
        """
        manifest = await self._manifest.load(next((each for each in objects if each.key == MANIFEST_KEY), None))
        owner = self._manifest.cluster_id
        if owner is not None and owner != await self._survey.cluster_id():
            self._totals.failed(
                f"{self._store.url} is the archive of cluster {owner}: nothing is merged or removed. "
                "If its metadata were lost, run 'offload rebuild-catalog --take-over'; else give this cluster another "
                "archive"
            )
            return False
        if self._manifest.remedy:
            why = f"{self._manifest.unreadable}: {self._manifest.remedy}"
            self._totals.failed(f"nothing is merged or removed, and the manifest stays: {why}")
            return False
        if owner is None and complete and not await self._explained(objects):
            return False
        if manifest is not None:
            self._orphans.restore(manifest.dropped, monotonic_s=self._clock.monotonic(), wall_ms=self._now_ms())
        return True

    async def _explained(self, objects: Sequence[ObjectInfo]) -> bool:
        """Whether a manifest may be written where none tells what counts: the metadata explain all objects."""
        lacks = self._manifest.unreadable or f"{self._store.url} has no manifest"
        owned = Owned.by(self._survey.ledgers.values())
        unowned = [found for found in objects if owned.frees_object(found.key)]
        metadata, ledgers = self._survey.store, self._survey.ledgers
        for doubt in (await unexplained(self._store, metadata, ledgers, unowned, self._turns, most=1)).values():
            self._totals.failed(
                f"nothing is merged or removed, and no manifest written: {lacks}, and {doubt.why}. If metadata were "
                "lost, run 'offload rebuild-catalog'; if it is another cluster's archive, give this cluster another "
                "one; remove the object yourself only if nobody needs it"
            )
            return False
        return True

    # --- what counts, and what goes -----------------------------------------------------------------------------------

    async def collect(self, objects: Sequence[ObjectInfo], *, complete: bool) -> int:
        """Write down what counts in the bucket, and remove what belongs to nobody.

        Returns how much of that no pass has come to so far, since several objects in a row had timed out.

        What is known of the ledgers says what to suspect. Only then are all of them read, which is after the bucket
        was listed, and what has an owner after all, or may be the last copy of a ledger, is spared.

        Args:
            objects: all that are in the bucket.
            complete: whether no ledger can be missing from the survey. If not, nothing is written or removed.
        """
        # Without a manifest, which ledgers are missing is not known yet, though this pass writes one.
        told = self.is_ours and not self._manifest.unreadable
        sizes = {each.key: each.size_bytes for each in objects}
        stands = await self._standing(sizes) if complete else Standing({}, {}, {}, {}, {})
        self._report(stands)
        uploads = await self._store.unfinished_uploads()
        suspects = self._orphans.look(
            objects,
            uploads,
            Owned.by(self._survey.ledgers.values(), stands.kept),
            monotonic_s=self._clock.monotonic(),
            wall_ms=self._now_ms(),
        )
        if not complete:
            # What was archived since the last manifest, by a ledger that is not known now, has no line in it.
            return 0
        suspects, stands = await self._without_unexplained(suspects, objects, stands)
        # Before anything goes: readers that go by the manifest must not look for what is removed.
        if not await self._write_manifest(stands):
            return 0
        if not suspects:
            return 0
        if not told:
            why = self._manifest.unreadable or f"{self._store.url} has no manifest"
            self._totals.failed(f"nothing is removed in this pass: {why}")
            return 0
        if not await self._survey.look(everything=True):
            sometimes("offload: removes nothing, for the listing of ledgers broke off")
            return 0
        if await self.is_behind():
            # Bookies have found it out since the pass began.
            return 0
        again = await self._standing(sizes)
        garbage = suspects.without(Owned.by(self._survey.ledgers.values(), stands.kept | again.kept))
        if garbage != suspects:
            sometimes("offload: what had no owner has one after all")
        return await self._remove(await self._without_needed(garbage, again, sizes))

    async def _standing(self, sizes: dict[str, int]) -> Standing:
        """Where the ledgers are; what the listing lacks is looked for, and added to ``sizes``."""
        ledgers, counted = self._survey.ledgers, self._manifest.ledgers
        named = {each.archived.key for each in ledgers.values() if each.archived and not is_there(each.archived, sizes)}
        looked_for = await self._looked_for(self._turns.order(sorted(named), key=str)[:MOST_LOOKED_FOR])
        for key, found in looked_for.items():
            # Perhaps it was written since the listing, or removed.
            sizes.pop(key, None)
            if found is not None:
                sizes[key] = found.size_bytes
        deletions = await deletions_of(self._survey.store, [each for each in counted if each not in ledgers])
        deleted = [each for each, found in deletions.items() if found is not None]
        return standing(ledgers, counted, sizes, deleted, named - looked_for.keys() - sizes.keys())

    async def _looked_for(self, keys: Sequence[str]) -> dict[str, ObjectInfo | None]:
        """What a listing would show of these objects; without those that the store refuses to tell of."""
        found, asked = dict[str, ObjectInfo | None](), ObjectPass(self._store)

        async def look(key: str) -> None:
            try:
                found[key] = await asked.ask(partial(info_if_there, self._store, key))
            except OBJECT_ERRORS as error:
                if not await asked.concerns_one_object(error):
                    raise
                self._turns.failed(key)

        for at in range(0, len(keys), CONCURRENT_READS):
            await run_together(*map(look, keys[at : at + CONCURRENT_READS]))
        return found

    def _report(self, stands: Standing) -> None:
        """Name the ledgers that the metadata and the bucket do not agree about."""
        if stands.missing:
            self._totals.failed(
                f"metadata of {len(stands.missing)} archived ledgers are missing, without a record that they were "
                "deleted: their objects stay; bring the metadata back",
                ledger_ids=sorted(stands.missing)[:MAX_NAMED],
            )
        if stands.astray:
            sometimes("offload: the manifest knows better than the metadata where a ledger is")
            self._totals.failed(
                f"{len(stands.astray)} ledgers are not in the objects that their metadata name, but where the "
                "manifest says: those objects stay; the metadata seem to be an older copy: bring newer ones back",
                ledger_ids=sorted(stands.astray)[:MAX_NAMED],
            )
        if stands.lost:
            sometimes("offload: an object that ledgers are in is not in the bucket")
            keys = sorted(set(stands.lost.values()))
            self._totals.failed(
                f"{len(keys)} objects with {len(stands.lost)} ledgers are not in {self._store.url}, as {keys[0]}: "
                "bring them back; older objects with the same ledgers stay",
                objects=keys[:MAX_NAMED],
            )
        if stands.unknown:
            keys = sorted(set(stands.unknown.values()))
            self._totals.failed(
                f"{self._store.url} does not tell whether it has the objects of {len(stands.unknown)} ledgers, as "
                f"{keys[0]}: nothing is removed that these ledgers may be in",
                objects=keys[:MAX_NAMED],
            )

    async def _write_manifest(self, stands: Standing) -> bool:
        """Whether the manifest says what counts."""
        manifest = Manifest(await self._survey.cluster_id(), stands.counted, self._orphans.since_ms)
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
        self, garbage: Garbage, objects: Sequence[ObjectInfo], stands: Standing
    ) -> tuple[Garbage, Standing]:
        """The same but for objects that the manifest has not dropped so far, with ledgers that nobody knows.

        The manifest does not drop them: they count as younger ones do. Of those that cannot be read it keeps the lines:
        they may have other ledgers than those of the same ids that are known.
        """
        new = self._orphans.since_ms.keys() - self._manifest.dropped
        dropped = [found for found in objects if found.key in new]
        metadata, ledgers, named = self._survey.store, self._survey.ledgers, self._manifest.objects
        kept = await unexplained(self._store, metadata, ledgers, dropped, self._turns, stands.counted, named)
        for key in kept:
            self._orphans.removed(key)
        if kept:
            sometimes("offload: keeps an object of ledgers that nobody knows")
            key, doubt = next(iter(kept.items()))
            self._totals.failed(f"{len(kept)} objects that no ledger's metadata name stay: {doubt.why}", object=key)
        lines = {each: key for key, doubt in kept.items() if doubt.unread for each in named.get(key, ())}
        counted = {ledger_id: lines.get(ledger_id, home) for ledger_id, home in stands.counted.items()}
        return garbage.without_objects(kept), replace(stands, counted=counted)

    async def _without_needed(self, garbage: Garbage, stands: Standing, sizes: Mapping[str, int]) -> Garbage:
        """The same but for objects that may be the last to have a ledger."""
        metadata, ledgers = self._survey.store, self._survey.ledgers
        kept = await needed(self._store, metadata, ledgers, garbage.objects, self._turns, stands.counted, sizes)
        if kept:
            sometimes("offload: keeps an object that no metadata name, and that a ledger needs")
            key, why = next(iter(kept.items()))
            self._totals.failed(f"{len(kept)} objects that no ledger's metadata name stay: {why}", object=key)
        return garbage.without_objects(kept)

    async def _remove(self, garbage: Garbage) -> int:
        """Remove these; how many the store was never asked for, since several in a row had timed out."""
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
            sometimes("offload: removes an object that belongs to nobody")
            _log.info("object removed: no ledger is in it", object=found.key)
        for upload in self._turns.order(garbage.uploads, key=lambda each: each.key):
            if asked.ended:
                passed_over += not self._turns.has_failed(upload.key)
                continue
            if not await self._removed(asked, upload.key, partial(self._store.abort_upload, upload)):
                continue
            self._totals.uploads_aborted += 1
            sometimes("offload: removes an upload that nobody finished")
            _log.info("unfinished upload removed", object=upload.key)
        return passed_over

    async def _removed(self, asked: ObjectPass, key: str, removal: Callable[[], Awaitable[None]]) -> bool:
        """Whether the store did ``removal``. What it does not remove (an object lock) keeps no other from going."""
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
