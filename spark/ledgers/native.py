"""``read_ledgers``: history at the speed of Parquet, and the rest beside it, under one snapshot.

Objects of the archive are plain Parquet, so Spark reads them itself: with pruning, pushed filters and its own decoder.
What is in no object, and what only a careful reader may read, comes from ``format("tallybook")``. Which is which is
settled once, on the driver, so that every entry is there exactly once.

An object may hold more than is wanted: ledgers that were deleted, or that live in another object by now. The index of
each object says so, and what is not wanted is filtered out by file.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from tallybook.archive.entry_range import EntryRange
from tallybook.archive.objects.open import AzureUrl, FileUrl, GcsUrl, MemoryUrl, S3Url, parse_url
from tallybook.archive.schema import LEDGERS_FOLDER, SETS_FOLDER
from tallybook.core.errors import ArchiveKeyMissing, InvalidConfig, ObjectDamaged, ObjectMissing
from tallybook.metadata.archived import Receipt
from tallybook.runtime.blocking import LoopThread
from tallybook.runtime.settings import variable

from .choosing import FILE, WantedObject, chosen_rows
from .columns import ENTRY_DDL
from .options import SNAPSHOT_BOUNDS, ReadOptions, batch_options, options_of
from .places import LedgerPlace, opened
from .plan import stretch_of
from .planning import settle
from .records.native import NativeRecords, plan_native, records_of
from .records.planning import settled_snapshot
from .records.snapshot import RecordSnapshot
from .snapshot import Snapshot
from .source import NAME, TallybookDataSource

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

CONCURRENT_INDEXES: Final = 32

AZURE_ACCOUNT: Final = ("AZURE_STORAGE_ACCOUNT_NAME", "AZURE_ACCOUNT_NAME")
"""Variables that name an account: a container's name says nothing of it."""

_GLOB: Final = re.compile(r"[][{}*?\\]")
"""What Hadoop reads as more than itself in a path."""

_NO_FILE_SYSTEM: Final = ("FileSystem not found", "No FileSystem for scheme")
"""How Hadoop says that a class is missing, or that nobody has told it of one."""


@dataclass(frozen=True, slots=True)
class NativePlan:
    """How a snapshot is read.

    Args:
        rest: what Spark cannot scan by itself, as a snapshot.
        url: of the archive; empty where nothing of it is read.
    """

    snapshot: Snapshot
    objects: tuple[WantedObject, ...]
    rest: Snapshot
    has_gaps: bool
    url: str


def take_snapshot(metadata: str | None = None, **options: object) -> str:
    """What a query with these options would read now, as the text that option ``snapshot`` takes.

    Raises:
        As ``format("tallybook")``.
    """
    chosen = batch_options(options_of(metadata, options))
    with LoopThread("tallybook") as loop:
        return str(loop.run(_settled(chosen)))


def read_ledgers(
    spark: SparkSession, metadata: str | None = None, *, spark_url: str | None = None, **options: object
) -> DataFrame:
    """The entries of ledgers, or the records of streams, with the columns and the bounds of ``format("tallybook")``.

    Args:
        metadata: URI of the cluster's metadata store; without it, option ``archive`` names a bucket.
        spark_url: where Spark finds the archive, if not at ``spark_path`` of where we do.
        options: those of ``format("tallybook")``, as ``startingEntry`` or ``starting_entry``.

    Raises:
        InvalidConfig: an option makes no sense; or payloads are to be parsed: ``from_json`` of Spark does that here; or
            this Spark cannot read where the archive is.
        As ``format("tallybook")`` otherwise.
    """
    given = options_of(metadata, options)
    chosen = batch_options(given)
    if chosen.table != "entries" or chosen.payload.kind != "raw":
        raise InvalidConfig("read_ledgers gives raw payloads: parse column payload, or use format('tallybook')")
    frames = []
    rest: Snapshot | RecordSnapshot
    with LoopThread("tallybook") as loop:
        if chosen.of_streams:
            records = loop.run(plan_native(chosen, _looked_at))
            if records.objects:
                frames.append(_scanned_records(spark, spark_url or spark_path(records.url), records, chosen))
            rest, has_rest = records.rest, bool(records.rest.ranges)
        else:
            plan = loop.run(_planned(chosen))
            if plan.objects:
                frames.append(_scan(spark, spark_url or spark_path(plan.url), plan, chosen))
            rest, has_rest = plan.rest, bool(plan.rest.ranges or plan.has_gaps)
    if has_rest or not frames:
        spark.dataSource.register(TallybookDataSource)
        kept = {name: value for name, value in given.items() if name not in SNAPSHOT_BOUNDS}
        frames.append(spark.read.format(NAME).options(**{**kept, "snapshot": str(rest)}).load())
    found = frames[0]
    for other in frames[1:]:
        found = found.unionByName(other)
    return found


