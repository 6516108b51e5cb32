"""Pipelines without Spark: objects that move during verification, and columns that become folders."""

import json
from pathlib import Path
from typing import Any

import pytest

from tallybook.core.errors import InvalidConfig
from tallybook.metadata.ledger.archived import IndexPart, Receipt
from tallybook.spark.options import LocationOptions
from tallybook.spark.pipelines.export import folder_columns
from tallybook.spark.pipelines.verify import _as_json, _verified, verify_current

KEY = "ledgers/0000000000000000001-00000000-0000-4000-8000-000000000001.parquet"


def receipt(key: str) -> Receipt:
    return Receipt(key, key, 9, bytes(32), IndexPart(0, 1, 1, 0), 1, 1, 0, 0)


def at(key: str, *ledger_ids: int) -> dict[int, Receipt]:
    return {ledger_id: receipt(key) for ledger_id in ledger_ids}


class Bucket:
    """Objects, those of them that are bad or gone, and where ledgers are by now."""

    def __init__(self, bad: set[str], now: dict[str, dict[int, Receipt]]) -> None:
        self.bad, self.now, self.checked = bad, now, list[tuple[str, tuple[int, ...]]]()
        self.not_in: dict[str, int] = {}

    async def check(self, key: str, receipts: Any) -> str:
        self.checked.append((key, tuple(receipts)))
        return f"{key} is bad" if key in self.bad or self.not_in.get(key) in receipts else ""

    async def current(self, _key: str, receipts: Any) -> dict[str, dict[int, Receipt]]:
        found = {key: {each: one for each, one in held.items() if each in receipts} for key, held in self.now.items()}
        return {key: held for key, held in found.items() if held}

    async def rows(self, planned: dict[str, dict[int, Receipt]]) -> list[tuple[str, tuple[int, ...], str]]:
        return [(key, tuple(held), why) async for key, held, why in verify_current(planned, self.check, self.current)]


async def test_an_object_that_was_merged_away_is_no_row_and_the_new_one_is_checked() -> None:
    bucket = Bucket({"a", "b"}, {"ab": at("ab", 1, 2)})
    planned = {"a": at("a", 1), "b": at("b", 2), "c": at("c", 3)}
    assert await bucket.rows(planned) == [("c", (3,), ""), ("ab", (1, 2), "")]
    assert [key for key, _ in bucket.checked] == ["a", "b", "c", "ab"]


async def test_what_is_wrong_counts_for_the_ledgers_that_are_still_there() -> None:
    bucket = Bucket({"a"}, {"a": at("a", 1), "b": at("b", 2)})
    assert await bucket.rows({"a": at("a", 1, 2, 3)}) == [("a", (1,), "a is bad"), ("b", (2,), "")]
    bucket = Bucket(set(), {"a": at("a", 1)})
    bucket.not_in["a"] = 3
    assert await bucket.rows({"a": at("a", 1, 3)}) == [("a", (1,), "")], "the ledger that it lacks has been deleted"
    still = Bucket({"a"}, {"a": at("a", 1)})
    assert await still.rows({"a": at("a", 1)}) == [("a", (1,), "a is bad")]


async def test_an_object_whose_ledgers_were_all_deleted_is_no_row() -> None:
    assert await Bucket({"a"}, {}).rows({"a": at("a", 1)}) == []


async def test_the_new_object_may_be_bad_or_have_moved_on_as_well() -> None:
    assert await Bucket({"a", "b"}, {"b": at("b", 1)}).rows({"a": at("a", 1)}) == [("b", (1,), "b is bad")]


def test_a_task_of_verify_that_finds_another_cluster_refuses(new_cluster, tmp_path: Path) -> None:
    """Else it would take objects that it does not find for those of deleted ledgers, and say nothing of them."""
    (tmp_path / "archive").mkdir()
    place = LocationOptions(new_cluster("other"), None)
    piece = json.dumps({"key": KEY, "receipts": _as_json(at(KEY, 1))})
    with pytest.raises(InvalidConfig, match=r"planned on cluster planned, and .* finds cluster other"):
        _verified(place, "planned", f"file://{tmp_path}/archive", 0, [piece])


def test_folders_are_by_day_by_default_if_there_is_one() -> None:
    assert folder_columns(None, ["line", "Day"]) == ["day"]
    assert folder_columns(None, ["line"]) == []
    assert folder_columns((), ["line", "day"]) == []
    assert folder_columns("carrier", ["Carrier"]) == ["carrier"]
    with pytest.raises(InvalidConfig, match=r"partition_by names day, month, and the output has line"):
        folder_columns(("day", "month"), ["line"])
