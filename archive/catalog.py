"""Lists the ledgers of a bucket from the bucket alone: without metadata store and bookies.

The footer of every object points to its index, and the index contains the metadata of its ledgers. So a listing and two
small reads per object are enough. The manifest, if there is one, says which ledgers count; without it, deleted ledgers
are listed while an object still has their rows (docs/reference/formats/archive-object.md).

Archived ledgers never change: if several objects contain one (after a failed attempt, or before compaction has cleaned
up), any intact one will do. The youngest is the one that compaction keeps, but it may be damaged by a failed attempt,
which the index does not show. So the others are listed too. After a loss of metadata, other ledgers may have reused the
ids, and only readable objects tell which ledger they contain. So an unreadable object blocks older objects of the same
ids, which may contain another ledger.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from tallybook.core.errors import (
    ArchiveDenied,
    ArchiveUnavailable,
    DamagedFile,
    InvalidArgument,
    NewerFormat,
    ObjectMissing,
    TallybookError,
)
from tallybook.core.ids import MAX_ID, same_ledger
from tallybook.core.limits import KIB
from tallybook.metadata.codec import decode_ledger
from tallybook.metadata.ledger.archived import SHA256_BYTES, IndexPart, Receipt
from tallybook.metadata.ledger.model import LedgerMetadata
from tallybook.metadata.records.json_errors import DECODE_ERRORS
from tallybook.runtime.tasks import Workers, run_together

from .format.index_codec import IndexRoot, read_directory
from .format.schema import DIRECTORY_KEY, FORMAT, FORMAT_KEY, ledger_ids_in, may_hold, object_id_of
from .manifest import MANIFEST_KEY, NO_LEDGER, Manifest, read_manifest
from .objects.port import ObjectInfo, ObjectStore
from .objects.probe import OBJECT_ERRORS, ObjectPass, concerns_one_object, spread
from .stream_records import RECORDS_KEY

CONCURRENT_OBJECTS: Final = 8
_TAIL_BYTES: Final = 64 * KIB
_END_BYTES: Final = 8
"""Length of the footer, and the magic."""
_LARGEST_FOOTER_BYTES: Final = 64 * 1024 * KIB

_NEVER_MS: Final = MAX_ID
"""Later than any write."""

NOT_HASHED: Final = bytes(SHA256_BYTES)
"""Stands for an object's SHA-256 if the whole object was not read."""


@dataclass(frozen=True, slots=True)
class CatalogEntry:
    """A ledger in an object."""

    metadata: LedgerMetadata
    """At the time of its archiving."""
    receipt: Receipt
    """Its SHA-256 is ``NOT_HASHED``."""


@dataclass(frozen=True, slots=True)
class BucketCatalog:
    """All ledgers of a bucket, ascending by id, and unreadable objects, by key."""

    ledgers: Mapping[int, CatalogEntry]
    """Each in its youngest object."""
    older: Mapping[int, tuple[CatalogEntry, ...]]
    """The same ledgers in older objects, youngest first."""
    damaged: Mapping[str, str]
    """With the reason."""
    last_id: int = -1
    """The highest ledger id in any object, object name or the manifest, readable or not; -1: none."""
    manifest: Manifest | None = None
    """The manifest that lists the valid objects; ``None`` if there is none, or it is unreadable."""
    not_given: Mapping[str, type[TallybookError]] = field(default_factory=dict)
    """Keys of ``damaged`` that may be intact, with the error's type: the store failed, or was not asked."""

    @property
    def cluster_id(self) -> str:
        """Id of the cluster that owns the archive; empty if the bucket does not say."""
        return "" if self.manifest is None else self.manifest.cluster_id

    def lost_with(self, key: str) -> frozenset[int] | None:
        """The ledgers that count in a damaged object and were not found in it; ``None`` if unknown.

        Some may have been found in another object. Only the damaged one can tell whether it is the same ledger.
        """
        if self.manifest is None:
            return None
        counting = {ledger_id for ledger_id, home in self.manifest.ledgers.items() if home == key}
        there = {each for each in counting & self.ledgers.keys() if self.ledgers[each].receipt.key == key}
        return frozenset(counting - there) if counting else None

    def unreadable_object_of(self, ledger_id: int) -> str:
        """The key of an unreadable object that contains, or may contain, a ledger missing from ``ledgers``.

        Empty if there is none: no object has the ledger, or it was deleted.
        """
        if self.manifest is not None and ledger_id in self.manifest.ledgers:
            return self.manifest.ledgers[ledger_id]
        return next((key for key in self.unaccounted if may_hold(key, ledger_id)), "")

    @property
    def unaccounted(self) -> tuple[str, ...]:
        """Unreadable objects that the manifest does not list."""
        known = frozenset[str]() if self.manifest is None else self.manifest.objects
        return tuple(key for key in self.damaged if key not in known)


