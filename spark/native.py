"""``read_ledgers``: reads archive objects with Spark's Parquet reader, and everything else with the data source.

Archive objects are plain Parquet files, so Spark reads them itself, with column pruning, pushed filters and its
vectorized decoder. Entries in no object, or that need verified reads, are read with ``format("tallybook")``. The
driver decides this once, in one snapshot, so each entry is read exactly once.

An object may contain unwanted ledgers: deleted ones, or ones that compaction moved to another object. The index of the
object lists them, and a filter per file removes their rows.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from tallybook.archive.format.schema import LEDGERS_FOLDER, SETS_FOLDER
from tallybook.archive.objects.open import AzureUrl, FileUrl, GcsUrl, MemoryUrl, S3Url, parse_url
from tallybook.core.errors import ArchiveKeyMissing, InvalidConfig, ObjectDamaged, ObjectMissing
from tallybook.core.ranges import LedgerEntryRange
from tallybook.metadata.ledger.archived import Receipt
from tallybook.runtime.blocking.loop_thread import LoopThread
from tallybook.runtime.settings import variable

from .columns import ENTRY_DDL, columns_for
from .ledgers.planning import resolve_snapshot
from .ledgers.row_selection import (
    FILE,
    GONE,
    NOT_IN_ITS_OBJECT,
    ScannedObject,
    chosen_rows,
    explanation,
    why_not_scanned,
)
from .locations import LedgerLocation, open_location
from .options import SNAPSHOT_BOUNDS, ReadOptions, batch_options, options_of
from .query.partitions import planned_range_of
from .query.record_snapshot import RecordSnapshot
from .query.snapshot import Snapshot
from .source import NAME, TallybookDataSource
from .streams.native import NativeRecords, plan_native, records_of
from .streams.planning import resolve_record_snapshot

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

CONCURRENT_INDEXES: Final = 32

AZURE_ACCOUNT: Final = ("AZURE_STORAGE_ACCOUNT_NAME", "AZURE_ACCOUNT_NAME")
"""Environment variables with the storage account, which the URL of a container does not contain."""

_GLOB: Final = re.compile(r"[][{}*?\\]")
"""Characters that are special in Hadoop path patterns."""

_NO_FILE_SYSTEM: Final = ("FileSystem not found", "No FileSystem for scheme")
"""Hadoop's errors for a file system class that is missing or not configured."""


@dataclass(frozen=True, slots=True)
class NativePlan:
    """How a snapshot is read.

    Args:
        rest: the part that Spark's Parquet reader cannot read, as a snapshot.
        url: URL of the archive; empty: nothing is read from it.
        reasons: for each ledger of the rest, why Spark cannot read it.
    """

    snapshot: Snapshot
    objects: tuple[ScannedObject, ...]
    rest: Snapshot
    has_gaps: bool
    url: str
    reasons: tuple[str, ...] = ()


def take_snapshot(metadata: str | None = None, **options: object) -> str:
    """Snapshot of what a query with these options would read now, as the text for option ``snapshot``.

    Raises:
        As ``format("tallybook")``.
    """
    chosen = batch_options(options_of(metadata, options))
    with LoopThread("tallybook") as loop:
        return str(loop.run(_resolved(chosen)))


def read_ledgers(
    spark: SparkSession, metadata: str | None = None, *, spark_url: str | None = None, **options: object
) -> DataFrame:
    """Read entries of ledgers or records of streams, with the columns and options of ``format("tallybook")``.

    Args:
        metadata: URI of the cluster's metadata store; without it, option ``archive`` names a bucket.
        spark_url: URL of the archive for Spark, if it differs from ``spark_path`` of the archive's own URL.
        options: those of ``format("tallybook")``, as ``startingEntry`` or ``starting_entry``.

    Raises:
        InvalidConfig: an option is invalid; or asks to parse payloads (use ``from_json`` of Spark); or this Spark has
            no file system for the archive.
        As ``format("tallybook")`` otherwise.
    """
    given = options_of(metadata, options)
    chosen = batch_options(given)
    if chosen.table != "entries" or chosen.payload.kind != "raw":
        raise InvalidConfig("read_ledgers returns raw payloads: parse column payload, or use format('tallybook')")
    names = [name for name, _ in columns_for(chosen).names]
    frames = []
    rest: Snapshot | RecordSnapshot
    with LoopThread("tallybook") as loop:
        if chosen.of_streams:
            records = loop.run(plan_native(chosen, _scannable_objects))
            if records.objects:
                frames.append(_scanned_records(spark, spark_url or spark_path(records.url), records, chosen))
            rest, has_rest, reasons = records.rest, bool(records.rest.ranges), records.reasons
        else:
            plan = loop.run(_planned(chosen))
            if plan.objects:
                frames.append(_scan(spark, spark_url or spark_path(plan.url), plan, chosen).select(*names))
            rest, has_rest, reasons = plan.rest, bool(plan.rest.ranges or plan.has_gaps), plan.reasons
    if has_rest or not frames:
        spark.dataSource.register(TallybookDataSource)
        kept = {name: value for name, value in given.items() if name not in SNAPSHOT_BOUNDS}
        frame = spark.read.format(NAME).options(**{**kept, "snapshot": str(rest)}).load()
        # The name of a subquery is the only text of ours that EXPLAIN EXTENDED shows.
        frames.append(frame.alias(explanation(reasons)) if reasons else frame)
    found = frames[0]
    for other in frames[1:]:
        found = found.unionByName(other)
    return found


