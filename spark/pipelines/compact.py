"""Merges archive objects into few large ones: the offloader's compaction, run on executors.

Each new object is written, read back and committed by one task, in the same way as the offloader does it. Two jobs with
the same ledgers are harmless, and committed objects stay if the rest of the job fails. The old objects become orphans;
the cluster's offloader removes them later, since readers may still use them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from pydantic import ValidationError

from tallybook.client.client import Client
from tallybook.core.errors import InvalidConfig, NoSuchLedger, TallybookError, is_defect
from tallybook.core.settings import ClientSettings, OffloadSettings
from tallybook.offload.ledger_listing import LedgerListing
from tallybook.offload.mover import Mover
from tallybook.offload.open_archive import open_archive
from tallybook.offload.policy import PlannedObject, planned_of
from tallybook.offload.policy import compact as chosen
from tallybook.runtime.blocking.loop_thread import LoopThread

from .jobs import run_in_chunks

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SCHEMA: Final = "ledgers INT, moved INT, payload_bytes BIGINT, object_bytes BIGINT, problem STRING"


def compact(
    spark: SparkSession,
    metadata: str,
    *,
    object_bytes: str = "1GiB",
    below: str = "256MiB",
    results: str | None = None,
    security: str = "",
    archive_keys: str = "",
) -> DataFrame:
    """Merge small objects into large ones.

    Returns one row per planned object; ``problem`` is null if it was written.

    Args:
        object_bytes: maximum payload of an object shared by several ledgers.
        below: objects with less payload of existing ledgers are merged.
        results: folder of Parquet files to which the rows are added.
        security: the security directory, on the driver and on every executor; empty: none.
        archive_keys: file with the keys of the archive, on the driver and on every executor; empty: none.

    Raises:
        InvalidConfig: the cluster has no archive, or a size is invalid.
        MetadataUnavailable, ArchiveUnavailable, ArchiveDenied: the archive cannot be read.
    """
    try:
        settings = OffloadSettings.model_validate(
            {
                "set_object_bytes": object_bytes,
                "compact_below_bytes": below,
                "own_object_bytes": below,
                "set_object_ledgers": 1_000_000,
                "security": security,
                "archive_keys": archive_keys,
            }
        )
    except ValidationError as error:
        raise InvalidConfig(f"invalid object_bytes {object_bytes} or below {below}: {error}") from error
    with LoopThread("tallybook") as loop:
        planned = loop.run(_planned(metadata, settings))
    pieces = [json.dumps([ledger.ledger_id for ledger in each.ledgers]) for each in planned]
    work = partial(_moved, metadata, settings.model_dump_json())
    # Eager: rows that the caller does not use would not be merged.
    return run_in_chunks(spark, pieces, work, SCHEMA, results=results).localCheckpoint()


def _reading(settings: OffloadSettings) -> ClientSettings:
    return ClientSettings(security=settings.security, archive_keys=settings.archive_keys)


async def _planned(metadata: str, settings: OffloadSettings) -> list[PlannedObject]:
    async with (
        Client(metadata, _reading(settings)) as client,
        open_archive(client, None, archive_keys=settings.archive_keys) as archive,
    ):
        listing = LedgerListing(archive.metadata)
        await listing.refresh()
        keys = {found.key async for page in archive.store.list() for found in page}
        return chosen(listing.ledgers.values(), keys, settings)


def _moved(metadata: str, settings: str, pieces: Sequence[str]) -> Iterator[tuple[object, ...]]:
    with LoopThread("tallybook") as loop:
        for piece in pieces:
            yield loop.run(_move(metadata, OffloadSettings.model_validate_json(settings), json.loads(piece)))


async def _move(metadata: str, settings: OffloadSettings, ledger_ids: list[int]) -> tuple[object, ...]:
    async with (
        Client(metadata, _reading(settings)) as client,
        open_archive(client, None, archive_keys=settings.archive_keys) as archive,
    ):
        found = []
        for ledger_id in ledger_ids:
            try:
                found.append(await client.ledger_metadata(ledger_id))
            except NoSuchLedger:
                continue
        mover: Mover = archive.mover(client, settings)
        try:
            await archive.check_ready()
            moved = await mover.move(planned_of(found))
        except TallybookError as error:
            if is_defect(error):
                raise
            return len(ledger_ids), 0, 0, 0, error.message
    problem = moved.failed[0][1] if moved.failed else None
    return len(ledger_ids), len(moved.archived), moved.payload_bytes, moved.object_bytes, problem
