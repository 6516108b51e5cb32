"""The walks through the code name the files and the functions that run, so both have to be there.

``tests/integration/test_files_of_an_entry.py`` counts them.
"""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "docs" / "understand"
WALKS = sorted(FOLDER.glob("walk-*.md"))
EXPECTED = {"walk-append.md", "walk-checkpoint.md", "walk-offload.md", "walk-recovery.md"}
LEAST_STEPS = 10

LINK = re.compile(r"\[`([\w/.]+\.py)`\s+`([\w.]+)`\]\(([^)\s]+)\)")
STEP = re.compile(r"^(\d+)\. (.+(?:\n {3,}.+)*)", re.MULTILINE)


@cache
def symbols(file: Path) -> frozenset[str]:
    """The classes, methods and functions that a file defines: ``f``, ``C``, ``C.m``."""
    found = set()
    level = [("", node) for node in ast.parse(file.read_text("utf-8")).body]
    while level:
        above, node = level.pop()
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            found.add(above + node.name)
        if isinstance(node, ast.ClassDef):
            level += [(f"{above}{node.name}.", each) for each in node.body]
    return frozenset(found)


def broken(text: str) -> list[str]:
    """Links that do not lead to the file that they show, or name a symbol that the file does not define."""
    wrong = []
    for shown, symbol, target in LINK.findall(text):
        file = (FOLDER / target).resolve()
        if file != ROOT / shown or not file.is_file():
            wrong.append(target)
        elif symbol not in symbols(file):
            wrong.append(f"{shown} {symbol}")
    return wrong


def test_the_four_walks_are_there_and_the_pages_beside_them_lead_to_them() -> None:
    assert {walk.name for walk in WALKS} == EXPECTED
    for page in ("reading-order.md", "architecture.md"):
        linked = set(re.findall(r"\]\((walk-[\w-]+\.md)\)", (FOLDER / page).read_text("utf-8")))
        assert linked == EXPECTED, page


@pytest.mark.parametrize("walk", WALKS, ids=lambda walk: walk.name)
def test_a_walk_has_numbered_steps_that_each_lead_to_a_symbol_in_a_file(walk: Path) -> None:
    text = walk.read_text("utf-8")
    steps = STEP.findall(text)
    assert len(steps) >= LEAST_STEPS
    assert [int(number) for number, _ in steps] == list(range(1, len(steps) + 1))
    assert [number for number, step in steps if not LINK.search(step)] == []
    # A link of another form would not be checked.
    assert len(LINK.findall(text)) == len(re.findall(r"\]\([^)]*\.py\)", text))
    assert broken(text) == []


def test_what_a_link_gets_wrong_is_found() -> None:
    assert broken("[`core/quorum.py`\n   `Quorum.absent`](../../core/quorum.py)") == []
    assert broken("[`core/quorum.py` `Quorum`](../../core/quorum.py)") == []
    assert broken("[`core/quorum.py` `Quorum.gone`](../../core/quorum.py)") == ["core/quorum.py Quorum.gone"]
    assert broken("[`core/quorum.py` `Quorum`](../../core/errors.py)") == ["../../core/errors.py"]
    assert broken("[`core/gone.py` `Quorum`](../../core/gone.py)") == ["../../core/gone.py"]
