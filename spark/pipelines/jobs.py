"""Runs a job over a list of pieces in chunks, and saves the results after each chunk."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final, TypeAlias

import pyarrow as pa

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Work: TypeAlias = Callable[[Sequence[str]], Iterable[tuple[object, ...]]]
"""Processes pieces, each described by a string, sequentially on an executor; returns one or more rows per piece."""

_MANY: Final = 1 << 16
"""More rows than any cluster has cores."""
PIECES_PER_TASK: Final = 4
"""Pieces per task and Spark job: an interrupted job is repeated from its start."""


def run_in_chunks(
    spark: SparkSession, pieces: Sequence[str], work: Work, schema: str, *, results: str | None
) -> DataFrame:
    """Run ``work`` on all pieces.

    Args:
        schema: schema of its rows in Spark DDL.
        results: folder of Parquet files to which rows are added after each chunk; ``None``: the work runs lazily,
            each time that the returned DataFrame is used.

    Returns:
        The rows of all pieces; with ``results``, all rows in that folder.
    """
    tasks = _parallelism(spark)
    if results is None:
        return _run(spark, pieces, work, schema, tasks)
    chunk = tasks * PIECES_PER_TASK
    for at in range(0, len(pieces), chunk):
        _run(spark, pieces[at : at + chunk], work, schema, tasks).write.mode("append").parquet(results)
    if not pieces and done_before(spark, results, schema) is None:
        _run(spark, [], work, schema, 1).write.mode("append").parquet(results)
    return spark.read.schema(schema).parquet(results)


def done_before(spark: SparkSession, results: str, schema: str) -> DataFrame | None:
    """The rows of earlier runs in ``results``; ``None``: the folder does not exist."""
    from pyspark.errors import AnalysisException  # noqa: PLC0415 (loaded with a session only)

    try:
        return spark.read.schema(schema).parquet(results)
    except AnalysisException as error:
        if error.getCondition() != "PATH_NOT_FOUND":
            raise
        return None


def _parallelism(spark: SparkSession) -> int:
    """Default parallelism: the number of partitions of a range. Uses only DataFrames, for Spark Connect."""
    from pyspark.sql import functions as F  # noqa: N812, PLC0415 (loaded with a session only; its usual name)

    [(last,)] = spark.range(_MANY).select(F.spark_partition_id().alias("part")).agg(F.max("part")).collect()
    return int(last) + 1


def _run(spark: SparkSession, pieces: Sequence[str], work: Work, schema: str, tasks: int) -> DataFrame:
    def each(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            rows = list(work(batch.column(0).to_pylist()))
            columns = list(zip(*rows, strict=True)) if rows else [()] * len(wanted.names)
            yield pa.RecordBatch.from_arrays(
                [pa.array(list(values), kind) for values, kind in zip(columns, wanted.types, strict=True)],
                names=wanted.names,
            )

    from pyspark.sql.pandas.types import to_arrow_schema  # noqa: PLC0415 (loaded with a session only)

    wanted = to_arrow_schema(spark.createDataFrame([], schema).schema, timezone="UTC")
    frame = spark.createDataFrame([(piece,) for piece in pieces], "piece STRING")
    return frame.repartition(min(tasks, max(1, len(pieces)))).mapInArrow(each, schema)
