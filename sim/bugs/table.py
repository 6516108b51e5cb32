"""Writes the table of planted bugs in docs/project/planted-bugs.md: the seed and violation that detected each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from .catalog import BUGS
from .search import Search

BEGIN: Final = "<!-- written by `python -m tallybook.sim bugs --write` -->"
END: Final = "<!-- end of what was written -->"
WIDTH: Final = 90
"""Maximum characters of a violation's detail in the table."""
NOT_FOUND: Final = "not found"


def _shortly(detail: str) -> str:
    lines = detail.splitlines()
    what = lines[0].replace("|", "/") if lines else ""
    return what if len(what) <= WIDTH else what[: WIDTH - 3] + "..."


def row(search: Search) -> str:
    """Lines for the terminal: the result, and each run that failed in another way."""
    found = search.found
    how = f"{found.invariant}: {_shortly(found.detail)}" if found else NOT_FOUND.upper()
    lines = [f"{search.bug:42} {search.seeds:5} seeds  {how}"]
    lines += [f"    seed {seed} failed otherwise: {kind}: {_shortly(detail)}" for seed, kind, detail in search.others]
    return "\n".join(lines)


def table(searches: Sequence[Search]) -> str:
    """The table in Markdown."""
    lines = ["| bug | what is broken | seed | invariant | what was seen |", "|---|---|---|---|---|"]
    for search in searches:
        found = search.found
        cells = [str(found.seed), found.invariant, _shortly(found.detail).replace("<", "&lt;")] if found else []
        lines.append(f"| {' | '.join([search.bug, BUGS[search.bug].breaks, *(cells or ['', '', NOT_FOUND])])} |")
    return "\n".join(lines)


def with_table(page: str, searches: Sequence[Search], code: str) -> str:
    """The page with this table instead of the old one; ``code`` is the hash of the code that the seeds ran."""
    before, _, rest = page.partition(BEGIN)
    return f"{before}{BEGIN}\n\n{table(searches)}\n\nCode: `{code}`.\n\n{END}{rest.partition(END)[2]}"
