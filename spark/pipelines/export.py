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


def export(
    spark: SparkSession,
    metadata: str,
    path: str | None = None,
    *,
    table: str | None = None,
    checkpoint: str | None = None,
    partition_by: Sequence[str] = ("day",),
    transform: Callable[[DataFrame], DataFrame] | None = None,
    output_format: str = "parquet",
    **options: object,
) -> None:
    """Write the entries of closed ledgers that were not written before.

    Args:
        path: folder for files; or ``table`` names a table of the catalog.
        checkpoint: where the stream keeps how far it is; ``path`` with ``_checkpoint`` behind it unless given.
        partition_by: columns of the output that become folders. Column ``day``, the date of writing, is added.
        transform: makes rows of entries; without it, the columns of ``format("tallybook")`` and ``day``.
        output_format: of files; whatever Spark can stream into.
        options: those of ``readStream.format("tallybook")``, as ``maxBytesPerTrigger`` or ``max_bytes_per_trigger``.

    Raises:
        InvalidConfig: not exactly one of ``path`` and ``table``, or a table without a checkpoint.
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
    dated = entries.withColumn("day", entries["written_at"].cast("date"))
    rows = dated if transform is None else transform(dated)
    writing = rows.writeStream.option("checkpointLocation", place).trigger(availableNow=True).outputMode("append")
    if partition_by:
        writing = writing.partitionBy(*partition_by)
    if path is not None:
        query = writing.format(output_format).option("path", path).start()
    else:
        query = writing.toTable(table or "")
    try:
        query.awaitTermination()
    finally:
        query.stop()