def spark_path(url: str) -> str:
    """What Spark calls the place that we call ``url``.

    Raises:
        InvalidConfig: Spark cannot get there, or nobody says which account of Azure it is in.
    """
    match parse_url(url):
        case FileUrl(path):
            return f"file://{os.path.abspath(path)}"
        case S3Url(bucket, prefix):
            return f"s3a://{bucket}/{prefix}".rstrip("/")
        case GcsUrl(bucket, prefix):
            return f"gs://{bucket}/{prefix}".rstrip("/")
        case AzureUrl(container, prefix):
            account = variable(*AZURE_ACCOUNT)
            if not account:
                raise InvalidConfig(f"{url}: set {AZURE_ACCOUNT[0]}, by which Spark knows the account")
            return f"abfss://{container}@{account}.dfs.core.windows.net/{prefix}".rstrip("/")
        case MemoryUrl():
            raise InvalidConfig(f"Spark cannot read {url}: it is in the memory of another process")


async def _settled(options: ReadOptions) -> Snapshot | RecordSnapshot:
    async with opened(options.place) as place:
        if options.of_streams:
            return await settled_snapshot(place, options)
        return (await settle(place, options))[0]


async def _planned(options: ReadOptions) -> NativePlan:
    async with opened(options.place) as place:
        snapshot, known, gaps = await settle(place, options)
        by_receipt: dict[str, tuple[Receipt, list[EntryRange]]] = {}
        for wanted in snapshot.ranges:
            metadata = known[wanted.ledger_id]
            scannable = stretch_of(wanted, metadata).scannable and options.leaves_archive_to_spark
            if metadata.archived is not None and scannable and options.tier != "bookies":
                by_receipt.setdefault(metadata.archived.key, (metadata.archived, []))[1].append(wanted)
        objects = await _looked_at(place, by_receipt.values())
        scanned = {wanted.ledger_id for found in objects for wanted in found.wanted}
        rest = [wanted.ledger_id for wanted in snapshot.ranges if wanted.ledger_id not in scanned]
        remaining = snapshot.only([*rest, *(gap.ledger_id for gap in gaps)])
        if gaps:
            # What is gone has to be asked for again, so that it is reported.
            lost = tuple(EntryRange(gap.ledger_id, gap.first, gap.last) for gap in gaps)
            remaining = Snapshot(snapshot.cluster_id, tuple(sorted((*remaining.ranges, *lost))), snapshot.written)
        url = await place.archive_url() if objects else ""
    return NativePlan(snapshot, tuple(objects), remaining, bool(gaps), url)


async def _looked_at(place: LedgerPlace, wanted: Iterable[tuple[Receipt, Sequence[EntryRange]]]) -> list[WantedObject]:
    """The objects that are what their receipts say; who reads the others carefully finds out what is wrong.

    Those that are sealed are no Parquet to Spark: we open them.
    """
    turns = asyncio.Semaphore(CONCURRENT_INDEXES)

    async def look(receipt: Receipt, ranges: Sequence[EntryRange]) -> WantedObject | None:
        async with turns:
            try:
                directory = await place.directory(receipt)
                if await place.is_sealed(receipt):
                    return None
            except (ObjectMissing, ObjectDamaged, ArchiveKeyMissing):
                return None
        held = {each.ledger_id: EntryRange(each.ledger_id, 0, each.entries - 1) for each in directory.ledgers}
        if any(wanted.ledger_id not in held or wanted.last > held[wanted.ledger_id].last for wanted in ranges):
            return None
        return WantedObject(receipt.key, tuple(ranges), tuple(each for each in held.values() if each.last >= 0))

    found = await asyncio.gather(*(look(receipt, ranges) for receipt, ranges in wanted))
    return [each for each in found if each is not None]


