"""Thousands of objects of which a part is wanted: chosen by Spark without a condition that it cannot walk."""

import pytest

from tallybook.archive.entry_range import EntryRange
from tallybook.spark.choosing import FILE, MOST_CONDITIONS, WantedObject, chosen_rows


def partly_wanted(number: int) -> WantedObject:
    """An object with three ledgers: one is wanted, one in part, and one is elsewhere by now."""
    first = 3 * number
    held = tuple(EntryRange(first + each, 0, 9) for each in range(3))
    return WantedObject(f"sets/{number}.parquet", (held[0], EntryRange(first + 1, 2, 3)), held)


@pytest.mark.parametrize("objects", [1, MOST_CONDITIONS // 2, 3_000])
def test_what_is_wanted_of_many_objects_is_chosen_whatever_their_number(spark, objects):
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
