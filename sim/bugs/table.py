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
HEAD: Final = "| bug | what is broken | seed | invariant | what was seen | commit |\n|---|---|---|---|---|---|"


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


def _line(search: Search, commit: str) -> str:
    found = search.found
    cells = [str(found.seed), found.invariant, _shortly(found.detail).replace("<", "&lt;")] if found else []
    return f"| {' | '.join([search.bug, BUGS[search.bug].breaks, *(cells or ['', '', NOT_FOUND]), commit])} |"


def lines_by_bug(page: str) -> dict[str, str]:
    """The line of each bug in the table of the page."""
    lines = [line for line in page.partition(BEGIN)[2].partition(END)[0].splitlines() if line.startswith("| ")]
    return {line.strip("| ").partition(" | ")[0]: line for line in lines[1:]}


def with_lines(page: str, searches: Sequence[Search], commit: str) -> str:
    """The page with new lines for these searches, which ran at ``commit``; other lines stay as they are."""
    lines = lines_by_bug(page) | {search.bug: _line(search, commit) for search in searches}
    table = "\n".join([HEAD, *(lines[bug] for bug in BUGS if bug in lines)])
    before, _, rest = page.partition(BEGIN)
    return f"{before}{BEGIN}\n\n{table}\n\n{END}{rest.partition(END)[2]}"