async def read_catalog(store: ObjectStore, workers: Workers) -> BucketCatalog:
    """Read the index of every archive object below the store's prefix; skip what the manifest excludes.

    Raises:
        ArchiveDenied: there is no archive: neither a manifest nor an object. Or the store refuses access.
        ArchiveUnavailable: the store does not answer.
        NewerFormat: a newer Tallybook wrote the manifest, or an object that counts.
    """
    # Read the manifest first, so that an object it names and the listing lacks is lost, not just newer than the
    # listing.
    manifest, damage = None, dict[str, str]()
    try:
        manifest = await read_manifest(store, workers)
    except (DamagedFile, *OBJECT_ERRORS) as error:
        if isinstance(error, NewerFormat) or not await concerns_one_object(store, error):
            raise
        damage[MANIFEST_KEY] = f"{error.message}: every ledger of every object is treated as valid"
    listed = [found async for page in store.list() for found in page]
    objects = [found for found in listed if object_id_of(found.key) is not None]
    if manifest is None and not damage and not any(_is_of_an_archive(found.key) for found in listed):
        raise _no_archive(store.url)
    catalog, written = await catalog_of(store, objects), {each.key: each.modified_at_ms for each in objects}
    if manifest is None:
        catalog = replace(catalog, damaged={**catalog.damaged, **damage})
    else:
        catalog = _apply_manifest(catalog, manifest, written)
    return _drop_other_ledgers(_drop_shadowed(catalog, written))


async def require_archive(store: ObjectStore) -> None:
    """Check that there is an archive: a manifest or an object.

    An empty folder, as of a disk that is not mounted, would look like an archive whose ledgers are all lost.

    Raises:
        ArchiveDenied: there is none.
        ArchiveUnavailable: the store does not answer.
    """
    async for page in store.list():
        if any(_is_of_an_archive(found.key) for found in page):
            return
    raise _no_archive(store.url)


def _is_of_an_archive(key: str) -> bool:
    return key in {MANIFEST_KEY, RECORDS_KEY} or object_id_of(key) is not None


def _no_archive(url: str) -> ArchiveDenied:
    return ArchiveDenied(
        f"there is no archive at {url}: it has neither a manifest nor an object; check the URL, and whether "
        "what it names is mounted"
    )


def _apply_manifest(catalog: BucketCatalog, manifest: Manifest, written: Mapping[str, int]) -> BucketCatalog:
    """The ledgers that the manifest counts, and those of objects that it does not know.

    Args:
        written: time of each object in the listing.
    """
    known = manifest.objects
    ledgers: dict[int, CatalogEntry] = {}
    older: dict[int, tuple[CatalogEntry, ...]] = {}
    for ledger_id, youngest in catalog.ledgers.items():
        found = (youngest, *catalog.older.get(ledger_id, ()))
        home = manifest.ledgers.get(ledger_id)
        if home is None:
            found = tuple(each for each in found if each.receipt.key not in known)
        elif any(each.receipt.key == home for each in found):
            # It was read back before it was named. Others with the same ledger follow as replacements if it is damaged.
            found = tuple(sorted(found, key=lambda each: each.receipt.key != home))
        else:
            # Objects that no longer count have the same ledger, and so have those that it has moved to since. An older
            # object that the manifest does not know has another ledger of the id.
            found = tuple(
                each for each in found if each.receipt.key in known or _is_after(each, written.get(home, _NEVER_MS))
            )
        if found:
            ledgers[ledger_id] = found[0]
        if len(found) > 1:
            older[ledger_id] = found[1:]
    damaged = {key: why for key, why in catalog.damaged.items() if key not in manifest.dropped}
    for ledger_id, key in manifest.ledgers.items():
        if ledger_id not in ledgers and key not in damaged:
            damaged[key] = f"{key}: the manifest names it for ledger {ledger_id}, but it does not contain the ledger"
    last_id = max(catalog.last_id, _last_named(known), *manifest.ledgers, NO_LEDGER)
    return BucketCatalog(ledgers, older, damaged, last_id, manifest, catalog.not_given)


