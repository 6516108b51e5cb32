"""The Spark query of the demo: a separate process, because it starts a JVM, which logs to standard error.

Prints one line of JSON: the mean departure delay of each carrier, by Spark from the archive and by pandas from the
source; whether they are equal; and what Spark scans.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import math
import os
import re
import sys
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MODULE: Final = "tallybook.cli.demo.spark"
"""The name of this module, for ``python -m``."""


def main() -> None:
    """Run both queries, and compare the results."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--metadata", required=True)
    parser.add_argument("--flights", required=True)
    parser.add_argument("--count", type=int, required=True)
    parser.add_argument("--scratch", required=True)
    given = parser.parse_args()
    by_spark, plan = _by_spark(given.metadata, given.scratch)
    by_pandas = _by_pandas(given.flights, given.count)
    same = by_spark.keys() == by_pandas.keys() and all(
        found[0] == by_pandas[carrier][0] and math.isclose(found[1], by_pandas[carrier][1], rel_tol=1e-12)
        for carrier, found in by_spark.items()
    )
    print(json.dumps({"by_spark": by_spark, "by_pandas": by_pandas, "same": same, "plan": plan}))


def _by_spark(metadata: str, scratch: str) -> tuple[dict[str, tuple[int, float]], list[str]]:
    """Flights with a known delay and their mean delay, by carrier; and the scans of the plan."""
    from pyspark.sql import functions as F  # noqa: N812, PLC0415 (its usual name)

    from tallybook.spark import read_ledgers  # noqa: PLC0415

    spark = spark_session(scratch)
    try:
        flights = read_ledgers(spark, metadata)
        parsed = flights.select(
            F.from_json(F.col("payload").cast("string"), "carrier STRING, dep_delay DOUBLE").alias("f")
        )
        delays = (
            parsed.where("f.dep_delay IS NOT NULL")
            .groupBy("f.carrier")
            .agg(F.count("*").alias("flights"), F.avg("f.dep_delay").alias("delay"))
        )
        found = {row["carrier"]: (row["flights"], row["delay"]) for row in delays.collect()}
        with contextlib.redirect_stdout(io.StringIO()) as shown:
            delays.explain()
        scans = _scans(shown.getvalue())
    finally:
        spark.stop()
    return found, scans


def spark_session(scratch: str) -> SparkSession:
    """Spark on this machine.

    Args:
        scratch: folder for what it has to put somewhere.
    """
    from pyspark.sql import SparkSession  # noqa: PLC0415

    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    builder: Any = SparkSession.builder
    started: SparkSession = (
        builder.master("local[2]")
        .appName("tallybook demo")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.local.dir", scratch)
        .config("spark.sql.warehouse.dir", f"{scratch}/warehouse")
        .getOrCreate()
    )
    return started


def _scans(plan: str) -> list[str]:
    """The sources, filters and columns of a plan's scans: ``EXPLAIN`` shows each as one long line."""
    found = dict[str, None]()
    for line in plan.splitlines():
        scan = re.search(r"(FileScan \w+|BatchScan \w+)", line)
        if scan is not None:
            facts = re.findall(r"(?:Location|PushedFilters|ReadSchema): [^ ]+(?: paths\)[^ ,]+)?", line)
            found[", ".join([scan[0], *(fact.rstrip(",") for fact in facts)])] = None
    return list(found)


def _by_pandas(file: str, count: int) -> dict[str, tuple[int, float]]:
    import pandas as pd  # noqa: PLC0415

    frame = pd.read_csv(file, nrows=count, usecols=["carrier", "dep_delay"]).dropna()
    delays = frame.groupby("carrier")["dep_delay"].agg(["count", "mean"])
    return {str(carrier): (int(row["count"]), float(row["mean"])) for carrier, row in delays.iterrows()}


if __name__ == "__main__":
    main()
