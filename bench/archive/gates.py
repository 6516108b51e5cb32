"""What the archive's figures must reach."""

from __future__ import annotations

from typing import Final

from tallybook.bench.gates import Figures, Gate


def verdict(gate: Gate, figures: Figures) -> str:
    """A gate's verdict in words."""
    value = figures.get(gate.figure)
    if value is None:
        return f"MISSING           {gate.wanted:<7}  {gate.what}"
    return f"{'met    ' if gate.met_by(value) else 'NOT MET'}  {value:>8g}  {gate.wanted:<7}  {gate.what}"


def _least(figure: str, bound: float, what: str, part: str = "offload") -> Gate:
    return Gate(part, figure, bound, at_least=True, ratio=False, what=what)


def _most(figure: str, bound: float, what: str, part: str = "offload") -> Gate:
    return Gate(part, figure, bound, at_least=False, ratio=False, what=what)


def _of_parquet(figure: str, bound: float, what: str) -> Gate:
    return _least(figure, bound, f"{what}, of the speed of bare Parquet", "spark")


GATES: Final = (
    # A workload here is what may be switched off.
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
