"""Speed of Spark reading ledgers from the archive, compared with bare ``spark.read.parquet`` of the same objects.

    python -m tallybook.bench.archive.spark_load --metadata URI --archive DIRECTORY --ledger N --rounds 5

Each query alternates between bare Parquet, ``read_ledgers`` and ``format("tallybook")``. Prints one line of JSON: the
median seconds of each, and the speed relative to bare Parquet.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from tallybook.cli.measure.latency import median

from ..equipment.programs import print_json_line
from ..gates import Figures

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession

QUESTIONS: Final = ("count", "payload", "range")
WAYS: Final = ("parquet", "read_ledgers", "format")
_RANGE_ENTRIES: Final = 1_000


def main(
    metadata: Annotated[str, typer.Option(help="URI of the metadata store.")],
    archive: Annotated[Path, typer.Option(help="Directory of the archive.")],
    ledger: Annotated[int, typer.Option(help="An archived ledger.")],
    rounds: Annotated[int, typer.Option(help="How often each question is asked in each way.")] = 5,
) -> None:
    """Measure, and print the figures."""
    spark = _session()
    try:
        print_json_line(_measured(spark, metadata, archive, ledger, rounds))
    finally:
        spark.stop()


def _session() -> SparkSession:
    from pyspark.sql import SparkSession  # noqa: PLC0415

    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    builder: Any = SparkSession.builder
    session: SparkSession = (
        builder.master("local[2]")
        .config("spark.driver.memory", "3g")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .getOrCreate()
    )
    return session


def _measured(spark: SparkSession, metadata: str, archive: Path, ledger: int, rounds: int) -> Figures:
    spent: dict[tuple[str, str], list[float]] = {(each, way): [] for each in QUESTIONS for way in WAYS}
    paths, last = _objects(spark, metadata, archive, ledger)
    questions = _questions(spark, metadata, paths, ledger, last)
    # The first round warms up Spark's code generation and the page cache.
    for number in range(rounds + 1):
        answers: dict[str, set[Any]] = {}
        for (question, way), ask in questions.items():
            began = time.monotonic()
            answers.setdefault(question, set()).add(ask())
            if number:
                spent[question, way].append(time.monotonic() - began)
        if any(len(found) != 1 for found in answers.values()):
            raise SystemExit(f"the results of the three ways differ: {answers}")
    found = {f"{question}_{way}_s": round(median(times), 3) for (question, way), times in spent.items()}
    for question in QUESTIONS:
        pairs = zip(*(spent[question, way] for way in WAYS), strict=True)
        ratios = [(bare / native, bare / source) for bare, native, source in pairs]
        found[f"{question}_read_ledgers_ratio"] = round(median([native for native, _ in ratios]), 3)
        found[f"{question}_format_ratio"] = round(median([source for _, source in ratios]), 3)
    return found


def _objects(spark: SparkSession, metadata: str, archive: Path, ledger: int) -> tuple[list[str], int]:
    """The files with the ledger, and its last entry."""
    from tallybook.spark import TallybookDataSource  # noqa: PLC0415

    spark.dataSource.register(TallybookDataSource)
    receipts = _table(spark, metadata, table="receipts", ledger=ledger).collect()
    return [f"file://{archive}/{row['key']}" for row in receipts], receipts[0]["entries"] - 1


def _table(spark: SparkSession, metadata: str, **options: object) -> DataFrame:
    texts = {name: str(value) for name, value in options.items()}
    return spark.read.format("tallybook").option("metadata", metadata).options(**texts).load()


def _questions(
    spark: SparkSession, metadata: str, paths: list[str], ledger: int, last: int
) -> dict[tuple[str, str], Callable[[], Any]]:
    from pyspark.sql import functions as F  # noqa: N812, PLC0415 (its usual name)

    from tallybook.spark import read_ledgers  # noqa: PLC0415

    first, end = last // 2, min(last, last // 2 + _RANGE_ENTRIES - 1)
    within = f"entry_id BETWEEN {first} AND {end}"

    def bare() -> DataFrame:
        return spark.read.parquet(*paths).where(f"ledger_id = {ledger}")

    def native() -> DataFrame:
        return read_ledgers(spark, metadata, ledger=ledger)

    def source(**bounds: int) -> DataFrame:
        return _table(spark, metadata, ledger=ledger, **bounds)

    size = F.sum(F.length("payload"))
    return {
        ("count", "parquet"): lambda: bare().count(),
        ("count", "read_ledgers"): lambda: native().count(),
        ("count", "format"): lambda: source().count(),
        ("payload", "parquet"): lambda: bare().agg(size).first(),
        ("payload", "read_ledgers"): lambda: native().agg(size).first(),
        ("payload", "format"): lambda: source().agg(size).first(),
        ("range", "parquet"): lambda: bare().where(within).agg(size).first(),
        ("range", "read_ledgers"): lambda: native().where(within).agg(size).first(),
        ("range", "format"): lambda: source(startingEntry=first, endingEntry=end).agg(size).first(),
    }


if __name__ == "__main__":
    typer.run(main)
