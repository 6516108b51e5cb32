"""Output of commands: results on standard output, everything else on standard error.

A result is a dictionary or a list of them: one line of JSON with ``--json``, else a table or ``name  value`` lines.
Notes and progress are printed only if standard error is a terminal.
"""

from __future__ import annotations

import json
import shutil
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, TypeAlias

ResultFields: TypeAlias = Mapping[str, object]
"""One result: field names and JSON values."""

_GAP: Final = "  "
_MIN_TEXT: Final = 20
"""Columns of the terminal that must be left for the last column to wrap its text."""


def print_json(value: object) -> None:
    """Print one line of JSON."""
    print(json.dumps(value), flush=True)


def print_record(record: ResultFields, *, as_json: bool) -> None:
    """Print one result: a line ``name  value`` for each field, or JSON."""
    if as_json:
        print_json(record)
        return
    width = max(map(len, record))
    for name, value in record.items():
        print(f"{name.replace('_', ' '):{width}}  {plain(value)}")
    sys.stdout.flush()


def print_rows(rows: Sequence[ResultFields], columns: Sequence[str], *, as_json: bool) -> None:
    """Print a list of results: a table, or one JSON list."""
    if as_json:
        print_json(list(rows))
        return
    terminal = sys.stdout.isatty()
    lines = table(rows, columns, shutil.get_terminal_size().columns if terminal else None)
    print("\n".join(lines), flush=True)


def table(rows: Sequence[ResultFields], columns: Sequence[str], width: int | None = None) -> list[str]:
    """A table as lines of text. No value is shortened or broken, so that ids can be copied.

    Args:
        width: columns of the terminal; ``None``: no terminal. A wider table gets titles of several lines, and the text
            of its last column is wrapped between words. If that is not enough, its lines are longer.
    """
    cells = [[plain(row.get(column)) for column in columns] for row in rows]
    numeric = [any(isinstance(row.get(column), int | float) for row in rows) for column in columns]
    titles = [[column.replace("_", " ")] for column in columns]
    if width is not None and sum(_widths(titles, cells)) + len(_GAP) * (len(columns) - 1) > width:
        titles = [column.split("_") for column in columns]
    height = max(map(len, titles))
    lines = [[title[at] if at < len(title) else "" for title in titles] for at in range(height)]
    widths = _widths(titles, cells)
    left = 0 if width is None else width - sum(widths[:-1]) - len(_GAP) * (len(columns) - 1)
    for line in cells:
        *others, last = line
        wrapped = textwrap.wrap(last, left, break_long_words=False) if left >= _MIN_TEXT else []
        first, *more = wrapped or [last]
        lines += [[*others, first], *([*[""] * len(others), part] for part in more)]
    shown = [_GAP.join(_aligned(line, widths, numeric)).rstrip() for line in lines]
    bold = [f"\x1b[1m{line}\x1b[0m" for line in shown[:height]]
    return [*(shown[:height] if width is None else bold), *shown[height:]]


def _widths(titles: Sequence[Sequence[str]], cells: Sequence[Sequence[str]]) -> list[int]:
    return [max(map(len, [*title, *(line[at] for line in cells)])) for at, title in enumerate(titles)]


def _aligned(line: Sequence[str], widths: Sequence[int], numeric: Sequence[bool]) -> Iterator[str]:
    for text, wide, right in zip(line, widths, numeric, strict=True):
        yield text.rjust(wide) if right else text.ljust(wide)


def plain(value: object) -> str:
    """A value as text."""
    if value is None or value == "":
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Mapping):
        return ", ".join(f"{name}={plain(item)}" for name, item in value.items()) or "-"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return ", ".join(plain(item) for item in value) or "-"
    return str(value)


def note(text: str) -> None:
    """Print a note on standard error, if that is a terminal."""
    if sys.stderr.isatty():
        print(f"tallybook: {text}", file=sys.stderr, flush=True)


def complain(text: str) -> None:
    """Print an error or a warning on standard error."""
    print(f"tallybook: {text}", file=sys.stderr, flush=True)
