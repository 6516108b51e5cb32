"""Rebuilds the metadata of archived ledgers from a bucket, after the loss of everything else.

Each ledger is restored as closed, in the object in which it was found, without copies at bookies. Ledgers that were not
archived are lost. Ledgers that exist in the metadata store are not touched, nor those with an unreadable record.

The object that the manifest names for a ledger is tried first, or the youngest one without a manifest; if it is damaged
or missing, the next older one with the same ledger, told by its identity. An object with an unreadable index blocks its
ledgers (``archive/catalog.py``). Ledgers that the manifest lists as deleted are not restored.

Records of transactions are not restored. A bucket contains only committed ledgers (``policy.due``), so each ledger is
restored without a transaction, visible to all.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

from tallybook.archive.catalog import BucketCatalog, CatalogEntry, read_catalog
from tallybook.archive.manifest import Manifest, read_manifest, write_manifest
from tallybook.archive.object_writer import check_object
from tallybook.archive.objects.port import ObjectStore
from tallybook.archive.objects.probe import OBJECT_ERRORS, ObjectPass, concerns_one_object, spread
from tallybook.core.errors import Conflict, DamagedFile, LedgerExists, NewerFormat, NoSuchLedger
from tallybook.core.ids import same_ledger
from tallybook.metadata.id_block import raise_counter
from tallybook.metadata.ledger.archived import Receipt
from tallybook.metadata.ledger.model import LedgerMetadata
from tallybook.metadata.store import MetadataStore
from tallybook.metadata.transactions import unmarked
from tallybook.runtime.tasks import Workers


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """Result for one object."""

    key: str
    ledger_ids: tuple[int, ...] = ()
    """Ledgers restored from it."""
    known: tuple[int, ...] = ()
    """Ledgers that existed before."""
    unreadable: Mapping[int, str] = field(default_factory=dict)
    """Ledgers that exist with a damaged record, with the error."""
    others: tuple[int, ...] = ()
    """Ids that other ledgers use by now."""
    newer: Mapping[int, str] = field(default_factory=dict)
    """Ledgers that exist with a record written by a newer Tallybook."""
    problem: str = ""


async def rebuild_catalog(store: ObjectStore, metadata: MetadataStore, workers: Workers) -> AsyncIterator[Rebuilt]:
    """Read and verify every object that should contain ledgers, and restore its ledgers.

    An object is reported again for each ledger restored from it because a younger object is damaged. The caller claims
    the bucket last (``claim_bucket``): until then offloaders of this cluster do not change it.

    Raises:
        ArchiveUnavailable, ArchiveDenied: the object store does not answer.
        MetadataUnavailable, MetadataOutcomeUnknown: error of the metadata store; call again to continue.
    """
    catalog = await read_catalog(store, workers)
    for key, problem in sorted(catalog.damaged.items()):
        yield Rebuilt(key, problem=problem)
    await raise_counter(metadata, catalog.last_id)
    wanted, hashes, bad = list(catalog.ledgers.values()), dict[str, bytes](), set[str]()
    asked = ObjectPass(store)
    while wanted:
        by_key: dict[str, list[CatalogEntry]] = {}
        for found in wanted:
            by_key.setdefault(found.receipt.key, []).append(found)
        wanted = []
        for key, members in spread(sorted(by_key.items())):
            try:
                if key not in hashes:
                    hashes[key] = await asked.ask(partial(_checked, store, workers, members[0].receipt))
            except OBJECT_ERRORS as error:
                if isinstance(error, NewerFormat) or not await asked.concerns_one_object(error):
                    raise
                bad.add(key)
                wanted += _fallen_back(catalog, members, bad)
                yield Rebuilt(key, problem=error.message)
            else:
                yield await _enter(metadata, key, members, hashes[key])


async def check_owner(store: ObjectStore, metadata: MetadataStore, workers: Workers, *, take_over: bool) -> None:
    """Check that the bucket may become this cluster's.

    Args:
        take_over: permit a bucket whose manifest names another cluster.

    Raises:
        Conflict: it may not.
        NewerFormat: a newer Tallybook wrote the manifest.
        ArchiveUnavailable, ArchiveDenied: the object store does not answer.
        MetadataUnavailable: the metadata store does not answer.
    """
    manifest = await _manifest(store, workers)
    if manifest is None or take_over or manifest.cluster_id == await metadata.cluster_id():
        return
    raise Conflict(
        f"{store.url} is the archive of cluster {manifest.cluster_id}, whose offloaders would no longer merge or "
        "remove anything there: if that cluster lost its metadata or gives up this archive, run this again with "
        "--take-over"
    )


async def is_own(store: ObjectStore, metadata: MetadataStore, workers: Workers) -> bool:
    """Whether the manifest names this cluster as owner.

    Raises:
        As ``check_owner``.
    """
    manifest = await _manifest(store, workers)
    return manifest is not None and manifest.cluster_id == await metadata.cluster_id()


async def claim_bucket(store: ObjectStore, metadata: MetadataStore, workers: Workers) -> None:
    """Make the bucket this cluster's: its offloaders may merge and remove objects, and replace the copy of records.

    Call it last, once everything needed from the bucket is in the metadata store. Without a readable manifest nothing
    changes: an offloader writes one once the metadata explains all objects.

    Raises:
        As ``check_owner``.
    """
    manifest = await _manifest(store, workers)
    cluster_id = await metadata.cluster_id()
    if manifest is not None and manifest.cluster_id != cluster_id:
        await write_manifest(store, workers, replace(manifest, cluster_id=cluster_id))


async def _manifest(store: ObjectStore, workers: Workers) -> Manifest | None:
    """The manifest; ``None`` if there is no readable one."""
    try:
        return await read_manifest(store, workers)
    except (DamagedFile, *OBJECT_ERRORS) as error:
        if isinstance(error, NewerFormat) or not await concerns_one_object(store, error):
            raise
        return None


async def _checked(store: ObjectStore, workers: Workers, receipt: Receipt) -> bytes:
    """Verify an object; returns its SHA-256."""
    sha256, _ = await check_object(store, workers, receipt.key, receipt.object_bytes, receipt.index)
    return sha256


def _fallen_back(catalog: BucketCatalog, members: Iterable[CatalogEntry], bad: Collection[str]) -> list[CatalogEntry]:
    """The same ledgers in their youngest objects that are not known as bad; omits those without another object."""
    found = []
    for member in members:
        older = catalog.older.get(member.metadata.ledger_id, ())
        found += [each for each in older if each.receipt.key not in bad][:1]
    return found


async def _enter(metadata: MetadataStore, key: str, members: Iterable[CatalogEntry], sha256: bytes) -> Rebuilt:
    entered, known, others = list[int](), list[int](), list[int]()
    unreadable, newer = dict[int, str](), dict[int, str]()
    for found in members:
        ledger = _ledger(found, sha256)
        try:
            present = await _present(metadata, ledger.ledger_id)
            if present is not None:
                (known if same_ledger(present.identity, ledger.identity) else others).append(ledger.ledger_id)
                continue
            await metadata.create_ledger(ledger)
            entered.append(ledger.ledger_id)
        except LedgerExists:
            known.append(ledger.ledger_id)  # another process was first, or it was deleted here
        except DamagedFile as error:
            unreadable[ledger.ledger_id] = error.message
        except NewerFormat as error:
            newer[ledger.ledger_id] = error.message
    return Rebuilt(key, tuple(entered), tuple(known), unreadable, tuple(others), newer)


async def _present(metadata: MetadataStore, ledger_id: int) -> LedgerMetadata | None:
    try:
        return (await metadata.read_ledger(ledger_id, linearizable=True)).value
    except NoSuchLedger:
        return None


def _ledger(found: CatalogEntry, sha256: bytes) -> LedgerMetadata:
    receipt = replace(found.receipt, object_sha256=sha256)
    return replace(unmarked(found.metadata), archiving=None, archived=receipt, copies_released=True)
