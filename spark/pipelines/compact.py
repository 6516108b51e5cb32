"""Many archive objects become few large ones: the offloader's own compaction, spread over executors.

Each new object is written, read back and committed by one task, as the offloader would do it; two that take the same
ledgers harm nothing, and what is committed stays so if the rest fails. The old objects belong to nobody then, and the
cluster's offloader removes them after a while: readers may still be at them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from pydantic import ValidationError

from tallybook.client.client import Client
from tallybook.core.config import ClientSettings, OffloadSettings
from tallybook.core.errors import InvalidConfig, NoSuchLedger, TallybookError, is_defect
from tallybook.offload.mover import Mover
from tallybook.offload.policy import PlannedObject, planned_of
from tallybook.offload.policy import compact as chosen
from tallybook.offload.process import opened
from tallybook.offload.survey import Survey
from tallybook.runtime.blocking import LoopThread

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

    A row for each new object that was planned; ``problem`` is null where it is there.

    Args:
        object_bytes: payload that ledgers share an object up to.
        below: payload of living ledgers below which an object is merged with others.
        results: folder of Parquet files in which the rows are kept.
        security: the security directory, on the driver and on every executor; empty: none.
        archive_keys: file with the keys of the archive, likewise; empty: none.

    Raises:
        InvalidConfig: the cluster has no archive, or a size makes no sense.
        MetadataUnavailable, ArchiveUnavailable, ArchiveDenied: the archive cannot be looked at.
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
        raise InvalidConfig(f"objects of {object_bytes} out of those below {below} make no sense: {error}") from error
    with LoopThread("tallybook") as loop:
        planned = loop.run(_planned(metadata, settings))
    pieces = [json.dumps([ledger.ledger_id for ledger in each.ledgers]) for each in planned]
    work = partial(_moved, metadata, settings.model_dump_json())
    # Done at once: what is not used would not be merged.
    return run_in_chunks(spark, pieces, work, SCHEMA, results=results).localCheckpoint()


def _reading(settings: OffloadSettings) -> ClientSettings:
    return ClientSettings(security=settings.security, archive_keys=settings.archive_keys)


async def _planned(metadata: str, settings: OffloadSettings) -> list[PlannedObject]:
    async with (
        Client(metadata, _reading(settings)) as client,
        opened(client, None, archive_keys=settings.archive_keys) as archive,
    ):
        survey = Survey(archive.metadata)
        await survey.look()
        keys = {found.key async for page in archive.store.list() for found in page}
        return chosen(survey.ledgers.values(), keys, settings)


def _moved(metadata: str, settings: str, pieces: Sequence[str]) -> Iterator[tuple[object, ...]]:
    with LoopThread("tallybook") as loop:
        for piece in pieces:
            yield loop.run(_move(metadata, OffloadSettings.model_validate_json(settings), json.loads(piece)))


async def _move(metadata: str, settings: OffloadSettings, ledger_ids: list[int]) -> tuple[object, ...]:
    async with (
        Client(metadata, _reading(settings)) as client,
        opened(client, None, archive_keys=settings.archive_keys) as archive,
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
