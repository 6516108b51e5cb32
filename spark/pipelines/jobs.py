"""Jobs over a list of pieces, a chunk at a time: what is done is kept, and a later run leaves it out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final, TypeAlias

import pyarrow as pa

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Work: TypeAlias = Callable[[Sequence[str]], Iterable[tuple[object, ...]]]
"""Does pieces, each described by a text, one after the other on an executor; a row, or more, for each."""

_MANY: Final = 1 << 16
"""More rows than any cluster has cores."""
PIECES_PER_TASK: Final = 4
"""In one job: a job that is cut off has to be done again."""


def run_in_chunks(
    spark: SparkSession, pieces: Sequence[str], work: Work, schema: str, *, results: str | None
) -> DataFrame:
    """What ``work`` makes of all pieces.

    Args:
        schema: of its rows, in Spark's DDL.
        results: folder of Parquet files that rows are added to after each chunk; without it, nothing is done until
            the table is used, and then again each time.

    Returns:
        The rows of all pieces; with ``results``, all that are there.
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
    """What earlier runs have left in ``results``; ``None`` if there is no such folder."""
    from pyspark.errors import AnalysisException  # noqa: PLC0415 (loaded with a session only)

    try:
        return spark.read.schema(schema).parquet(results)
    except AnalysisException as error:
        if error.getCondition() != "PATH_NOT_FOUND":
            raise
        return None


def _parallelism(spark: SparkSession) -> int:
    """Tasks that run at a time: what a range is cut into. By DataFrames alone, as Spark Connect has nothing else."""
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
