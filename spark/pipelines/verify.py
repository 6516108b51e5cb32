"""Every entry of an archive, checked against its checksum, and every object against its receipts."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from tallybook.archive.catalog import NOT_HASHED
from tallybook.archive.entry_range import EntryRange
from tallybook.core.errors import ObjectDamaged, ObjectMissing
from tallybook.metadata.archived import IndexPart, Receipt
from tallybook.offload.verify import by_object, verify_object
from tallybook.runtime.blocking import LoopThread

from ..options import Place, options_of, read_options
from ..places import OpenedArchive, archive_at, lookups, opened
from .jobs import done_before, run_in_chunks

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SCHEMA: Final = (
    "key STRING, object_id STRING, object_bytes BIGINT, ledgers INT, entries BIGINT, payload_bytes BIGINT, "
    "problem STRING"
)


def verify(
    spark: SparkSession, metadata: str | None = None, *, archive: str | None = None, results: str | None = None
) -> DataFrame:
    """Read all objects of an archive, in parallel, and compare them with what is known of them.

    A row for each object; ``problem`` is null where nothing is wrong.

    Args:
        metadata: URI of the cluster's metadata store; without it, the bucket ``archive`` has to vouch for itself.
        results: folder of Parquet files in which the rows are kept. What was good there is not read again.

    Raises:
        InvalidConfig, MetadataUnavailable, ArchiveUnavailable, ArchiveDenied: the archive cannot be looked at.
    """
    named = {} if archive is None else {"archive": archive}
    place = read_options(options_of(metadata, named)).place
    with LoopThread("tallybook") as loop:
        pieces, url = loop.run(_pieces(place))
    before = None if results is None else done_before(spark, results, SCHEMA)
    if before is not None:
        good = {row.key for row in before.where("problem IS NULL").select("key").collect()}
        pieces = {key: piece for key, piece in pieces.items() if key not in good}
    return run_in_chunks(spark, list(pieces.values()), partial(_verified, url), SCHEMA, results=results)


async def _pieces(place: Place) -> tuple[dict[str, str], str]:
    """The receipts of each object, as text, by its key; and where the archive is."""
    async with opened(place) as source:
        found = await lookups(source, await source.ledger_ids())
        damaged = dict(source.damaged)
        url = await source.archive_url()
    archived = by_object(metadata for metadata in found.values() if metadata is not None)
    pieces = {key: json.dumps({"key": key, "receipts": _as_json(receipts)}) for key, receipts in archived.items()}
    return pieces | {key: json.dumps({"key": key, "problem": why}) for key, why in damaged.items()}, url


def _verified(url: str, pieces: Sequence[str]) -> list[tuple[object, ...]]:
    with LoopThread("tallybook") as loop:
        return loop.run(_verify_all(url, [json.loads(piece) for piece in pieces]))


async def _verify_all(url: str, pieces: Sequence[dict[str, Any]]) -> list[tuple[object, ...]]:
    async with archive_at(url) as archive:
        return [await _verify(archive, piece) for piece in pieces]


async def _verify(archive: OpenedArchive, piece: dict[str, Any]) -> tuple[object, ...]:
    if "problem" in piece:
        return piece["key"], None, None, None, None, None, piece["problem"]
    receipts = _from_json(piece["receipts"])
    first = next(iter(receipts.values()))
    problem = (await verify_object(archive.store, archive.workers, piece["key"], receipts)).problem
    if not problem and first.object_sha256 == NOT_HASHED:
        problem = await _scanned(archive, receipts)
    return (
        piece["key"],
        first.object_id,
        first.object_bytes,
        len(receipts),
        sum(receipt.entries for receipt in receipts.values()),
        sum(receipt.payload_bytes for receipt in receipts.values()),
        problem or None,
    )


async def _scanned(archive: OpenedArchive, receipts: Mapping[int, Receipt]) -> str:
    """What is wrong with the columns beside the payload, where there is no hash of the object that would tell."""
    wanted = [
        EntryRange(ledger_id, 0, receipt.entries - 1) for ledger_id, receipt in receipts.items() if receipt.entries
    ]
    try:
        async with aclosing(archive.scan(next(iter(receipts.values()))).rows(wanted)) as tables:
            async for _ in tables:
                pass
    except (ObjectMissing, ObjectDamaged) as error:
        return error.message
    return ""


def _as_json(receipts: Mapping[int, Receipt]) -> dict[str, Any]:
    return {
        str(ledger_id): {**asdict(receipt), "object_sha256": receipt.object_sha256.hex()}
        for ledger_id, receipt in receipts.items()
    }


def _from_json(found: dict[str, Any]) -> dict[int, Receipt]:
    return {
        int(ledger_id): Receipt(
            **{
                **each,
                "object_sha256": bytes.fromhex(each["object_sha256"]),
                "index": IndexPart(**each["index"]),
            }
        )
        for ledger_id, each in found.items()
    }
