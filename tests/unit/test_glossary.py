"""docs/understand/glossary.md: terms in alphabetical order, each once, and none missing that other pages use."""

import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs/understand/glossary.md"
WORDS = re.findall(r"^\| \*\*(.+?)\*\* \|", PAGE.read_text(), re.MULTILINE)
PROCESSES = {"bookie", "console", "gateway", "offloader"}
OF_SECURITY = {"authority", "principal", "role", "sealed", "token"}
OF_UPKEEP = {"auditor", "compaction", "replicator", "scrub"}
OF_STREAMS = {"chapter", "namespace", "stream", "subscription"}


def plain(word: str) -> str:
    """The sort key of a term."""
    return word.partition(" (")[0].replace("-", " ").lower()


def test_words_are_in_the_order_of_the_alphabet_and_each_is_there_once():
    found = [plain(word) for word in WORDS]
    assert len(found) > 70
    assert found == sorted(set(found))


def test_words_that_other_pages_take_for_known_are_there():
    assert {plain(word) for word in WORDS} >= PROCESSES | OF_SECURITY | OF_UPKEEP | OF_STREAMS
