"""Queries of a part of thousands of objects: Spark gets no filter condition too large to evaluate."""

import pytest

from tallybook.core.ranges import LedgerEntryRange
from tallybook.spark.ledgers.row_selection import FILE, MAX_CONDITIONS, ScannedObject, chosen_rows

pytestmark = pytest.mark.nightly


def partly_wanted(number: int) -> ScannedObject:
    """An object with three ledgers: one is wanted, one in part, and one is elsewhere by now."""
    first = 3 * number
    held = tuple(LedgerEntryRange(first + each, 0, 9) for each in range(3))
    return ScannedObject(f"sets/{number}.parquet", (held[0], LedgerEntryRange(first + 1, 2, 3)), held)


@pytest.mark.parametrize("objects", [1, MAX_CONDITIONS // 2, 3_000])
def test_the_needed_objects_are_chosen_among_any_number(spark, objects):
    wanted = [partly_wanted(number) for number in range(objects)]
    table = spark.range(0, 30 * objects, 1, 2).selectExpr(
        "id DIV 10 AS ledger_id", "id % 10 AS entry_id", f"concat(id DIV 30, '.parquet') AS {FILE}"
    )
    # In another object there are the same ledgers, too.
    table = table.unionByName(table.selectExpr("ledger_id", "entry_id", f"'other.parquet' AS {FILE}"))
    found = chosen_rows(table, wanted)
    assert "Exchange hashpartitioning" not in found._jdf.queryExecution().toString(), "the rows stay where they are"
    expected = [(3 * number, entry) for number in range(objects) for entry in range(10)]
    expected += [(3 * number + 1, entry) for number in range(objects) for entry in (2, 3)]
    assert sorted((row.ledger_id, row.entry_id) for row in found.collect()) == sorted(expected)
