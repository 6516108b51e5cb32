"""Selects what of a query Spark's Parquet reader scans: the ledgers it can read, and the wanted rows of their objects.

A few ranges become a filter condition, which lets Parquet skip row groups. Many ranges would be slow to evaluate per
row and too deep an expression tree for Spark, so they become a table that is joined.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from tallybook.core.ranges import LedgerEntryRange

from ..options import ReadOptions
from ..query.partitions import PlannedRange

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

FILE: Final = "_file"
"""Column with the name of the file that a row came from, without its folder."""

MAX_CONDITIONS: Final = 64
"""Maximum number of ranges in a filter condition."""


@dataclass(frozen=True, slots=True)
class ScannedObject:
    """An archive object that Spark scans, with the wanted ranges of entries."""

    key: str
    wanted: tuple[LedgerEntryRange, ...]
    held: tuple[LedgerEntryRange, ...]
    """All entries in the object."""


NOT_IN_ITS_OBJECT: Final = "in an object that is encrypted, damaged or gone"
"""A reason as of ``why_not_scanned``, found out by reading the object's index."""

GONE: Final = {"lost": "lost", "trimmed": "deleted"}
"""Reasons for ledgers without any entry left, by the kind of the gap that ``failOnDataLoss=false`` reports."""


def why_not_scanned(planned: PlannedRange, options: ReadOptions) -> str:
    """Why Spark's Parquet reader cannot read the entries of a ledger; empty: it can, if their object is as recorded."""
    if options.tier == "bookies":
        return "with option tier=bookies"
    if planned.receipt is None:
        return "not in the archive"
    if not planned.scannable:
        return "with HMAC digests to check"
    return "" if options.leaves_archive_to_spark else "with credentials in the options"


def explanation(reasons: Iterable[str]) -> str:
    """Text for EXPLAIN about the ledgers that Spark's Parquet reader cannot read, from a reason for each of them."""
    counts = sorted(Counter(reasons).items())
    return "read in Python: " + ", ".join(f"{count} ledger{'s' * (count > 1)} {why}" for why, count in counts)


def chosen_rows(frame: DataFrame, objects: Sequence[ScannedObject]) -> DataFrame:
    """The wanted rows of ``frame``, which has all rows of ``objects``."""
    if sum(len(each.wanted) for each in objects) <= MAX_CONDITIONS:
        return frame.where(reduce(or_, map(_condition, objects)))
    return _joined(frame, objects)


def _condition(found: ScannedObject) -> Column:
    """The condition for the wanted rows of one file."""
    from pyspark.sql import functions as F  # noqa: N812, PLC0415 (its usual name)

    entire = [wanted.ledger_id for wanted in found.wanted if wanted in found.held]
    ranges = [F.col("ledger_id").isin(entire)] if entire else []
    ranges += [
        (F.col("ledger_id") == wanted.ledger_id) & F.col("entry_id").between(wanted.first, wanted.last)
        for wanted in found.wanted
        if wanted not in found.held
    ]
    return (F.col(FILE) == _name(found)) & reduce(or_, ranges)


def _joined(frame: DataFrame, objects: Sequence[ScannedObject]) -> DataFrame:
    from pyspark.sql import functions as F  # noqa: N812, PLC0415 (its usual name)

    rows = [(_name(each), *wanted) for each in objects for wanted in each.wanted]
    names = ["_wanted_file", "_wanted_ledger", "_first", "_last"]
    table = pa.table([pa.array(column) for column in zip(*rows, strict=True)], names=names)
    ledgers = table["_wanted_ledger"].to_pylist()
    wanted = F.broadcast(frame.sparkSession.createDataFrame(table))
    within = F.col("entry_id").between(F.col("_first"), F.col("_last"))
    here = (F.col(FILE) == F.col("_wanted_file")) & (F.col("ledger_id") == F.col("_wanted_ledger"))
    # The join's condition is not pushed down to Parquet; this filter is, and lets it skip row groups at both ends.
    bounded = frame.where(F.col("ledger_id").between(min(ledgers), max(ledgers)))
    return bounded.join(wanted, here & within, "left_semi")


def _name(found: ScannedObject) -> str:
    return found.key.rpartition("/")[2]
