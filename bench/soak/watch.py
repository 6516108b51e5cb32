"""What the kernel and the processes themselves tell of their size, again and again."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tallybook.bench.gates import Figures
from tallybook.bench.programs import ProgramFailed
from tallybook.core.errors import PeerError
from tallybook.core.limits import MIB
from tallybook.runtime.metrics_text import fetch_metrics

from .slope import Growth, Sample, growth

ALLOWANCES: Final[Mapping[str, float]] = {"memory": 8 * MIB, "descriptors": 8, "threads": 4, "tasks": 16}
"""What is judged, and by how much it may grow in a run of any length."""
TOLD: Final[Mapping[str, str]] = {
    "heap in use": "tallybook_process_heap_used_bytes",
    "heap kept": "tallybook_process_heap_kept_bytes",
    "python blocks": "tallybook_process_python_blocks",
}
"""Metrics that are shown beside, since they say what memory that grows is made of."""

_TASKS_METRIC: Final = "tallybook_process_tasks"


@dataclass(slots=True)
class Watched:
    """One process, for as long as it lives, and what was seen of it."""

    name: str
    pid: int
    http_port: int
    samples: dict[str, list[Sample]] = field(default_factory=lambda: {figure: [] for figure in (*ALLOWANCES, *TOLD)})

    @property
    def answers(self) -> bool:
        """Whether the process shows its metrics yet."""
        try:
            return bool(fetch_metrics(self.http_port))
        except PeerError:
            return False

    def metrics(self) -> Figures:
        """What the process shows.

        Raises:
            ProgramFailed: it is gone, or does not answer.
        """
        try:
            return fetch_metrics(self.http_port)
        except PeerError as error:
            raise ProgramFailed(f"{self.name} shows no metrics: {error}") from error

    def look(self) -> None:
        """Take a sample of each figure.

        Raises:
            ProgramFailed: the process is gone, or does not answer.
        """
        now = time.monotonic()
        try:
            metrics = self.metrics()
            seen = {**_seen_by_the_kernel(self.pid), "tasks": metrics[_TASKS_METRIC]}
        except OSError as error:
            raise ProgramFailed(f"{self.name} cannot be looked at: {error}") from error
        seen |= {figure: metrics[name] for figure, name in TOLD.items()}
        for figure, value in seen.items():
            self.samples[figure].append(Sample(now, value))

    def growths(self) -> dict[str, Growth]:
        """What became of each figure."""
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