def _drop_shadowed(catalog: BucketCatalog, written: Mapping[str, int]) -> BucketCatalog:
    """Drop ledgers in objects older than an unreadable one whose name covers the same ledger.

    Ledgers that the manifest assigns to an object are kept.
    """
    counted = {} if catalog.manifest is None else catalog.manifest.ledgers
    ledgers, older, damaged = dict(catalog.ledgers), dict(catalog.older), dict(catalog.damaged)
    for key in catalog.unaccounted:
        for ledger_id in ledger_ids_in(key):
            if ledger_id not in ledgers or ledger_id in counted:
                continue
            found = (ledgers.pop(ledger_id), *older.pop(ledger_id, ()))
            left = [each for each in found if _is_after(each, written.get(key, _NEVER_MS))]
            if left:
                ledgers[ledger_id], older[ledger_id] = left[0], tuple(left[1:])
            else:
                damaged[key] += (
                    f"; ledger {ledger_id} in {found[0].receipt.key}, which is older, may be another one of that id, "
                    "so it is left out: remove the unreadable object if it is not needed"
                )
    return replace(catalog, ledgers=dict(sorted(ledgers.items())), older=older, damaged=damaged)


def _is_after(found: CatalogEntry, written_ms: int) -> bool:
    """Whether an object was begun after another one was written.

    Compares the object's own time: the listing shows the time of a copy if the archive was moved.
    """
    return found.receipt.archived_at_ms >= written_ms


def _last_named(keys: Iterable[str]) -> int:
    """The highest ledger id in the names of objects; -1: none."""
    return max((each for key in keys for each in ledger_ids_in(key) if each <= MAX_ID), default=NO_LEDGER)


def _drop_other_ledgers(catalog: BucketCatalog) -> BucketCatalog:
    """Drop older objects that contain another ledger of the same id, as after a loss of metadata."""
    older = {}
    for ledger_id, others in catalog.older.items():
        identity = catalog.ledgers[ledger_id].metadata.identity
        if same := tuple(each for each in others if same_ledger(each.metadata.identity, identity)):
            older[ledger_id] = same
    return replace(catalog, older=older)


async def catalog_of(store: ObjectStore, objects: Iterable[ObjectInfo]) -> BucketCatalog:
    """Read the indexes of objects, ignoring deleted ones; if many time out, gives up after the first few.

    Raises:
        ArchiveUnavailable, ArchiveDenied: the store does not answer.
        NewerFormat: a newer Tallybook wrote one, whose ledgers must not be ignored.
    """
    turns, asked = asyncio.Semaphore(CONCURRENT_OBJECTS), ObjectPass(store)
    damaged, not_given = dict[str, str](), dict[str, type[TallybookError]]()
    found_in: dict[str, list[CatalogEntry]] = {}
    ledgers: dict[int, CatalogEntry] = {}
    older: dict[int, tuple[CatalogEntry, ...]] = {}

    async def read_ledgers(found: ObjectInfo) -> None:
        async with turns:
            try:
                found_in[found.key] = await asked.ask(partial(ledgers_in, store, found))
            except ObjectMissing:
                return  # deleted since the listing
            except (DamagedFile, *OBJECT_ERRORS) as error:
                if isinstance(error, NewerFormat) or not await asked.concerns_one_object(error):
                    raise
                damaged[found.key] = error.message
                if isinstance(error, ArchiveDenied | ArchiveUnavailable):
                    not_given[found.key] = type(error)

    by_age = sorted(objects, key=lambda each: (each.modified_at_ms, each.key))
    await run_together(*map(read_ledgers, spread(by_age)))
    for found in by_age:
        for each in found_in.get(found.key, ()):
            ledger_id = each.metadata.ledger_id
            if ledger_id in ledgers:
                older[ledger_id] = (ledgers[ledger_id], *older.get(ledger_id, ()))
            ledgers[ledger_id] = each
    last_id = max(_last_named(each.key for each in by_age), *ledgers, NO_LEDGER)
    return BucketCatalog(dict(sorted(ledgers.items())), older, damaged, last_id, not_given=not_given)