def spark_path(url: str) -> str:
    """Spark's URL for an archive at ``url``.

    Raises:
        InvalidConfig: Spark cannot access it, or the Azure account is not configured.
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


async def _resolved(options: ReadOptions) -> Snapshot | RecordSnapshot:
    async with open_location(options.location) as location:
        if options.of_streams:
            return await resolve_record_snapshot(location, options)
        return (await resolve_snapshot(location, options))[0]


async def _planned(options: ReadOptions) -> NativePlan:
    async with open_location(options.location) as location:
        snapshot, known, gaps = await resolve_snapshot(location, options)
        by_receipt: dict[str, tuple[Receipt, list[LedgerEntryRange]]] = {}
        reasons: dict[int, str] = {}
        for wanted in snapshot.ranges:
            planned = planned_range_of(wanted, known[wanted.ledger_id])
            reason = why_not_scanned(planned, options)
            if planned.receipt is not None and not reason:
                by_receipt.setdefault(planned.receipt.key, (planned.receipt, []))[1].append(wanted)
            reasons[wanted.ledger_id] = reason or NOT_IN_ITS_OBJECT
        objects = await _scannable_objects(location, by_receipt.values())
        scanned = {wanted.ledger_id for found in objects for wanted in found.wanted}
        rest = [wanted.ledger_id for wanted in snapshot.ranges if wanted.ledger_id not in scanned]
        remaining = snapshot.only([*rest, *(gap.ledger_id for gap in gaps)])
        if gaps:
            # Include the gaps, so that the data source reports them.
            lost = tuple(LedgerEntryRange(gap.ledger_id, gap.first, gap.last) for gap in gaps)
            remaining = Snapshot(snapshot.cluster_id, tuple(sorted((*remaining.ranges, *lost))), snapshot.written)
        url = await location.archive_url() if objects else ""
    why = tuple(reason for ledger_id, reason in reasons.items() if ledger_id not in scanned)
    why += tuple(GONE[gap.kind] for gap in gaps)
    return NativePlan(snapshot, tuple(objects), remaining, bool(gaps), url, why)


async def _scannable_objects(
    location: LedgerLocation, wanted: Iterable[tuple[Receipt, Sequence[LedgerEntryRange]]]
) -> list[ScannedObject]:
    """The objects that match their receipts and are not encrypted; the data source reads all others.

    Spark cannot read encrypted objects. For other unsuitable objects, the verified reads report what is wrong.
    """
    turns = asyncio.Semaphore(CONCURRENT_INDEXES)

    async def examine(receipt: Receipt, ranges: Sequence[LedgerEntryRange]) -> ScannedObject | None:
        async with turns:
            try:
                directory = await location.directory(receipt)
                if await location.is_encrypted(receipt):
                    return None
            except (ObjectMissing, ObjectDamaged, ArchiveKeyMissing):
                return None
        held = {each.ledger_id: LedgerEntryRange(each.ledger_id, 0, each.entries - 1) for each in directory.ledgers}
        if any(wanted.ledger_id not in held or wanted.last > held[wanted.ledger_id].last for wanted in ranges):
            return None
        return ScannedObject(receipt.key, tuple(ranges), tuple(each for each in held.values() if each.last >= 0))

    found = await asyncio.gather(*(examine(receipt, ranges) for receipt, ranges in wanted))
    return [each for each in found if each is not None]


def _scanned_records(spark: SparkSession, root: str, records: NativeRecords, options: ReadOptions) -> DataFrame:
    """The records of archived segments, from entries read by Spark."""
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


def _is_partial(found: ScannedObject, first: int, last: int) -> bool:
    """Whether the wanted part of an object differs from its entries ``first .. last``."""
    cut = [
        LedgerEntryRange(each.ledger_id, max(first, 0), min(last, each.last))
        for each in found.held
        if each.last >= first
    ]
    return sorted(cut) != sorted(found.wanted)


def _parquet(
    spark: SparkSession, root: str, objects: Sequence[ScannedObject], options: ReadOptions, *more: Column
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
    """Escape a path: Spark interprets paths as patterns."""
    return _GLOB.sub(r"\\\g<0>", path)


def _opened(spark: SparkSession, files: Sequence[str]) -> DataFrame:
    from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]  # noqa: PLC0415 (comes with Spark)

    # Overrides the session: a missing or damaged file must not read as an empty one.
    strict = {"ignoreMissingFiles": "false", "ignoreCorruptFiles": "false"}
    try:
        return spark.read.options(**strict).schema(ENTRY_DDL).parquet(*files)
    except Py4JJavaError as error:
        if not any(sign in str(error) for sign in _NO_FILE_SYSTEM):
            raise
        scheme = files[0].partition(":")[0]
        raise InvalidConfig(
            f"this Spark has no file system for {scheme}: paths, which read_ledgers needs for {files[0]}. For s3a, add "
            "the package org.apache.hadoop:hadoop-aws of Spark's own version of Hadoop (docs/use/spark.md); or use "
            "format('tallybook'), which reads the same rows without it"
        ) from error
