"""docs/corruption.md and the tests belong together: each kind of record is there, with tests that exist."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "corruption.md"
ROW = re.compile(r"^\| ([^|]+) \| [^|]+ \| [^|]+ \| (`[^|]+`) \|$", re.MULTILINE)

RECORDS = {
    "superblock",
    "segment header",
    "block header",
    "BATCH, FENCE, LEDGER_KEY, EXPLICIT_LAC, DELETE",
    "padding, unused space",
    "log header",
    "table of a stretch",
    "batch",
    "footer, with its ledger map",
    "padding",
    "lengths of the logs",
    "location row",
    "ledger-state row",
    "mark",
    "cookie",
    "FORMAT",
    "lock file",
    "limbo",
    "scrub note",
    "ledger metadata value",
    "receipt of the archive",
    "archive data page",
    "archive index",
    "archive footer",
}
"""Everything that is stored, where it is not a file of somebody else's database."""


def rows() -> dict[str, list[str]]:
    """The tests of each kind of record."""
    return {name: re.findall(r"`([^`]+)`", cell) for name, cell in ROW.findall(PAGE.read_text("utf-8"))}


def test_every_line_of_the_tables_is_understood_and_every_kind_of_record_has_one() -> None:
    lines = [line for line in PAGE.read_text("utf-8").splitlines() if line.startswith("| ")]
    assert len(rows()) == len(lines) - len([line for line in lines if line.startswith("| record |")])
    assert sorted(RECORDS - rows().keys()) == []


def test_every_test_that_the_page_names_is_there() -> None:
    for record, tests in rows().items():
        for test in tests:
            file, _, name = test.partition("::")
            assert re.search(rf"def {name}\(", (ROOT / file).read_text("utf-8")), (record, test)


def test_every_kind_of_journal_record_is_in_the_table() -> None:
    text = (ROOT / "bookie" / "journal" / "records.py").read_text("utf-8")
    kinds = set(re.findall(r"^KIND_(\w+): Final", text, re.MULTILINE))
    assert kinds
    assert kinds <= set(re.findall(r"[A-Z_]+", " ".join(rows())))


def test_every_file_of_a_data_directory_is_in_the_table() -> None:
    text = (ROOT / "bookie" / "directories.py").read_text("utf-8")
    files = re.findall(r"^    DIR/(\w+) ", text, re.MULTILINE)
    assert len(files) >= 5
    first_words = {record.split()[0].lower() for record in rows()}
    assert {file.lower() for file in files} <= first_words
