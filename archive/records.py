"""A copy of the records of streams, beside the objects that hold their entries: so that both come back from a bucket.

    name     string   of the record in the metadata store
    value    binary   what it held when it was copied

One Parquet file at the root of the archive, which the leading offloader replaces as a whole when it tidies up.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import pyarrow as pa

from tallybook.core.errors import DamagedFile
from tallybook.core.limits import MIB
from tallybook.runtime.tasks import Workers

from .objects.port import ObjectStore
from .objects.probe import info_if_there
from .root_file import decode_root_file, encode_root_file

RECORDS_KEY: Final = "_records.parquet"
FORMAT: Final = 1
MAX_COPY_BYTES: Final = 512 * MIB

_KIND: Final = "tallybook.records"
_SCHEMA: Final = pa.schema(
    [pa.field("name", pa.string(), nullable=False), pa.field("value", pa.binary(), nullable=False)]
)


def encode_records(records: Mapping[str, bytes]) -> bytes:
    """The bytes of a copy: the same for the same records."""
    names = sorted(records)
    columns = [pa.array(names, pa.string()), pa.array([records[name] for name in names], pa.binary())]
    table = pa.table(columns, schema=_SCHEMA)
    return encode_root_file(table, _KIND, FORMAT, {}, use_dictionary=False, write_statistics=False)


def decode_records(data: bytes, what: str) -> dict[str, bytes]:
    """The records that these bytes are a copy of, by name.

    Raises:
        DamagedFile: they are none.
        NewerFormat: a newer Tallybook has written it.
    """
    table, _ = decode_root_file(data, _SCHEMA, _KIND, FORMAT, what)
    found = dict(zip(table["name"].to_pylist(), table["value"].to_pylist(), strict=True))
    if None in {*found, *found.values()} or len(found) != table.num_rows:
        raise DamagedFile(f"{what} has empty fields, or a record twice")
    return found


async def read_records(store: ObjectStore, workers: Workers) -> dict[str, bytes]:
    """The records that the bucket has a copy of; none where it has no copy.

    Raises:
        ObjectDamaged, DamagedFile: the copy cannot be understood.
        NewerFormat: a newer Tallybook has written it.
        ArchiveKeyMissing: it is encrypted with a key that is not here.
        ArchiveUnavailable, ArchiveDenied: the store does not give it.
    """
    found = await info_if_there(store, RECORDS_KEY)
    if found is None:
        return {}
    if not 0 < found.size_bytes <= MAX_COPY_BYTES:
        raise DamagedFile(f"{store.url}: {RECORDS_KEY} has {found.size_bytes:,} bytes")
    data = await store.read(RECORDS_KEY, 0, found.size_bytes)
    return await workers.run(decode_records, data, f"{store.url}: {RECORDS_KEY}")
