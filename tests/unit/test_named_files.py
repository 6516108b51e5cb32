"""Links and file names in the docs lead to existing files."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
NAMED = re.compile(r"`((?:[\w.-]+/)+|(?:[\w.-]+/)*[\w.-]+\.py)`")
ELSEWHERE = {"app.py", "job.py", "query.py"}
"""Programs of users that pages speak of."""


def lost(text: str) -> list[str]:
    """Missing files that a page names. A name without a folder is in one that the page has named before."""
    folders = {Path()}
    missing = []
    for name in NAMED.findall(text):
        path = Path(name)
        if name.endswith("/"):
            folders.add(path)
        elif path.name == name:
            if not any((ROOT / folder / name).is_file() for folder in folders):
                missing.append(name)
        elif (ROOT / path).is_file():
            folders |= set(path.parents)
        else:
            missing.append(name)
    return missing


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_file_that_a_page_names_is_there(page: Path) -> None:
    assert set(lost(page.read_text("utf-8"))) <= ELSEWHERE


def test_a_file_that_is_not_there_is_found_with_its_folder_and_without() -> None:
    assert lost("`core/batch.py`, `quorum.py` there") == []
    assert lost("`quorum.py` before `core/batch.py`") == ["quorum.py"]
    assert lost("`core/no_such.py`, then `core/batch.py` and `neither.py`") == ["core/no_such.py", "neither.py"]
