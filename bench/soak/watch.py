"""Samples size figures of processes, from the kernel and from their metrics."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tallybook.core.errors import PeerError
from tallybook.core.limits import MIB
from tallybook.runtime.http.scrape import fetch_metrics

from ..equipment.programs import ProgramFailed
from ..gates import Figures
from .slope import Growth, SoakSample, growth

ALLOWANCES: Final[Mapping[str, float]] = {"memory": 8 * MIB, "descriptors": 8, "threads": 4, "tasks": 16}
"""The judged figures, with the growth allowed in a run of any length."""
REPORTED: Final[Mapping[str, str]] = {
    "heap in use": "tallybook_process_heap_used_bytes",
    "heap kept": "tallybook_process_heap_kept_bytes",
    "python blocks": "tallybook_process_python_blocks",
}
"""Metrics reported along, which help to explain growing memory."""

_TASKS_METRIC: Final = "tallybook_process_tasks"


@dataclass(slots=True)
class WatchedProcess:
    """One process with its samples."""

    name: str
    pid: int
    http_port: int
    samples: dict[str, list[SoakSample]] = field(
        default_factory=lambda: {figure: [] for figure in (*ALLOWANCES, *REPORTED)}
    )

    @property
    def answers(self) -> bool:
        """Whether the process serves its metrics yet."""
        try:
            return bool(fetch_metrics(self.http_port))
        except PeerError:
            return False

    def metrics(self) -> Figures:
        """Metrics of the process.

        Raises:
            ProgramFailed: the process has ended, or does not respond.
        """
        try:
            return fetch_metrics(self.http_port)
        except PeerError as error:
            raise ProgramFailed(f"cannot read metrics of {self.name}: {error}") from error

    def sample(self) -> None:
        """Take a sample of each figure.

        Raises:
            ProgramFailed: the process has ended, or does not respond.
        """
        now = time.monotonic()
        try:
            metrics = self.metrics()
            seen = {**_seen_by_the_kernel(self.pid), "tasks": metrics[_TASKS_METRIC]}
        except OSError as error:
            raise ProgramFailed(f"{self.name} cannot be sampled: {error}") from error
        seen |= {figure: metrics[name] for figure, name in REPORTED.items()}
        for figure, value in seen.items():
            self.samples[figure].append(SoakSample(now, value))

    def growths(self) -> dict[str, Growth]:
        """The growth of each figure."""
        return {figure: growth(samples) for figure, samples in self.samples.items()}


def _seen_by_the_kernel(pid: int) -> Figures:
    process = Path(f"/proc/{pid}")
    lines = (line.partition(":") for line in (process / "status").read_text().splitlines())
    status = {name: rest.split()[0] for name, _, rest in lines if rest.split()}
    return {
        "memory": int(status["VmRSS"]) * 1024,
        "threads": int(status["Threads"]),
        "descriptors": sum(1 for _ in (process / "fd").iterdir()),
    }
