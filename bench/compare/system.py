"""Interface of a compared system: start empty, load, stop.

Each system has a data directory of its own on the same disk of this machine. Loads are separate programs, like those of
users.
"""

from __future__ import annotations

from typing import Any, Final, Protocol

from ..equipment.programs import ProgramFailed
from ..gates import Figures
from .workloads import BenchWorkload, Pace

START_SECONDS: Final = 600.0
"""Includes the download at the first start of the peer."""

SLACK_SECONDS: Final = 180.0
"""Extra time of a load: its start, warm-up, and reading back."""


class System(Protocol):
    """A compared system."""

    name: str

    def start(self) -> None:
        """Start with empty data; return when it serves."""

    def measure(self, workload: BenchWorkload, pace: Pace, rate: float) -> Figures:
        """Run a workload. ``rate`` is 0 for a closed loop.

        Raises:
            ProgramFailed: there is no result.
        """

    def stop(self) -> None:
        """End every process and remove the data."""


def two_passes(passes: list[dict[str, Any]]) -> Figures:
    """Figures of the second pass, with warm caches and code, and those of the first one.

    Raises:
        ProgramFailed: there are not exactly two passes.
    """
    if len(passes) != 2:
        raise ProgramFailed(f"two passes over the ledger were expected, not {len(passes)}")
    cold, warm = passes
    return {**warm, **{f"cold_{name}": value for name, value in cold.items()}}
