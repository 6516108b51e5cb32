"""Metadata tables: option ``table`` of ``format("tallybook")``.

ledgers     one row per ledger
fragments   the ensembles of each ledger
objects     archive objects with existing ledgers
receipts    what was verified when a ledger was archived
bookies     registered bookies
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Final

import pyarrow as pa

from tallybook.metadata.ledger.model import LedgerMetadata
from tallybook.metadata.store import BookieInfo

from ..options import ReadOptions

_TIME: Final = pa.timestamp("us", "UTC")
_TYPES: Final = {
    "BIGINT": pa.int64(), "INT": pa.int32(), "STRING": pa.string(), "BOOLEAN": pa.bool_(), "BINARY": pa.binary(),
    "TIMESTAMP_LTZ": _TIME, "ARRAY<STRING>": pa.list_(pa.string()),
    "MAP<STRING, BINARY>": pa.map_(pa.string(), pa.binary()),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class TableInput:
    """The metadata that the tables show."""

    ledgers: tuple[LedgerMetadata, ...]
    bookies: Mapping[str, BookieInfo]


@dataclass(frozen=True, slots=True)
class MetadataTable:
    """One metadata table.

    Args:
        columns: names and Spark types.
        rows: makes the rows.
    """

    columns: tuple[tuple[str, str], ...]
    rows: Callable[[TableInput], Iterable[tuple[Any, ...]]]

    @property
    def ddl(self) -> str:
        """The columns as Spark DDL."""
        return ", ".join(f"{name} {kind}" for name, kind in self.columns)

    def table(self, known: TableInput) -> pa.Table:
        """The rows as an Arrow table."""
        rows = list(self.rows(known))
        columns = zip(*rows, strict=True) if rows else [()] * len(self.columns)
        return pa.Table.from_arrays(
            [pa.array(list(values), _TYPES[kind]) for values, (_, kind) in zip(columns, self.columns, strict=True)],
            schema=pa.schema([pa.field(name, _TYPES[kind]) for name, kind in self.columns]),
        )


async def read_table(options: ReadOptions, cluster_id: str) -> pa.Table:
    """Read a metadata table for the selected ledgers.

    Args:
        options: the table and the ledgers.
        cluster_id: cluster that the query was planned on; empty: a bucket without a manifest.

    Raises:
        MetadataUnavailable, ArchiveUnavailable: the store does not respond.
    """
    # Not needed by steps that ask only for the columns.
    from ..locations import open_location, read_metadata  # noqa: PLC0415

    async with open_location(options.location, cluster_id=cluster_id) as location:
        if options.table == "bookies":
            return TABLES["bookies"].table(TableInput((), await location.bookies()))
        wanted = [
            ledger_id
            for ledger_id in await location.ledger_ids()
            if options.ledgers is None or ledger_id in options.ledgers
        ]
        found = await read_metadata(location, wanted)
        return TABLES[options.table].table(TableInput(tuple(each for each in found.values() if each), {}))


def _ledgers(known: TableInput) -> Iterable[tuple[Any, ...]]:
    for each in known.ledgers:
        yield (
            each.ledger_id, each.state.value, each.last_entry_id + 1 if each.closed else None,
            each.length if each.closed else None, each.created_at_ms * 1000, each.quorum.ensemble,
            each.quorum.write_quorum, each.quorum.ack_quorum, each.digest.value, bool(each.key_verifier),
            len(each.fragments), each.archived is not None, each.copies_released, list(each.custom.items()),
        )  # fmt: skip


def _fragments(known: TableInput) -> Iterable[tuple[Any, ...]]:
    for each in known.ledgers:
        for fragment in each.fragments:
            last = each.fragment_end(fragment)
            ended = each.closed or fragment != each.last_fragment
            yield each.ledger_id, fragment.first_entry_id, last if ended else None, list(fragment.bookies)


def _objects(known: TableInput) -> Iterable[tuple[Any, ...]]:
    archived = sorted(
        ((each.archived, each.ledger_id) for each in known.ledgers if each.archived), key=lambda pair: pair[0].key
    )
    for key, group in groupby(archived, key=lambda pair: pair[0].key):
        receipts = [receipt for receipt, _ in group]
        yield (
            key, receipts[0].object_id, receipts[0].object_bytes, receipts[0].object_sha256.hex(), len(receipts),
            sum(receipt.entries for receipt in receipts), sum(receipt.payload_bytes for receipt in receipts),
            max(receipt.archived_at_ms for receipt in receipts) * 1000,
        )  # fmt: skip


def _receipts(known: TableInput) -> Iterable[tuple[Any, ...]]:
    for each in known.ledgers:
        if (receipt := each.archived) is not None:
            yield (
                each.ledger_id, receipt.key, receipt.object_id, receipt.object_bytes, receipt.object_sha256.hex(),
                receipt.entries, receipt.payload_bytes, receipt.rolling_crc, receipt.index.offset,
                receipt.index.stored_bytes, receipt.index.crc, receipt.archived_at_ms * 1000, each.copies_released,
            )  # fmt: skip


def _bookies(known: TableInput) -> Iterable[tuple[Any, ...]]:
    for bookie in known.bookies.values():
        yield bookie.bookie_id, bookie.address, bookie.http_address, bookie.mode.value, bookie.rack, bookie.free_bytes


TABLES: Final[Mapping[str, MetadataTable]] = {
    "ledgers": MetadataTable(
        (
            ("ledger_id", "BIGINT"), ("state", "STRING"), ("entries", "BIGINT"), ("payload_bytes", "BIGINT"),
            ("created_at", "TIMESTAMP_LTZ"), ("ensemble", "INT"), ("write_quorum", "INT"), ("ack_quorum", "INT"),
            ("digest", "STRING"), ("has_password", "BOOLEAN"), ("fragments", "INT"), ("archived", "BOOLEAN"),
            ("copies_released", "BOOLEAN"), ("custom", "MAP<STRING, BINARY>"),
        ),
        _ledgers,
    ),
    "fragments": MetadataTable(
        (("ledger_id", "BIGINT"), ("first", "BIGINT"), ("last", "BIGINT"), ("bookies", "ARRAY<STRING>")), _fragments
    ),
    "objects": MetadataTable(
        (
            ("key", "STRING"), ("object_id", "STRING"), ("bytes", "BIGINT"), ("sha256", "STRING"),
            ("ledgers", "INT"), ("entries", "BIGINT"), ("payload_bytes", "BIGINT"), ("archived_at", "TIMESTAMP_LTZ"),
        ),
        _objects,
    ),
    "receipts": MetadataTable(
        (
            ("ledger_id", "BIGINT"), ("key", "STRING"), ("object_id", "STRING"), ("object_bytes", "BIGINT"),
            ("object_sha256", "STRING"), ("entries", "BIGINT"), ("payload_bytes", "BIGINT"), ("rolling_crc", "BIGINT"),
            ("index_offset", "BIGINT"), ("index_bytes", "BIGINT"), ("index_crc", "BIGINT"),
            ("archived_at", "TIMESTAMP_LTZ"), ("copies_released", "BOOLEAN"),
        ),
        _receipts,
    ),
    "bookies": MetadataTable(
        (
            ("bookie_id", "STRING"), ("address", "STRING"), ("http_address", "STRING"), ("mode", "STRING"),
            ("rack", "STRING"), ("free_bytes", "BIGINT"),
        ),
        _bookies,
    ),
}  # fmt: skip
