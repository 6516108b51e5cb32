"""Closed ledgers into Parquet files in folders, or into a table: a stream that ends once it has read what is there.

Run again, it goes on behind what it has written: the checkpoint knows each ledger, and the output each micro-batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from tallybook.core.errors import InvalidConfig

from ..options import options_of
from ..source import NAME, TallybookDataSource

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

DEFAULT_BATCH: Final = "1g"
DAY: Final = "day"


def export(
    spark: SparkSession,
    metadata: str,
    path: str | None = None,
    *,
    table: str | None = None,
    checkpoint: str | None = None,
    partition_by: Sequence[str] | None = None,
    transform: Callable[[DataFrame], DataFrame] | None = None,
    output_format: str = "parquet",
    **options: object,
) -> None:
    """Write the entries of closed ledgers that were not written before.

    Args:
        path: folder for files; or ``table`` names a table of the catalog.
        checkpoint: where the stream keeps how far it is; ``path`` with ``_checkpoint`` behind it unless given.
        partition_by: columns of the output that become folders; ``day``, if it is there, unless given.
            Column ``day``, the date of writing, is added to entries, and ``transform`` may keep it or not.
        transform: makes rows of entries; without it, the columns of ``format("tallybook")`` and ``day``.
        output_format: of files; whatever Spark can stream into.
        options: those of ``readStream.format("tallybook")``, as ``maxBytesPerTrigger`` or ``max_bytes_per_trigger``.

    Raises:
        InvalidConfig: not exactly one of ``path`` and ``table``, a table without a checkpoint, or ``partition_by``
            names columns that ``transform`` does not give.
        StreamingQueryException: Spark's; what was written before stays, and the next run goes on from there.
    """
    if (path is None) == (table is None):
        raise InvalidConfig("give either a path or a table to export to")
    place = checkpoint or (None if path is None else f"{path.rstrip('/')}_checkpoint")
    if place is None:
        raise InvalidConfig("an export to a table needs a checkpoint: a folder that lives as long as the table")
    spark.dataSource.register(TallybookDataSource)
    given = {"maxbytespertrigger": DEFAULT_BATCH, **options_of(metadata, options)}
    entries = spark.readStream.format(NAME).options(**given).load()
    dated = entries.withColumn(DAY, entries["written_at"].cast("date"))
    rows = dated if transform is None else transform(dated)
    writing = rows.writeStream.option("checkpointLocation", place).trigger(availableNow=True).outputMode("append")
    folders = folder_columns(partition_by, rows.columns)
    if folders:
        writing = writing.partitionBy(*folders)
    if path is not None:
        query = writing.format(output_format).option("path", path).start()
    else:
        query = writing.toTable(table or "")
    try:
        query.awaitTermination()
    finally:
        query.stop()


def folder_columns(wanted: Sequence[str] | None, there: Sequence[str]) -> list[str]:
    """The columns that become folders, of those that are there; by day where nobody says, and there is one.

    Raises:
        InvalidConfig: some are not there.
    """
    names = {name.lower() for name in there}
    if wanted is None:
        return [DAY] if DAY in names else []
    columns = [wanted] if isinstance(wanted, str) else list(wanted)
    absent = [name for name in columns if name.lower() not in names]
    if absent:
        raise InvalidConfig(
            f"partition_by names {', '.join(absent)}, and the output has {', '.join(there)}: let transform keep it, or "
            "give others, or () for no folders"
        )
    return columns
