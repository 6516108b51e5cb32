"""docs/project/lessons.md and the tests agree: every row has a test with its id, every id has a row."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TABLE = ROOT / "docs" / "project" / "lessons.md"

IDS = r"((?:[cefjr]\d\d_)+)"
ROW = re.compile(r"^\| ([CEFJR]\d\d) \| [^|]+ \| [^|]+ \| (`[^|]+`) \|$", re.MULTILINE)


def ids_of(prefix: str) -> set[str]:
    return {name.upper() for name in prefix.strip("_").split("_")}


def ids_by_place() -> dict[str, set[str]]:
    """The ids that each test function and each dialogue carries, by its place as the table writes it."""
    places = {}
    for file in sorted((ROOT / "tests").rglob("*.py")):
        for name, prefix in re.findall(rf"def (test_{IDS}\w+)\(", file.read_text()):
            places[f"{file.relative_to(ROOT)}::{name}"] = ids_of(prefix)
    for file in sorted((ROOT / "tests" / "scenario").rglob("*.txt")):
        if found := re.match(IDS, file.name):
            places[str(file.relative_to(ROOT))] = ids_of(found[1])
    return places


def rows() -> dict[str, list[str]]:
    """The tests that the table names, by id."""
    return {name: re.findall(r"`([^`]+)`", cell) for name, cell in ROW.findall(TABLE.read_text())}


def test_every_line_of_the_tables_is_understood_and_no_id_comes_twice():
    lines = re.findall(r"^\| [A-Z]\d\d .*$", TABLE.read_text(), re.MULTILINE)
    assert [line for line in lines if not ROW.match(line)] == []
    assert len(rows()) == len(lines) > 70


def test_every_lesson_has_a_test_and_every_test_with_an_id_has_a_lesson():
    tested = set().union(*ids_by_place().values())
    assert sorted(set(rows()) - tested) == [], "rows of docs/project/lessons.md without a test that carries their id"
    assert sorted(tested - set(rows())) == [], "ids of tests without a row in docs/project/lessons.md"


def test_the_tests_that_the_table_names_are_there_and_carry_the_id():
    places = ids_by_place()
    named = [(name, place) for name, cell in rows().items() for place in cell]
    assert [each for each in named if each[0] not in places.get(each[1], ())] == []
