"""Speed of Spark reading ledgers from the archive, compared with bare ``spark.read.parquet`` of the same objects.

    python -m tallybook.bench.archive.spark_load --metadata URI --archive DIRECTORY --ledger N --rounds 5

Each query alternates between bare Parquet, ``read_ledgers``, ``format("tallybook")``, the same with option ``columns``,
and for payloads ``format("floor")``, the least that a Python data source costs. Prints one line of JSON: the median
seconds of each, and the speed relative to bare Parquet.
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

    from pyspark.sql import DataFrame, Row, SparkSession

WAYS: Final = {
    "count": ("parquet", "read_ledgers", "format", "columns"),
    "payload": ("parquet", "read_ledgers", "format", "columns", "floor"),
    "range": ("parquet", "read_ledgers", "format"),
}
"""For each question the ways in which it is asked; the first one is the measure of the others."""
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
    spent: dict[tuple[str, str], list[float]] = {(each, way): [] for each, ways in WAYS.items() for way in ways}
    receipts = _receipts(spark, metadata, ledger)
    paths = [f"file://{archive}/{row['key']}" for row in receipts]
    questions = _questions(spark, metadata, paths, ledger, receipts[0]["entries"], receipts[0]["payload_bytes"])
    # The first round warms up Spark's code generation and the page cache.
    for number in range(rounds + 1):
        answers: dict[str, set[Any]] = {}
        for (question, way), ask in questions.items():
            began = time.monotonic()
            answers.setdefault(question, set()).add(ask())
            if number:
                spent[question, way].append(time.monotonic() - began)
        if any(len(found) != 1 for found in answers.values()):
            raise SystemExit(f"the results differ: {answers}")
    found = {f"{question}_{way}_s": round(median(times), 3) for (question, way), times in spent.items()}
    for question, (bare, *others) in WAYS.items():
        for way in others:
            pairs = zip(spent[question, bare], spent[question, way], strict=True)
            found[f"{question}_{way}_ratio"] = round(median([one / other for one, other in pairs]), 3)
    return found


def _receipts(spark: SparkSession, metadata: str, ledger: int) -> list[Row]:
    """The receipts of the objects with the ledger."""
    from tallybook.spark import TallybookDataSource  # noqa: PLC0415

    from .spark_floor import FloorSource  # noqa: PLC0415

    spark.dataSource.register(TallybookDataSource)
    spark.dataSource.register(FloorSource)
    return _table(spark, metadata, table="receipts", ledger=ledger).collect()


def _table(spark: SparkSession, metadata: str, **options: object) -> DataFrame:
    texts = {name: str(value) for name, value in options.items()}
    return spark.read.format("tallybook").option("metadata", metadata).options(**texts).load()


def _questions(
    spark: SparkSession, metadata: str, paths: list[str], ledger: int, entries: int, payload_bytes: int
) -> dict[tuple[str, str], Callable[[], Any]]:
    from pyspark.sql import functions as F  # noqa: N812, PLC0415 (its usual name)

    from tallybook.spark import read_ledgers  # noqa: PLC0415

    first = (entries - 1) // 2
    end = min(entries, first + _RANGE_ENTRIES) - 1
    within = f"entry_id BETWEEN {first} AND {end}"

    def bare() -> DataFrame:
        return spark.read.parquet(*paths).where(f"ledger_id = {ledger}")

    def native() -> DataFrame:
        return read_ledgers(spark, metadata, ledger=ledger)

    def source(**options: object) -> DataFrame:
        return _table(spark, metadata, ledger=ledger, **options)

    def floor() -> DataFrame:
        return spark.read.format("floor").options(rows=entries, payload_bytes=payload_bytes // entries).load()

    size = F.sum(F.length("payload"))
    return {
        ("count", "parquet"): lambda: bare().count(),
        ("count", "read_ledgers"): lambda: native().count(),
        ("count", "format"): lambda: source().count(),
        ("count", "columns"): lambda: source(columns="entry_id").count(),
        ("payload", "parquet"): lambda: bare().agg(size).first(),
        ("payload", "read_ledgers"): lambda: native().agg(size).first(),
        ("payload", "format"): lambda: source().agg(size).first(),
        ("payload", "columns"): lambda: source(columns="payload").agg(size).first(),
        ("payload", "floor"): lambda: floor().agg(size).first(),
        ("range", "parquet"): lambda: bare().where(within).agg(size).first(),
        ("range", "read_ledgers"): lambda: native().where(within).agg(size).first(),
        ("range", "format"): lambda: source(startingEntry=first, endingEntry=end).agg(size).first(),
    }


if __name__ == "__main__":
    typer.run(main)
