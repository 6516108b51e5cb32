"""The rows that are wanted of archive objects which hold more, chosen by Spark itself.

A few are told as a condition, which Parquet takes to leave out row groups. For many, a condition would have to be gone
through for every row, and as a tree it is deeper than what Spark can walk: they are a table, which is joined.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from tallybook.archive.entry_range import EntryRange

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

FILE: Final = "_file"
"""Column with the name of the file that a row came from, without its folder."""

MOST_CONDITIONS: Final = 64
"""Ranges that are told as a condition."""


@dataclass(frozen=True, slots=True)
class WantedObject:
    """An archive object that Spark scans, and what of it is wanted."""

    key: str
    wanted: tuple[EntryRange, ...]
    held: tuple[EntryRange, ...]
    """All that it holds."""


def chosen_rows(frame: DataFrame, objects: Sequence[WantedObject]) -> DataFrame:
    """The rows of ``frame``, which has all that is in ``objects``, that are wanted."""
    if sum(len(each.wanted) for each in objects) <= MOST_CONDITIONS:
        return frame.where(reduce(or_, map(_condition, objects)))
    return _joined(frame, objects)


def _condition(found: WantedObject) -> Column:
    """What is wanted of one file."""
    from pyspark.sql import functions as F  # noqa: N812, PLC0415 (its usual name)

    entire = [wanted.ledger_id for wanted in found.wanted if wanted in found.held]
    ranges = [F.col("ledger_id").isin(entire)] if entire else []
    ranges += [
        (F.col("ledger_id") == wanted.ledger_id) & F.col("entry_id").between(wanted.first, wanted.last)
        for wanted in found.wanted
        if wanted not in found.held
    ]
    return (F.col(FILE) == _name(found)) & reduce(or_, ranges)


def _joined(frame: DataFrame, objects: Sequence[WantedObject]) -> DataFrame:
    from pyspark.sql import functions as F  # noqa: N812, PLC0415 (its usual name)

    rows = [(_name(each), *wanted) for each in objects for wanted in each.wanted]
    names = ["_wanted_file", "_wanted_ledger", "_first", "_last"]
    table = pa.table([pa.array(column) for column in zip(*rows, strict=True)], names=names)
    ledgers = table["_wanted_ledger"].to_pylist()
    wanted = F.broadcast(frame.sparkSession.createDataFrame(table))
    within = F.col("entry_id").between(F.col("_first"), F.col("_last"))
    here = (F.col(FILE) == F.col("_wanted_file")) & (F.col("ledger_id") == F.col("_wanted_ledger"))
    # What the join finds by itself does not reach Parquet, which can leave out row groups at either end.
    bounded = frame.where(F.col("ledger_id").between(min(ledgers), max(ledgers)))
    return bounded.join(wanted, here & within, "left_semi")


def _name(found: WantedObject) -> str:
    return found.key.rpartition("/")[2]
