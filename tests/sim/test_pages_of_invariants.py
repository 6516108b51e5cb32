"""Numbers of invariants: the docs explain exactly those that checks report."""

from __future__ import annotations

import re

from tallybook.sim.results import ROOT

NUMBER = r"[ILS]\d+"


def reported() -> set[str]:
    """Invariants that checks in sim/ can report."""
    texts = [path.read_text("utf-8") for path in (ROOT / "sim").rglob("*.py")]
    return {number for text in texts for number in re.findall(rf'"({NUMBER})"', text)}


def explained(page: str) -> list[str]:
    """Invariants in the first column of the tables of a page."""
    rows = re.findall(rf"^\| ({NUMBER}(?:, {NUMBER})*) \|", (ROOT / "docs" / page).read_text("utf-8"), re.MULTILINE)
    return [number for row in rows for number in row.split(", ")]


def test_the_page_explains_every_invariant_that_is_checked_once_and_no_other() -> None:
    assert sorted(explained("project/simulation.md")) == sorted(reported())
