"""Fills a metadata store from what a bucket holds: history comes back after the loss of everything else.

Each ledger comes back closed, in the object it was found in, with no copies at bookies. What was never archived is
not in the bucket, and does not come back. Ledgers that are in the metadata store already are left alone, and so are
those whose record there cannot be read.

The object that the manifest names for a ledger is tried first, or the youngest one where there is no manifest; if it is
damaged or gone, the next older one that has the same ledger, told by its identity. One of which not even the index can
be read stands for its ledgers (``archive/catalog.py``). What the manifest says was deleted does not come back.

What says which transactions were committed does not come back either. A bucket holds only what was (``policy.due``), so
each ledger comes back as one of no transaction, in everybody's view.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

from tallybook.archive.catalog import Catalog, Found, read_catalog
from tallybook.archive.manifest import Manifest, read_manifest, write_manifest
from tallybook.archive.objects.port import ObjectStore
from tallybook.archive.objects.probe import OBJECT_ERRORS, ObjectPass, concerns_one_object, spread
from tallybook.archive.packing import check_object
from tallybook.core.errors import Conflict, DamagedFile, LedgerExists, NewerFormat, NoSuchLedger
from tallybook.core.ids import MAX_ID, same_ledger
from tallybook.metadata.archived import Receipt
from tallybook.metadata.model import LedgerMetadata
from tallybook.metadata.store import MetadataStore
from tallybook.metadata.transactions import unmarked
from tallybook.runtime.tasks import Workers


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """What became of one object."""

    key: str
    ledger_ids: tuple[int, ...] = ()
    """That are in the metadata store now because of it."""
    known: tuple[int, ...] = ()
    """That were there before."""
    unreadable: Mapping[int, str] = field(default_factory=dict)
    """That are there with a record which is damaged, and how."""
    others: tuple[int, ...] = ()
    """Whose ids other ledgers have by now."""
    newer: Mapping[int, str] = field(default_factory=dict)
    """That are there with a record which a newer Tallybook has written."""
    problem: str = ""


async def rebuild_catalog(store: ObjectStore, metadata: MetadataStore, workers: Workers) -> AsyncIterator[Rebuilt]:
    """Read every object that ledgers are to be in, check all of it, and enter its ledgers.

    An object is given again for each ledger that comes to it because a younger one is damaged. The bucket is claimed
    by itself, and last (``claim_bucket``): until then offloaders of this cluster leave it alone.

    Raises:
        ArchiveUnavailable, ArchiveDenied: the object store does not answer.
        MetadataUnavailable, MetadataOutcomeUnknown: the metadata store; the same call goes on where it ended.
    """
    catalog = await read_catalog(store, workers)
    for key, problem in sorted(catalog.damaged.items()):
        yield Rebuilt(key, problem=problem)
    await raise_counter(metadata, catalog.last_id)
    wanted, hashes, bad = list(catalog.ledgers.values()), dict[str, bytes](), set[str]()
    asked = ObjectPass(store)
    while wanted:
        by_key: dict[str, list[Found]] = {}
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
        take_over: it may also where its manifest says that it is another cluster's.

    Raises:
        Conflict: it may not.
        NewerFormat: a newer Tallybook has written the manifest.
        ArchiveUnavailable, ArchiveDenied: the object store does not answer.
        MetadataUnavailable: the metadata store.
    """
    manifest = await _manifest(store, workers)
    if manifest is None or take_over or manifest.cluster_id == await metadata.cluster_id():
        return
    raise Conflict(
        f"{store.url} is the archive of cluster {manifest.cluster_id}, whose offloaders would merge and remove nothing "
        "there any more: if its metadata were lost, or it is to give its archive away, run this again with --take-over"
    )


async def is_own(store: ObjectStore, metadata: MetadataStore, workers: Workers) -> bool:
    """Whether the bucket says that it is this cluster's.

    Raises:
        As ``check_owner``.
    """
    manifest = await _manifest(store, workers)
    return manifest is not None and manifest.cluster_id == await metadata.cluster_id()


async def claim_bucket(store: ObjectStore, metadata: MetadataStore, workers: Workers) -> None:
    """Make the bucket this cluster's: its offloaders may merge and remove objects, and replace the copy of records.

    To be done last, once all that is wanted from the bucket is in the metadata store. Without a manifest that can be
    read nothing changes: an offloader writes one once the metadata explain all objects.

    Raises:
        As ``check_owner``.
    """
    manifest = await _manifest(store, workers)
    cluster_id = await metadata.cluster_id()
    if manifest is not None and manifest.cluster_id != cluster_id:
        await write_manifest(store, workers, replace(manifest, cluster_id=cluster_id))


async def _manifest(store: ObjectStore, workers: Workers) -> Manifest | None:
    """The manifest; ``None`` if there is none that can be understood."""
    try:
        return await read_manifest(store, workers)
    except (DamagedFile, *OBJECT_ERRORS) as error:
        if isinstance(error, NewerFormat) or not await concerns_one_object(store, error):
            raise
        return None


async def _checked(store: ObjectStore, workers: Workers, receipt: Receipt) -> bytes:
    """The SHA-256 of an object that is whole."""
    sha256, _ = await check_object(store, workers, receipt.key, receipt.object_bytes, receipt.index)
    return sha256


def _fallen_back(catalog: Catalog, members: Iterable[Found], bad: Collection[str]) -> list[Found]:
    """The same ledgers in the youngest objects that are not known to be bad; without those that are in no other."""
    found = []
    for member in members:
        older = catalog.older.get(member.metadata.ledger_id, ())
        found += [each for each in older if each.receipt.key not in bad][:1]
    return found


async def _enter(metadata: MetadataStore, key: str, members: Iterable[Found], sha256: bytes) -> Rebuilt:
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
            known.append(ledger.ledger_id)  # somebody else was first, or it was deleted here
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


def _ledger(found: Found, sha256: bytes) -> LedgerMetadata:
    receipt = replace(found.receipt, object_sha256=sha256)
    return replace(unmarked(found.metadata), archiving=None, archived=receipt, copies_released=True)


async def raise_counter(metadata: MetadataStore, last_id: int) -> None:
    """No id that is in the bucket may be given out again.

    Raises:
        MetadataUnavailable: the counter was not raised.
        MetadataOutcomeUnknown: it may have been; the same call settles it.
    """
    await metadata.raise_id_counter(min(last_id + 1, MAX_ID))
