"""What the archive's figures must reach."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tallybook.bench.gates import Figures


@dataclass(frozen=True, slots=True)
class ArchiveGate:
    """A bound on one figure."""

    figure: str
    bound: float
    at_least: bool
    title: str
    part: str = "offload"
    """What measures it, and may be switched off."""

    @property
    def wanted(self) -> str:
        """The bound in words."""
        return f"{'≥' if self.at_least else '≤'} {self.bound:g}"

    def met_by(self, value: float) -> bool:
        """Whether ``value`` is on the right side of the bound."""
        return value >= self.bound if self.at_least else value <= self.bound

    def line(self, figures: Figures) -> str:
        """The verdict in words."""
        value = figures.get(self.figure)
        if value is None:
            return f"MISSING           {self.wanted:<7}  {self.title}"
        return f"{'met    ' if self.met_by(value) else 'NOT MET'}  {value:>8g}  {self.wanted:<7}  {self.title}"


def _least(figure: str, bound: float, title: str, part: str = "offload") -> ArchiveGate:
    return ArchiveGate(figure, bound, at_least=True, title=title, part=part)


def _most(figure: str, bound: float, title: str, part: str = "offload") -> ArchiveGate:
    return ArchiveGate(figure, bound, at_least=False, title=title, part=part)


def _of_parquet(figure: str, bound: float, title: str) -> ArchiveGate:
    return _least(figure, bound, f"{title}, of the speed of bare Parquet", "spark")


GATES: Final = (
    _least("large_offload_share", 0.7, "offload of a large ledger, of the slower of a bookie read and an object write"),
    _least("small_offload_share", 0.7, "the same, of smaller ledgers"),
    _most("memory_mib", 200, "MiB of memory that archiving a large ledger takes, besides an idle process"),
    _most("memory_of_tenfold_mib", 200, "the same, of a ledger ten times as large"),
    _most("gets_per_read", 1.1, "requests for one random entry"),
    _most("largest_get_kib", 128, "KiB of the largest of them"),
    _most("small_objects", 20, "objects that hold the many ledgers of 10 KB", "merge"),
    *(
        _of_parquet(f"{size}_{question}_read_ledgers_ratio", 0.9, f"read_ledgers: {question}, {size} table")
        for size in ("small", "large")
        for question in ("count", "payload", "range")
    ),
    *(
        _of_parquet(f"small_{question}_format_ratio", 0.4, f"format('tallybook'): {question}, small table")
        for question in ("count", "payload", "range")
    ),
    _of_parquet("large_payload_format_ratio", 0.8, "format('tallybook'): payload, large table"),
    _most("add_p99_ratio", 1.5, "99th percentile of adds beside an offloader, to that without one", "beside"),
)
