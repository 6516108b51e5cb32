"""Verifies an archive: every entry against its checksum, and every object against its receipts."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from tallybook.core.errors import InvalidConfig
from tallybook.metadata.ledger.archived import IndexPart, Receipt
from tallybook.offload.verify import by_object, verify_object
from tallybook.runtime.blocking.loop_thread import LoopThread
from tallybook.runtime.clock import RealClock

from ..locations import OpenedArchive, archive_at, open_location, read_metadata
from ..option_names import LOCATION_OPTIONS, PROPER_NAMES, lower_names
from ..options import LocationOptions, options_of, read_options
from .jobs import done_before, run_in_chunks

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Receipts: TypeAlias = Mapping[int, Receipt]
ReceiptsLookup: TypeAlias = Callable[[str, Receipts], Awaitable[Mapping[str, Receipts]]]
"""Returns the current objects of the ledgers of an object."""

SCHEMA: Final = (
    "key STRING, object_id STRING, object_bytes BIGINT, ledgers INT, entries BIGINT, payload_bytes BIGINT, "
    "problem STRING, verified_at TIMESTAMP_LTZ"
)
_LOCATION: Final = lower_names(LOCATION_OPTIONS)
GOOD_FOR: Final = timedelta(days=30)
"""How long a good result is valid. Stored data can become damaged later, so objects are read again."""


def verify(
    spark: SparkSession,
    metadata: str | None = None,
    *,
    archive: str | None = None,
    results: str | None = None,
    good_for: timedelta = GOOD_FOR,
    archive_keys: str = "",
    **options: object,
) -> DataFrame:
    """Read all objects of an archive in parallel and compare them with their receipts.

    Returns one row per object with ledgers; ``problem`` is null if the object is intact, and ``verified_at`` is the
    start of the run that read it. Ledgers that compaction moves during the run are checked in their new object.

    Args:
        metadata: URI of the cluster's metadata store; without it, the bucket ``archive`` is checked against its own
            manifest.
        results: folder of Parquet files to which the rows are added. An object with a good result there is not read
            again for ``good_for``, so a stopped run continues; the latest row of each object is returned.
        good_for: validity of a good result in ``results``; ``timedelta(0)`` reads everything again.
        archive_keys: file with the keys of an encrypted archive, on the driver and on every executor; empty: none.
        options: options of ``format("tallybook")`` for access to the cluster and the archive, as ``security`` and
            ``s3_access_key``.

    Raises:
        InvalidConfig, MetadataUnavailable, ArchiveUnavailable, ArchiveDenied: the archive cannot be read.
    """
    named = {"archiveKeys": archive_keys, **({} if archive is None else {"archive": archive})}
    given = options_of(metadata, {**named, **options})
    if others := sorted(PROPER_NAMES.get(name, name) for name in given.keys() - _LOCATION):
        raise InvalidConfig(f"verify reads all objects of an archive and takes no option {', '.join(others)}")
    location = read_options(given).location
    now_us = RealClock().wall_us()
    with LoopThread("tallybook") as loop:
        pieces, url, cluster_id = loop.run(_pieces(location))
    work = partial(_verified, location, cluster_id, url, now_us)
    if results is None:
        return _one_each(run_in_chunks(spark, list(pieces.values()), work, SCHEMA, results=None))
    before = done_before(spark, results, SCHEMA)
    good = set() if before is None else _good(before, now_us - good_for // timedelta(microseconds=1)) & set(pieces)
    wanted = [piece for key, piece in pieces.items() if key not in good]
    return _latest(run_in_chunks(spark, wanted, work, SCHEMA, results=results), good, now_us)


def _good(rows: DataFrame, since_us: int) -> set[str]:
    """Keys of the objects whose last result since a time is good."""
    from pyspark.sql import functions as F  # noqa: N812, PLC0415 (loaded with a session only; its usual name)

    at = F.unix_micros("verified_at")
    last = rows.where(at.isNotNull()).groupBy("key").agg(
        F.max(at).alias("at"), F.max_by(F.col("problem").isNull(), at).alias("good")
    )  # fmt: skip
    return {row["key"] for row in last.where((F.col("at") > since_us) & F.col("good")).collect()}


def _latest(rows: DataFrame, good: Collection[str], now_us: int) -> DataFrame:
    """The results of this run, and the last results of objects that it did not read."""
    from pyspark.sql import functions as F  # noqa: N812, PLC0415 (loaded with a session only; its usual name)

    at = F.unix_micros("verified_at")
    return _one_each(rows.where((at == now_us) | (F.col("key").isin(list(good)) & F.col("problem").isNull())))


def _one_each(rows: DataFrame) -> DataFrame:
    """The latest row of each object. Several tasks may have read the same object: a row with a problem wins."""
    from pyspark.sql import functions as F  # noqa: N812, PLC0415 (loaded with a session only; its usual name)

    order = F.struct(F.unix_micros("verified_at"), F.col("problem").isNotNull())
    last = rows.groupBy("key").agg(F.max_by(F.struct(*rows.columns), order).alias("row"))
    return last.select("row.*")


async def _pieces(options: LocationOptions) -> tuple[dict[str, str], str, str]:
    """The receipts of each object as text, by key; the URL of the archive, and the cluster id."""
    async with open_location(options) as source:
        found = await read_metadata(source, await source.ledger_ids())
        damaged = dict(source.damaged)
        url, cluster_id = await source.archive_url(), source.cluster_id
    archived = by_object(metadata for metadata in found.values() if metadata is not None)
    pieces = {key: json.dumps({"key": key, "receipts": _as_json(receipts)}) for key, receipts in archived.items()}
    return pieces | {key: json.dumps({"key": key, "problem": why}) for key, why in damaged.items()}, url, cluster_id


def _verified(
    options: LocationOptions, cluster_id: str, url: str, now_us: int, pieces: Sequence[str]
) -> list[tuple[object, ...]]:
    at = datetime.fromtimestamp(0, UTC) + timedelta(microseconds=now_us)

    async def work() -> list[tuple[object, ...]]:
        async with archive_at(url, options) as archive:
            current = partial(_current, options, cluster_id)
            return [row async for row in _verify_all(archive, current, [json.loads(piece) for piece in pieces])]

    with LoopThread("tallybook") as loop:
        return [(*row, at) for row in loop.run(work())]


async def _verify_all(
    archive: OpenedArchive, current: ReceiptsLookup, pieces: Sequence[dict[str, Any]]
) -> AsyncIterator[tuple[object, ...]]:
    for piece in pieces:
        if "problem" in piece:
            yield piece["key"], None, None, None, None, None, piece["problem"]
    async for key, receipts, problem in verify_current(
        {piece["key"]: _from_json(piece["receipts"]) for piece in pieces if "receipts" in piece},
        partial(_verify, archive),
        current,
    ):
        first = next(iter(receipts.values()))
        yield (
            key,
            first.object_id,
            first.object_bytes,
            len(receipts),
            sum(receipt.entries for receipt in receipts.values()),
            sum(receipt.payload_bytes for receipt in receipts.values()),
            problem or None,
        )


async def verify_current(
    objects: Mapping[str, Receipts],
    check: Callable[[str, Receipts], Awaitable[str]],
    current: ReceiptsLookup,
) -> AsyncIterator[tuple[str, Receipts, str]]:
    """Check objects. A problem counts for the ledgers still in the object; moved ledgers are checked where they are.

    Args:
        objects: receipts of the ledgers in each object, by key.
        check: returns the problem of an object; empty: none.
        current: returns the current objects of the ledgers of an object, by key.
    """
    moved = dict(objects)
    while moved:
        looking, moved = moved, {}
        for key, receipts in looking.items():
            left, problem = receipts, await check(key, receipts)
            if problem:
                found = dict(await current(key, receipts))
                left = found.pop(key, {})
                for other, theirs in found.items():
                    moved[other] = {**moved.get(other, {}), **theirs}
                if left and left != receipts:
                    problem = await check(key, left)
            if left:
                yield key, left, problem


async def _current(options: LocationOptions, cluster_id: str, key: str, receipts: Receipts) -> Mapping[str, Receipts]:
    async with open_location(options, cluster_id=cluster_id) as source:
        found = await read_metadata(source, receipts)
        damaged = key in source.damaged
    places = by_object(metadata for metadata in found.values() if metadata is not None)
    # A bucket without its cluster: a damaged index does not show which ledgers are in the object, so all count.
    return {key: receipts, **places} if damaged else places


async def _verify(archive: OpenedArchive, key: str, receipts: Receipts) -> str:
    return (await verify_object(archive.store, archive.workers, key, receipts)).problem


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
