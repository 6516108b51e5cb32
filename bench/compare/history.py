"""Storage of results: a folder per comparison, a line per measurement.

    DIR/results.jsonl      facts of the machine in the first line, then one line per measurement
    DIR/benchmarks.md      the report
    DIR/benchmarks.png     its plot

Each line is written when its measurement ends, so an interrupted comparison keeps its results.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Final

from tallybook.core.errors import InvalidArgument

from ..gates import Measurement

FILE_NAME: Final = "results.jsonl"


class ComparisonResults:
    """The measurements of one comparison, in memory and on disk."""

    def __init__(self, directory: Path, facts: dict[str, str], measurements: list[Measurement]) -> None:
        self.directory = directory
        self.facts = facts
        self.measurements = measurements

    @classmethod
    def begin(cls, directory: Path, facts: dict[str, str]) -> ComparisonResults:
        """Start an empty file in a new ``directory``."""
        directory.mkdir(parents=True)
        results = cls(directory, facts, [])
        results._write_line(facts)
        return results

    @classmethod
    def load(cls, directory: Path) -> ComparisonResults:
        """Read what an earlier comparison measured.

        Raises:
            InvalidArgument: there are no valid results.
        """
        try:
            first, *lines = (directory / FILE_NAME).read_text().splitlines()
            return cls(directory, json.loads(first), [Measurement(**json.loads(line)) for line in lines])
        except (OSError, ValueError, TypeError) as error:
            raise InvalidArgument(f"{directory} has no readable results: {error}") from error

    def add(self, measurement: Measurement) -> None:
        """Add a measurement, also on disk."""
        self.measurements.append(measurement)
        self._write_line(asdict(measurement))

    def figure(self, round_number: int, system: str, workload: str, name: str) -> float | None:
        """One figure, if it was measured."""
        for found in self.measurements:
            if (found.round, found.system, found.workload) == (round_number, system, workload):
                return found.figures.get(name)
        return None

    def _write_line(self, value: object) -> None:
        with open(self.directory / FILE_NAME, "a") as file:
            file.write(json.dumps(value) + "\n")
