"""The pages of docs/operate/runbook/ quote messages of the code literally; every entry has the same structure."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from tallybook.core import errors

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "docs/operate/runbook").glob("*.md"))
INDEX = ROOT / "docs/operate/runbook/README.md"
PARTS = ("archive", "bookie", "cli", "client", "core", "gateway", "metadata", "offload", "repair", "runtime", "stream")
VARIES = re.compile(r"DIR(?:/\w+)+(?![\w.])|\w+-NAME|\.\.\.|\S+\.(?:crt|key|toml)|\b[A-Z]+\b|\d+%?")
"""Placeholders on the page for varying parts: ``...``, a file, ``DIR`` and what is in it, a number."""
VALUE = "\0"
"""Placeholders for a value in a text of the source."""


@cache
def texts() -> tuple[str, ...]:
    """Every text in the code of the product, with ``VALUE`` for what is put into it."""
    found: set[str] = set()
    for file in (file for part in PARTS for file in (ROOT / part).rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            match node:
                case ast.Constant(value=str(text)):
                    found.add(text)
                case ast.JoinedStr(values=values):
                    found.add("".join(str(each.value) if isinstance(each, ast.Constant) else VALUE for each in values))
    return tuple(found)


def is_said(message: str) -> bool:
    """Whether the product has a text with this message in it, or an error of this name."""
    if message.isidentifier():
        return hasattr(errors, message)
    parts = VARIES.split(message)
    pattern = re.compile(".*?".join(map(re.escape, parts)), re.DOTALL)
    return any(pattern.search(text) for text in texts() if all(part in text for part in parts))


def prose(page: str) -> str:
    """A page without its blocks of code, each paragraph on one line."""
    kept = re.sub(r"^```.*?^```$", "", page, flags=re.MULTILINE | re.DOTALL)
    lines = [line for line in kept.split("\n") if not line.startswith("    ")]
    return re.sub(r"(?<=[^\n|])\n(?=[^\n|])", " ", "\n".join(lines))


def quoted(page: str) -> list[str]:
    """Messages that a page quotes: all that is in quotation marks, and code in the first column of messages."""
    text = prose(page)
    tables = re.findall(r"^\| message \|.*\n\|[-|]+\n((?:\|.*\n)+)", text, re.MULTILINE)
    cells = [re.split(r"(?<!\\)\|", row)[1] for table in tables for row in table.splitlines()]
    sentences = re.sub(r"`[^`]*`", "", text)
    codes = [message for cell in cells for message in re.findall(r"`([^`]+)`", cell)]
    return re.findall(r'"([^"]+)"', sentences) + codes


def entries(page: str) -> dict[str, str]:
    """The entries of the page, by their headings."""
    return dict(re.findall(r"^## ([^\n]+)\n(.*?)(?=^## |\Z)", page, re.MULTILINE | re.DOTALL))


def entries_of_all_pages() -> list[tuple[str, str]]:
    """The entries of all pages but the index."""
    return [entry for page in PAGES if page != INDEX for entry in entries(page.read_text()).items()]


def test_every_message_that_is_quoted_is_one_that_the_code_has():
    found = [message for page in PAGES for message in quoted(page.read_text())]
    assert len(found) > 30
    assert [message for message in found if not is_said(message)] == []


@pytest.mark.parametrize(
    ("message", "said"),
    [
        ("journal damaged", True),
        ("in limbo until repaired: the journal lost records", True),
        ("accepts no writes: its disk is 96% full", True),
        ("... is registered with another directory ...", True),
        ("NotEnoughBookies", True),
        ("the journal is damaged: FILE at OFFSET", False),
        ("TooFewBookies", False),
    ],
)
def test_a_message_that_no_code_has_is_found(message, said):
    assert is_said(message) == said


def test_messages_are_found_in_sentences_and_in_tables_and_not_in_blocks():
    page = 'See "one\ntwo", `x = "no"`.\n\n    echo "three"\n\n'
    page += "| message | do |\n|---|---|\n| `four` and `five` | `six` |\n"
    assert quoted(page) == ["one two", "four", "five"]


def test_the_index_has_every_entry():
    listed = re.findall(r"\((\w[\w-]*\.md)#", INDEX.read_text().partition("## Check a cluster")[0])
    for page in PAGES:
        if page != INDEX:
            # One more link may be in a sentence.
            assert listed.count(page.name) in {len(entries(page.read_text())), len(entries(page.read_text())) + 1}


@pytest.mark.parametrize(("heading", "text"), entries_of_all_pages())
def test_an_entry_begins_its_paragraphs_with_the_same_words_as_all_others(heading, text):
    words = re.findall(r"^\*([^*]+)\*", text, re.MULTILINE)
    assert set(words) <= {"Symptom:", "Meaning:", "When:", "Do:", "Do not"}
    assert words or "| do |" in text or "| means | do |" in text, "what is there to do?"