async def ledgers_in(store: ObjectStore, found: ObjectInfo) -> list[CatalogEntry]:
    """The ledgers in an object.

    Raises:
        ObjectMissing: it does not exist (any more).
        ObjectDamaged, DamagedFile: it is unreadable.
        NewerFormat: a newer Tallybook wrote it.
        ArchiveKeyMissing: it is encrypted with a missing key.
        ArchiveUnavailable, ArchiveDenied: the store does not return it.
    """
    part = await _directory_part(store, found)
    stored = await store.read(found.key, part.offset, part.stored_bytes)
    directory = read_directory(stored, part, found.key, found.size_bytes)
    if directory.object_id != object_id_of(found.key):
        raise DamagedFile(f"{found.key} contains object {directory.object_id}")
    try:
        return [
            _found(decode_ledger(ledger.metadata, ledger.ledger_id, found.key), receipt)
            for ledger, receipt in zip(directory.ledgers, _receipts(directory, part, found), strict=True)
        ]
    except InvalidArgument as error:
        raise DamagedFile(f"{found.key}: it contradicts the metadata inside it: {error.message}") from error


def _found(metadata: LedgerMetadata, receipt: Receipt) -> CatalogEntry:
    """Check that metadata and receipt may belong to one ledger.

    Raises:
        InvalidArgument: they are not of one closed ledger.
    """
    replace(metadata, archiving=None, archived=receipt)
    return CatalogEntry(metadata, receipt)


async def _directory_part(store: ObjectStore, found: ObjectInfo) -> IndexPart:
    """Position of the directory, from the footer."""
    size = found.size_bytes
    tail = await store.read(found.key, max(0, size - _TAIL_BYTES), min(size, _TAIL_BYTES)) if size else b""
    if len(tail) <= _END_BYTES or tail[-4:] != b"PAR1":
        raise DamagedFile(f"{found.key}: it does not end like a Parquet file")
    footer_bytes = int.from_bytes(tail[-_END_BYTES:-4], "little") + _END_BYTES
    if footer_bytes > min(size, _LARGEST_FOOTER_BYTES):
        raise DamagedFile(f"{found.key}: its footer of {footer_bytes} bytes does not fit into it")
    if footer_bytes > len(tail):
        tail = await store.read(found.key, size - footer_bytes, footer_bytes)
    try:
        values = pq.read_metadata(pa.BufferReader(tail[-footer_bytes:])).metadata or {}
        where = json.loads(values[DIRECTORY_KEY.encode()])
        version = values[FORMAT_KEY.encode()].decode()
        part = IndexPart(where["offset"], where["bytes"], where["raw_bytes"], where["crc32c"])
    except (pa.ArrowException, OSError, *DECODE_ERRORS) as error:
        raise DamagedFile(f"{found.key}: its footer cannot be decoded: {error}") from error
    if version.isdecimal() and int(version) > FORMAT:
        raise NewerFormat.of(f"{found.key}: the object", version, FORMAT)
    if version != str(FORMAT):
        raise DamagedFile(f"{found.key}: it is of format {version}; this Tallybook knows {FORMAT}")
    numbers = (part.offset, part.stored_bytes, part.raw_bytes, part.crc)
    if any(type(number) is not int for number in numbers) or min(numbers) < 0:
        raise DamagedFile(f"{found.key}: the location of its index in the footer is invalid: {where}")
    if not part.stored_bytes or not part.raw_bytes or part.end > size:
        raise DamagedFile(f"{found.key}: its index is outside of its {size} bytes")
    return part


def _receipts(directory: IndexRoot, part: IndexPart, found: ObjectInfo) -> list[Receipt]:
    return [
        Receipt(
            object_id=directory.object_id,
            key=found.key,
            object_bytes=found.size_bytes,
            object_sha256=NOT_HASHED,
            index=part,
            entries=ledger.entries,
            payload_bytes=ledger.payload_bytes,
            rolling_crc=ledger.rolling_crc,
            archived_at_ms=directory.created_at_ms,
        )
        for ledger in directory.ledgers
    ]
