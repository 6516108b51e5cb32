"""The manifest of a bucket: the valid object of each archived ledger, and the objects that are no longer valid.

Objects are removed with a delay, and a shared object keeps the rows of ledgers that were deleted or moved. So the
objects alone show some ledgers twice, and some deleted ones. The manifest is one Parquet file at the root of the
archive, which the leading offloader replaces as a whole (docs/reference/formats/archive-object.md):

    object        string       key of an object
    ledger_id     int64        a ledger for which it is the valid object; -1: it is for none
    dropped_at    timestamp    since when it is for none; null otherwise

An object that it does not list is younger, and valid for all its ledgers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from tallybook.core.errors import DamagedFile
from tallybook.core.limits import MIB
from tallybook.runtime.tasks import Workers

from .format.root_file import decode_root_file, encode_root_file
from .objects.port import ObjectStore
from .root_files import read_root_file

MANIFEST_KEY: Final = "_manifest.parquet"
"""Spark and pyarrow ignore files whose names begin with an underscore."""
FORMAT: Final = 1
NO_LEDGER: Final = -1
MAX_MANIFEST_BYTES: Final = 512 * MIB
"""1,000,000 ledgers in 100,000 objects take 2.5 MB."""

_KIND: Final = "tallybook.manifest"
_CLUSTER_KEY: Final = "tallybook.cluster"
_SCHEMA: Final = pa.schema(
    [
        pa.field("object", pa.string(), nullable=False),
        pa.field("ledger_id", pa.int64(), nullable=False),
        pa.field("dropped_at", pa.timestamp("ms", "UTC")),
    ]
)


@dataclass(frozen=True, slots=True)
class Manifest:
    """Content of a manifest."""

    cluster_id: str
    """Id of the cluster that owns the archive."""
    ledgers: Mapping[int, str]
    """Key of the object in which each ledger counts."""
    dropped: Mapping[str, int]
    """Objects without counting ledgers, and since when that is known, in milliseconds since the epoch."""

    @property
    def objects(self) -> frozenset[str]:
        """The listed objects. A ledger of such an object that is not listed with it was deleted, or moved."""
        return frozenset((*self.ledgers.values(), *self.dropped))


def encode_manifest(manifest: Manifest) -> bytes:
    """Encode a manifest; equal content gives equal bytes."""
    rows: list[tuple[str, int, int | None]] = [
        (key, ledger_id, None) for key, ledger_id in sorted((key, each) for each, key in manifest.ledgers.items())
    ]
    rows += sorted((key, NO_LEDGER, since) for key, since in manifest.dropped.items())
    columns = list(zip(*rows, strict=True)) if rows else [(), (), ()]
    table = pa.table(
        [pa.array(column, field.type) for column, field in zip(columns, _SCHEMA, strict=True)], schema=_SCHEMA
    )
    return encode_root_file(
        table,
        _KIND,
        FORMAT,
        {_CLUSTER_KEY: manifest.cluster_id},
        use_dictionary=["object"],
        column_encoding={"ledger_id": "DELTA_BINARY_PACKED"},
    )


def decode_manifest(data: bytes, what: str) -> Manifest:
    """Decode a manifest.

    Args:
        what: its name in messages.

    Raises:
        DamagedFile: it is invalid.
        NewerFormat: a newer Tallybook wrote it.
    """
    table, footer = decode_root_file(data, _SCHEMA, _KIND, FORMAT, what)
    counts = pc.not_equal(table["ledger_id"], NO_LEDGER)
    living, dropped = table.filter(counts), table.filter(pc.invert(counts))
    ledgers = dict(zip(living["ledger_id"].to_pylist(), living["object"].to_pylist(), strict=True))
    since = dropped["dropped_at"].cast(pa.int64()).to_pylist()
    gone = dict(zip(dropped["object"].to_pylist(), since, strict=True))
    if _CLUSTER_KEY not in footer or None in {*gone, *gone.values(), *ledgers, *ledgers.values()}:
        raise DamagedFile(f"{what} has empty fields")
    if len(ledgers) != living.num_rows:
        raise DamagedFile(f"{what} names a ledger twice")
    return Manifest(footer[_CLUSTER_KEY], ledgers, gone)


async def read_manifest(store: ObjectStore, workers: Workers) -> Manifest | None:
    """Read the manifest of a bucket; ``None`` if there is none.

    Raises:
        ObjectDamaged, DamagedFile: it is unreadable.
        NewerFormat: a newer Tallybook wrote it.
        ArchiveKeyMissing: it is encrypted with a missing key.
        ArchiveUnavailable, ArchiveDenied: the store does not return it.
    """
    return await read_root_file(store, workers, MANIFEST_KEY, MAX_MANIFEST_BYTES, decode_manifest)


async def write_manifest(store: ObjectStore, workers: Workers, manifest: Manifest) -> None:
    """Replace the manifest of a bucket.

    Raises:
        ArchiveUnavailable, ArchiveDenied: it may not have been replaced.
    """
    await store.put(MANIFEST_KEY, await workers.run(encode_manifest, manifest))
