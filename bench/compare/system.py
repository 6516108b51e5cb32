"""A system as the comparison sees it: started empty, loaded, stopped, gone.

Each system keeps its data in a directory of its own on the same disk, on this machine. The loads
are programs of their own, as a user's would be.
"""

from __future__ import annotations

from typing import Any, Final, Protocol

from .gates import Figures
from .programs import ProgramFailed
from .workloads import Pace, Workload

START_SECONDS: Final = 600.0
"""The first start of the peer fetches it."""

SLACK_SECONDS: Final = 180.0
"""What a load may take beyond its measured time: its own start, warm-up, and reading back."""


class System(Protocol):
    """What is compared."""

    name: str

    def start(self) -> None:
        """Start with empty data; return when it serves."""

    def measure(self, workload: Workload, pace: Pace, rate: float) -> Figures:
        """Run a workload. ``rate`` is 0 for a closed loop.

        Raises:
            ProgramFailed: nothing can be said.
        """

    def stop(self) -> None:
        """End every process and remove the data."""


def two_passes(passes: list[dict[str, Any]]) -> Figures:
    """The second pass, whose caches and code are warm, and beside it the first one.

    Raises:
        ProgramFailed: there are not two.
    """
    if len(passes) != 2:
        raise ProgramFailed(f"two passes over the ledger were expected, not {len(passes)}")
    cold, warm = passes
    return {**warm, **{f"cold_{name}": value for name, value in cold.items()}}
