"""Parquet files at the root of a bucket, replaced as a whole: their footer has the format and a CRC of all values.

Parquet's own checksums cover pages, but not page headers and the footer.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
from crc32c import crc32c

from tallybook.core.errors import DamagedFile, NewerFormat

_CRC_KEY: Final = b"tallybook.crc32c"


def encode_root_file(table: pa.Table, kind: str, version: int, values: Mapping[str, str], **options: Any) -> bytes:
    """Encode a file; equal content gives equal bytes.

    Args:
        kind: footer key of the format version.
        values: other footer entries.
        options: of ``pyarrow.parquet.write_table``.
    """
    footer = {kind: str(version), **values}
    footer[_CRC_KEY.decode()] = str(_checksum(table, footer))
    out = io.BytesIO()
    pq.write_table(table.replace_schema_metadata(footer), out, compression="zstd", **options)
    return out.getvalue()


def decode_root_file(
    data: bytes, schema: pa.Schema, kind: str, version: int, what: str
) -> tuple[pa.Table, dict[str, str]]:
    """The table of a file, and the entries of its footer.

    Args:
        version: the newest known version.
        what: name of the file in messages.

    Raises:
        DamagedFile: the bytes are not such a file.
        NewerFormat: a newer Tallybook wrote it.
    """
    try:
        table = pq.read_table(pa.BufferReader(data))
        footer = {key.decode(): value.decode() for key, value in (table.schema.metadata or {}).items()}
        found, crc = footer[kind], footer.pop(_CRC_KEY.decode(), None)
        if found.isdecimal() and int(found) > version:
            raise NewerFormat.of(what, found, version)
        table = table.select(schema.names).cast(schema)
        expected = str(_checksum(table, footer))
    except (pa.ArrowException, OSError, KeyError, UnicodeDecodeError) as error:
        raise DamagedFile(f"{what} cannot be decoded: {error}") from error
    if found != str(version):
        raise DamagedFile(f"{what} is of format {found}; this Tallybook knows {version}")
    if crc != expected:
        raise DamagedFile(f"{what} is damaged: it has checksum {crc}, but its content {expected}")
    return table, footer


def _checksum(table: pa.Table, footer: Mapping[str, str]) -> int:
    crc = crc32c("\n".join(f"{key}={footer[key]}" for key in sorted(footer)).encode())
    for name, column in zip(table.column_names, table.columns, strict=True):
        plain = column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column
        crc = crc32c("\n".join([name, *map(str, plain.to_pylist())]).encode(), crc)
    return int(crc)
