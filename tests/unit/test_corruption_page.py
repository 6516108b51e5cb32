"""docs/reference/damage.md and the tests agree: each kind of record has a row with existing tests."""

import re

from ..formats import FORMATS
from .pages import ROOT, Page

PAGE = Page("docs/reference/damage.md", "record")

LINES_OF = {
    "batch": {"batch"},
    "superblock of a journal": {"superblock"},
    "segment and block of a journal": {"segment header", "block header", "padding, unused space"},
    "record of a journal": {"BATCH, FENCE, LEDGER_KEY, EXPLICIT_LAC, DELETE, LEDGER_IDENTITY"},
    "entry log": {"log header", "table of a stretch", "footer, with its ledger map", "padding"},
    "lengths of entry logs": {"lengths of the logs"},
    "row and state in the index": {"location row", "ledger-state row"},
    "state of a ledger": {"ledger-state row"},
    "mark of the index": {"mark"},
    "cookie": {"cookie"},
    "format file": {"FORMAT"},
    "cookie of a place": {"cookie of a storage directory"},
    "limbo marker": {"limbo"},
    "note of the scrub": {"scrub note"},
    "run file": {"run file"},
    "ledger and live bookie": {"ledger metadata value", "receipt of the archive"},
    "sink": {"sink"},
    "place of the archive": {"location and encryption of the archive"},
    "sealing of the archive": {"location and encryption of the archive"},
    "sealed object": {"key of an encrypted object", "frames of an encrypted object"},
    "keys of an archive": {"key file"},
    "leader, repair, offloader": {"leader, repair, offloader", "older copy of the metadata, as reported by bookies"},
    "archive object": {"archive data page", "archive index", "archive footer"},
    "manifest of the archive": {"manifest of the archive, records of streams"},
    "records of streams in the archive": {"manifest of the archive, records of streams"},
    "name of a stream": {"name of a stream, namespace, subscription"},
    "stream and chapter": {"stream and chapter"},
    "namespace": {"name of a stream, namespace, subscription"},
    "subscription": {"name of a stream, namespace, subscription"},
    "delivery": {"delivery"},
    "envelope": {"envelope"},
    "Spark offset over ledgers": {"Spark offset for ledgers, and for streams"},
    "Spark offset over streams": {"Spark offset for ledgers, and for streams"},
    "snapshot": {"snapshot"},
}
"""The rows of the page for each format."""

NOT_OURS = {"SQLite schema", "ZooKeeper layout", "wire"}
"""In files of another program, or not stored."""

BESIDE = {
    "sectors that belong elsewhere, or are stale",
    "a log that is truncated or missing, sectors that belong elsewhere",
    "tables and files of the database",
    "lock file",
}
"""Damage that is not one record's, and files that have no format."""


def test_every_format_has_its_lines_and_nothing_else_has() -> None:
    assert LINES_OF.keys() | NOT_OURS == FORMATS.keys()
    assert PAGE.rows().keys() == set().union(*LINES_OF.values()) | BESIDE


def test_every_test_that_the_page_names_is_there_and_each_line_has_one() -> None:
    PAGE.check_tests()


def test_every_kind_of_journal_record_is_in_the_table() -> None:
    text = (ROOT / "bookie" / "journal" / "format.py").read_text("utf-8")
    kinds = set(re.findall(r"^KIND_(\w+): Final", text, re.MULTILINE))
    assert kinds
    assert kinds <= set(re.findall(r"[A-Z_]+", " ".join(PAGE.rows())))


def test_every_file_of_a_data_directory_is_in_the_table() -> None:
    text = (ROOT / "docs" / "reference" / "formats" / "cookie.md").read_text("utf-8")
    files = re.findall(r"^DIR/(\w+) ", text, re.MULTILINE)
    assert len(files) >= 5
    first_words = {record.split()[0].lower() for record in PAGE.rows()}
    assert {file.lower() for file in files} <= first_words
