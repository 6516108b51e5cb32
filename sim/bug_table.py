"""The table of planted bugs in docs/simulation.md: which there are, and what gave each of them away."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from .bugs import BUGS
from .one import Search

BEGIN: Final = "<!-- written by `python -m tallybook.sim bugs --write` -->"
END: Final = "<!-- end of what was written -->"
WIDTH: Final = 110
"""Characters of a failure that the table shows."""


def invariant(failure: str) -> str:
    """Which invariant it broke, and the beginning of how."""
    what = failure.splitlines()[0].removeprefix("InvariantBroken: ").replace("|", "/") if failure else ""
    return what if len(what) <= WIDTH else what[: WIDTH - 3] + "..."


def row(found: Search) -> str:
    """One line for the terminal."""
    return f"{found.bug:42} {found.seeds:5} seeds  {invariant(found.failure) or 'NOT FOUND'}"


def table(searches: Sequence[Search]) -> str:
    """The table, as Markdown."""
    lines = ["| bug | what is broken | seeds | found by |", "|---|---|---|---|"]
    for found in searches:
        what = invariant(found.failure).replace("<", "&lt;") or "not found"
        lines.append(f"| {found.bug} | {BUGS[found.bug].breaks} | {found.seeds} | {what} |")
    return "\n".join(lines)


def with_table(page: str, searches: Sequence[Search]) -> str:
    """The page, with this table in the place of the one before."""
    before, _, rest = page.partition(BEGIN)
    return f"{before}{BEGIN}\n\n{table(searches)}\n\n{END}{rest.partition(END)[2]}"