def _scanned_records(spark: SparkSession, root: str, records: NativeRecords, options: ReadOptions) -> DataFrame:
    """The records of archived segments, out of the entries that Spark scans."""
    ranges = tuple(sorted(each.range for each in records.scanned))
    snapshot = Snapshot(records.rest.cluster_id, ranges)
    plan = NativePlan(snapshot, records.objects, snapshot, has_gaps=False, url=records.url)
    entries = _scan(spark, root, plan, replace(options, fail_on_data_loss=True))
    return records_of(entries, records.scanned, options)


def _scan(spark: SparkSession, root: str, plan: NativePlan, options: ReadOptions) -> DataFrame:
    from pyspark.sql import functions as F  # noqa: N812, PLC0415 (its usual name)

    first = min(each.first for found in plan.objects for each in found.wanted)
    last = max(each.last for found in plan.objects for each in found.wanted)
    whole = [found for found in plan.objects if not _is_partial(found, first, last)]
    partial = [found for found in plan.objects if _is_partial(found, first, last)]
    frames = []
    if whole:
        frames.append(_parquet(spark, root, whole, options))
    if partial:
        name = F.col("_metadata.file_name").alias(FILE)
        frames.append(chosen_rows(_parquet(spark, root, partial, options, name), partial).drop(FILE))
    scanned = frames[0] if len(frames) == 1 else frames[0].unionByName(frames[1])
    if first > 0:
        scanned = scanned.where(F.col("entry_id") >= first)
    if last < max(each.last for found in plan.objects for each in found.held):
        scanned = scanned.where(F.col("entry_id") <= last)
    written = plan.snapshot.written
    if written.first_us is not None:
        scanned = scanned.where(F.col("written_at") >= F.timestamp_micros(F.lit(written.first_us)))
    if written.end_us is not None:
        scanned = scanned.where(F.col("written_at") < F.timestamp_micros(F.lit(written.end_us)))
    return scanned


def _is_partial(found: WantedObject, first: int, last: int) -> bool:
    """Whether more, or less, of an object is wanted than its entries ``first .. last``."""
    cut = [EntryRange(each.ledger_id, max(first, 0), min(last, each.last)) for each in found.held if each.last >= first]
    return sorted(cut) != sorted(found.wanted)


def _parquet(
    spark: SparkSession, root: str, objects: Sequence[WantedObject], options: ReadOptions, *more: Column
) -> DataFrame:
    from pyspark.sql import functions as F  # noqa: N812, PLC0415 (its usual name)

    frame = _opened(spark, [f"{_without_glob(root)}/{found.key}" for found in objects])
    columns = [F.col(name) for name in frame.columns]
    if options.include_metadata:
        key = F.regexp_extract("_metadata.file_path", f"(?:{LEDGERS_FOLDER}|{SETS_FOLDER})[^/]+$", 0)
        columns += [F.lit("archive").alias("tier"), key.alias("object")]
    if not options.fail_on_data_loss:
        gap = "STRUCT<kind: STRING, first: BIGINT, last: BIGINT, reason: STRING>"
        columns.append(F.lit(None).cast(gap).alias("gap"))
    return frame.select(*columns, *more)


def _without_glob(path: str) -> str:
    """The pattern that only ``path`` matches: Spark takes the paths of files for patterns."""
    return _GLOB.sub(r"\\\g<0>", path)


def _opened(spark: SparkSession, files: Sequence[str]) -> DataFrame:
    from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]  # noqa: PLC0415 (comes with Spark)

    # Whatever the session says: a file that is missing or damaged is not an empty one.
    strict = {"ignoreMissingFiles": "false", "ignoreCorruptFiles": "false"}
    try:
        return spark.read.options(**strict).schema(ENTRY_DDL).parquet(*files)
    except Py4JJavaError as error:
        if not any(sign in str(error) for sign in _NO_FILE_SYSTEM):
            raise
        scheme = files[0].partition(":")[0]
        raise InvalidConfig(
            f"this Spark has no file system for {scheme}: paths, and read_ledgers leaves {files[0]} to it. For s3a it "
            "is in the package org.apache.hadoop:hadoop-aws of Spark's own version of Hadoop (docs/spark.md); "
            "format('tallybook') reads the same rows without it"
        ) from error
