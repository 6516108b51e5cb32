"""Parquet schema and names of archive objects, for all readers of the tables.

One row is one entry. All columns are required, so a page of payloads consists of lengths and bytes only. The format is
plain Parquet and can be read without Tallybook.
"""

from __future__ import annotations

import re
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from tallybook.core.errors import InvalidArgument

FORMAT: Final = 1

SCHEMA: Final = pa.schema(
    [
        pa.field("ledger_id", pa.int64(), nullable=False),
        pa.field("entry_id", pa.int64(), nullable=False),
        pa.field("written_at", pa.timestamp("us", "UTC"), nullable=False),
        # Of the payload, seeded with the ids: see core/batch.py.
        pa.field("crc32c", pa.uint32(), nullable=False),
        pa.field("payload", pa.binary(), nullable=False),
    ]
)

PAYLOAD_COLUMN: Final = SCHEMA.get_field_index("payload")

SORTING_COLUMNS: Final = pq.SortingColumn.from_ordering(SCHEMA, [("ledger_id", "ascending"), ("entry_id", "ascending")])
"""Order of the rows, declared by every row group. Objects of earlier versions declare none."""

FORMAT_KEY: Final = "tallybook.format"
OBJECT_KEY: Final = "tallybook.object"
DIRECTORY_KEY: Final = "tallybook.directory"
"""Footer key for the position of the index directory."""

SUFFIX: Final = ".parquet"
LEDGERS_FOLDER: Final = "ledgers/"
"""Folder of objects with one ledger."""
SETS_FOLDER: Final = "sets/"
"""Folder of objects with several ledgers."""


def object_key(object_id: str, ledger_ids: list[int]) -> str:
    """Name of an object, below the archive's prefix. It contains a new uuid, so no name is ever reused.

    Raises:
        InvalidArgument: there is no ledger.
    """
    if not ledger_ids:
        raise InvalidArgument("an archive object holds at least one ledger")
    first = ledger_ids[0]
    if len(ledger_ids) == 1:
        return f"{LEDGERS_FOLDER}{first:019d}-{object_id}{SUFFIX}"
    return f"{SETS_FOLDER}{first:019d}-{ledger_ids[-1]:019d}-{object_id}{SUFFIX}"


_KEY: Final = re.compile(
    r"(?:ledgers/(?P<only>[0-9]{19})|sets/(?P<first>[0-9]{19})-(?P<last>[0-9]{19}))-(?P<id>[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})\.parquet"
)


def object_id_of(key: str) -> str | None:
    """Id of the object with this name; ``None`` if it is not the name of an archive object."""
    match = _KEY.fullmatch(key)
    return match and match["id"]


def ledger_ids_in(key: str) -> tuple[int, ...]:
    """Ledger ids in the name of an object, the first and the last for a set; empty for other names."""
    match = _KEY.fullmatch(key)
    return tuple(int(each) for each in match.group("only", "first", "last") if each) if match else ()


def may_hold(key: str, ledger_id: int) -> bool:
    """Whether an object with this name may contain a ledger; the name of a set has only the first and the last id."""
    named = ledger_ids_in(key)
    return bool(named) and named[0] <= ledger_id <= named[-1]
