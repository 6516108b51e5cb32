"""Copy of the stream records in the bucket, so that streams can be restored together with their entries.

    name     string   of the record in the metadata store
    value    binary   its value when it was copied

One Parquet file at the root of the archive, which the leading offloader replaces as a whole during clean-up. A record
deleted from the metadata stays in the copy for a while, since it may have been lost there: the footer lists deleted
records with the time. A Tallybook version without this knowledge treats them as existing records.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa

from tallybook.core.errors import DamagedFile
from tallybook.core.limits import MIB
from tallybook.metadata.records.json_errors import DECODE_ERRORS
from tallybook.runtime.tasks import Workers

from .format.root_file import decode_root_file, encode_root_file
from .objects.port import ObjectStore
from .root_files import read_root_file

RECORDS_KEY: Final = "_records.parquet"
FORMAT: Final = 1
MAX_COPY_BYTES: Final = 512 * MIB

_KIND: Final = "tallybook.records"
_GONE: Final = "tallybook.records_gone"
_SCHEMA: Final = pa.schema(
    [pa.field("name", pa.string(), nullable=False), pa.field("value", pa.binary(), nullable=False)]
)


@dataclass(frozen=True, slots=True)
class RecordsCopy:
    """Content of a copy.

    Attributes:
        records: value of each record when it was last copied.
        gone_at_ms: those that were missing in the metadata, and when that was first seen.
    """

    records: Mapping[str, bytes] = field(default_factory=dict)
    gone_at_ms: Mapping[str, int] = field(default_factory=dict)


def encode_records(copy: RecordsCopy) -> bytes:
    """Encode a copy; equal records give equal bytes."""
    names = sorted(copy.records)
    columns = [pa.array(names, pa.string()), pa.array([copy.records[name] for name in names], pa.binary())]
    table = pa.table(columns, schema=_SCHEMA)
    gone = {_GONE: json.dumps(copy.gone_at_ms, sort_keys=True)} if copy.gone_at_ms else {}
    return encode_root_file(table, _KIND, FORMAT, gone, use_dictionary=False, write_statistics=False)


def decode_records(data: bytes, what: str) -> RecordsCopy:
    """Decode a copy.

    Raises:
        DamagedFile: it is invalid.
        NewerFormat: a newer Tallybook wrote it.
    """
    table, footer = decode_root_file(data, _SCHEMA, _KIND, FORMAT, what)
    found = dict(zip(table["name"].to_pylist(), table["value"].to_pylist(), strict=True))
    if None in {*found, *found.values()} or len(found) != table.num_rows:
        raise DamagedFile(f"{what} has empty fields, or a record twice")
    return RecordsCopy(found, _decode_gone(footer.get(_GONE, "{}"), found, what))


def _decode_gone(text: str, records: Mapping[str, bytes], what: str) -> dict[str, int]:
    try:
        gone = json.loads(text)
    except DECODE_ERRORS as error:
        raise DamagedFile(f"{what} does not say which of its records were deleted: {error}") from error
    if (
        type(gone) is not dict
        or not gone.keys() <= records.keys()
        or any(type(each) is not int for each in gone.values())
    ):
        raise DamagedFile(f"{what} does not say which of its records were deleted")
    return gone


async def read_records(store: ObjectStore, workers: Workers) -> RecordsCopy:
    """Read the copy in the bucket; empty if there is none.

    Raises:
        ObjectDamaged, DamagedFile: the copy is unreadable.
        NewerFormat: a newer Tallybook wrote it.
        ArchiveKeyMissing: it is encrypted with a missing key.
        ArchiveUnavailable, ArchiveDenied: the store does not return it.
    """
    found = await read_root_file(store, workers, RECORDS_KEY, MAX_COPY_BYTES, decode_records)
    return RecordsCopy() if found is None else found
