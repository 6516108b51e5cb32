"""Exports closed ledgers to Parquet files or a table, as a streaming query that ends when it has read all of them.

A repeated run continues after the last export: the checkpoint records the ledgers, the output the micro-batches.
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
    """Write the entries of closed ledgers that were not exported before.

    Args:
        path: output folder; alternatively ``table`` names a table of the catalog.
        checkpoint: folder of the query's checkpoint; default: ``path`` with the suffix ``_checkpoint``.
        partition_by: output columns that become folders; default: ``day``, if the output has it. Column ``day``, the
            date of writing, is added to the entries; ``transform`` may drop it.
        transform: converts entries to output rows; default: the columns of ``format("tallybook")`` and ``day``.
        output_format: file format; any format that Spark can stream to.
        options: those of ``readStream.format("tallybook")``, as ``maxBytesPerTrigger`` or ``max_bytes_per_trigger``.

    Raises:
        InvalidConfig: not exactly one of ``path`` and ``table`` is given, a table has no checkpoint, ``partition_by``
            names columns that the output lacks, or option ``columns`` does not name ``written_at``.
        StreamingQueryException: the query failed; what was written stays, and the next run continues from there.
    """
    if (path is None) == (table is None):
        raise InvalidConfig("give either a path or a table to export to, not both")
    place = checkpoint or (None if path is None else f"{path.rstrip('/')}_checkpoint")
    if place is None:
        raise InvalidConfig("an export to a table needs a checkpoint: a folder that is kept as long as the table")
    spark.dataSource.register(TallybookDataSource)
    given = {"maxbytespertrigger": DEFAULT_BATCH, **options_of(metadata, options)}
    entries = spark.readStream.format(NAME).options(**given).load()
    if "written_at" not in entries.columns:
        raise InvalidConfig("option columns of an export must name written_at, which column day is made of")
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
    """The output columns that become folders; default: ``day``, if there is such a column.

    Raises:
        InvalidConfig: a column does not exist.
    """
    names = {name.lower() for name in there}
    if wanted is None:
        return [DAY] if DAY in names else []
    columns = [wanted] if isinstance(wanted, str) else list(wanted)
    absent = [name for name in columns if name.lower() not in names]
    if absent:
        raise InvalidConfig(
            f"partition_by names {', '.join(absent)}, and the output has {', '.join(there)}: keep it in transform, "
            "name other columns, or give () for no folders"
        )
    return columns
