"""The manifest of a bucket: which object each ledger counts in, and which objects count no more.

Objects are removed late, and a shared object keeps the rows of ledgers that were deleted or have moved elsewhere. So
the objects alone show some ledgers twice, and some that were deleted. The manifest is one Parquet file at the root
of the archive, which the leading offloader replaces as a whole (docs/formats/archive-object.md):

    object        string       key of an object
    ledger_id     int64        a ledger that counts in it; -1: no ledger does
    dropped_at    timestamp    since when no ledger does; null otherwise

An object that it does not name is younger than it, and counts as it does without a manifest.
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

from .objects.port import ObjectStore
from .root_file import decode_root_file, encode_root_file, read_root_file

MANIFEST_KEY: Final = "_manifest.parquet"
"""Spark and pyarrow take no file for data whose name begins so."""
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
    """What counts in a bucket."""

    cluster_id: str
    """Of the cluster whose archive it is."""
    ledgers: Mapping[int, str]
    """The key of the object that each ledger counts in."""
    dropped: Mapping[str, int]
    """Objects that no ledger is in any more, and since when that is known, in milliseconds since the epoch."""

    @property
    def objects(self) -> frozenset[str]:
        """The keys that it names. Of these it says which ledgers count: one without a line was deleted, or moved."""
        return frozenset((*self.ledgers.values(), *self.dropped))


def encode_manifest(manifest: Manifest) -> bytes:
    """The bytes of a manifest: the same for the same content."""
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
    """The manifest that these bytes are.

    Args:
        what: names it in messages.

    Raises:
        DamagedFile: they are none.
        NewerFormat: a newer Tallybook has written it.
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
    """The manifest of a bucket; ``None`` if it has none.

    Raises:
        ObjectDamaged, DamagedFile: it cannot be understood.
        NewerFormat: a newer Tallybook has written it.
        ArchiveKeyMissing: it is encrypted with a key that is not here.
        ArchiveUnavailable, ArchiveDenied: the store does not give it.
    """
    return await read_root_file(store, workers, MANIFEST_KEY, MAX_MANIFEST_BYTES, decode_manifest)


async def write_manifest(store: ObjectStore, workers: Workers, manifest: Manifest) -> None:
    """Replace the manifest of a bucket.

    Raises:
        ArchiveUnavailable, ArchiveDenied: it may not have been replaced.
    """
    await store.put(MANIFEST_KEY, await workers.run(encode_manifest, manifest))
