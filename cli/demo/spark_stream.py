"""The Spark query on the demo's stream: counts flights by carrier while they arrive.

A separate process, as ``spark``. It prints a line of JSON after each micro-batch, and ends once it has counted
``--count`` flights.
"""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING, Final

from .spark import spark_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

MODULE: Final = "tallybook.cli.demo.spark_stream"
"""The name of this module, for ``python -m``."""


def main() -> None:
    """Run the query, and print a line after each micro-batch."""
    from pyspark.sql import functions as F  # noqa: N812, PLC0415 (its usual name)

    from tallybook.spark import TallybookDataSource  # noqa: PLC0415

    parser = argparse.ArgumentParser()
    parser.add_argument("--metadata", required=True)
    parser.add_argument("--stream", required=True)
    parser.add_argument("--count", type=int, required=True)
    parser.add_argument("--scratch", required=True)
    given = parser.parse_args()
    spark = spark_session(given.scratch)
    counted = 0

    def show_batch(batch: DataFrame, number: int) -> None:
        nonlocal counted
        found = {row["carrier"]: row["count"] for row in batch.collect()}
        counted = sum(found.values())
        print(json.dumps({"batch": number, "flights": counted, "carriers": found}), flush=True)

    try:
        spark.dataSource.register(TallybookDataSource)
        records = (
            spark.readStream.format("tallybook")
            .option("metadata", given.metadata)
            .option("stream", given.stream)
            .load()
        )
        carriers = records.select(F.get_json_object(F.col("payload").cast("string"), "$.carrier").alias("carrier"))
        query = (
            carriers.groupBy("carrier")
            .count()
            .writeStream.outputMode("complete")
            .option("checkpointLocation", f"{given.scratch}/checkpoint")
            .foreachBatch(show_batch)
            .start()
        )
        while counted < given.count and not query.awaitTermination(1):
            continue
        query.stop()
    finally:
        spark.stop()


if __name__ == "__main__":
    main()
