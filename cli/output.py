"""What commands print: results on standard output, everything else on standard error.

A result is a dictionary or a list of them. With ``--json`` it is one line of JSON; otherwise
it is laid out for people. Notes and progress go to standard error, and only to a terminal,
so that neither a pipe nor a log ever sees them.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from rich.console import Console

Record: TypeAlias = Mapping[str, object]
"""One result: names of fields, and values that JSON has."""


def print_json(value: object) -> None:
    """One line of JSON on standard output."""
    print(json.dumps(value), flush=True)


def print_record(record: Record, *, as_json: bool) -> None:
    """One result: a line ``name  value`` for each field."""
    if as_json:
        print_json(record)
        return
    width = max(map(len, record))
    for name, value in record.items():
        print(f"{name.replace('_', ' '):{width}}  {plain(value)}")
    sys.stdout.flush()


def print_rows(rows: Sequence[Record], columns: Sequence[str], *, as_json: bool) -> None:
    """A list of results: a table, or one JSON list."""
    if as_json:
        print_json(list(rows))
        return
    from rich.table import Table  # noqa: PLC0415 (most commands print no table, and it takes long to load)

    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        right = any(isinstance(row.get(column), int | float) for row in rows)
        table.add_column(column.replace("_", " "), justify="right" if right else "left", overflow="fold")
    for row in rows:
        table.add_row(*(plain(row.get(column)) for column in columns))
    console(sys.stdout.isatty()).print(table)


def console(on_terminal: bool) -> Console:
    """Rich on standard output; where that is no terminal, lines are as long as they need to be."""
    from rich.console import Console  # noqa: PLC0415 (as above)

    return Console(highlight=False, width=None if on_terminal else 250, soft_wrap=not on_terminal, markup=False)


def plain(value: object) -> str:
    """A value as people read it."""
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
    """A remark for a person who watches."""
    if sys.stderr.isatty():
        print(f"tallybook: {text}", file=sys.stderr, flush=True)


def complain(text: str) -> None:
    """A sentence that must be seen: what failed, on standard error."""
    print(f"tallybook: {text}", file=sys.stderr, flush=True)
