"""A copy of the records of streams, beside the objects that hold their entries: so that both come back from a bucket.

    name     string   of the record in the metadata store
    value    binary   what it held when it was copied

One Parquet file at the root of the archive, which the leading offloader replaces as a whole when it tidies up. A record
that has gone from the metadata stays in the copy for a while, since it may have been lost there: the footer says which
ones have gone, and when. A Tallybook that does not know that takes them for records as any others.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa

from tallybook.core.errors import DamagedFile
from tallybook.core.limits import MIB
from tallybook.metadata.record_json import NOT_UNDERSTOOD
from tallybook.runtime.tasks import Workers

from .objects.port import ObjectStore
from .root_file import decode_root_file, encode_root_file, read_root_file

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
    """What a copy holds.

    Attributes:
        records: what each record held when it was copied last.
        gone_at_ms: which of these were not in the metadata any more, and when that was seen first.
    """

    records: Mapping[str, bytes] = field(default_factory=dict)
    gone_at_ms: Mapping[str, int] = field(default_factory=dict)


def encode_records(copy: RecordsCopy) -> bytes:
    """The bytes of a copy: the same for the same records."""
    names = sorted(copy.records)
    columns = [pa.array(names, pa.string()), pa.array([copy.records[name] for name in names], pa.binary())]
    table = pa.table(columns, schema=_SCHEMA)
    gone = {_GONE: json.dumps(copy.gone_at_ms, sort_keys=True)} if copy.gone_at_ms else {}
    return encode_root_file(table, _KIND, FORMAT, gone, use_dictionary=False, write_statistics=False)


def decode_records(data: bytes, what: str) -> RecordsCopy:
    """The records that these bytes are a copy of.

    Raises:
        DamagedFile: they are none.
        NewerFormat: a newer Tallybook has written it.
    """
    table, footer = decode_root_file(data, _SCHEMA, _KIND, FORMAT, what)
    found = dict(zip(table["name"].to_pylist(), table["value"].to_pylist(), strict=True))
    if None in {*found, *found.values()} or len(found) != table.num_rows:
        raise DamagedFile(f"{what} has empty fields, or a record twice")
    return RecordsCopy(found, _decode_gone(footer.get(_GONE, "{}"), found, what))


def _decode_gone(text: str, records: Mapping[str, bytes], what: str) -> dict[str, int]:
    try:
        gone = json.loads(text)
    except NOT_UNDERSTOOD as error:
        raise DamagedFile(f"{what} does not say which of its records have gone: {error}") from error
    if (
        type(gone) is not dict
        or not gone.keys() <= records.keys()
        or any(type(each) is not int for each in gone.values())
    ):
        raise DamagedFile(f"{what} does not say which of its records have gone")
    return gone


async def read_records(store: ObjectStore, workers: Workers) -> RecordsCopy:
    """The records that the bucket has a copy of; none where it has no copy.

    Raises:
        ObjectDamaged, DamagedFile: the copy cannot be understood.
        NewerFormat: a newer Tallybook has written it.
        ArchiveKeyMissing: it is encrypted with a key that is not here.
        ArchiveUnavailable, ArchiveDenied: the store does not give it.
    """
    found = await read_root_file(store, workers, RECORDS_KEY, MAX_COPY_BYTES, decode_records)
    return RecordsCopy() if found is None else found
