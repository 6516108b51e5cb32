"""What the archive's figures must reach, and what the page of them says first."""

from __future__ import annotations

from typing import Final

from tallybook.bench.gates import Gate
from tallybook.bench.pages import least, most

HEAD: Final = """# Benchmarks of the archive

How fast closed ledgers go to an object store, what reading them from there costs, and how fast Spark is on them. This
page is written by `make bench-archive`; it holds whatever was measured, good or bad.
[Where the time goes](performance.md#the-archive) explains the figures, and why a gate is not met.

The object store is a directory on the disk below. Ratios are medians of pairs from one run, in which what is compared
takes turns; payloads cannot be compressed.
"""


def _of_parquet(figure: str, bound: float, what: str) -> Gate:
    return least(figure, bound, f"{what}, of the speed of bare Parquet", "spark")


GATES: Final = (
    # A workload here is what may be switched off.
    least(
        "large_offload_share",
        0.7,
        "offload of a large ledger, of the slower of a bookie read and an object write",
        "offload",
    ),
    least("small_offload_share", 0.7, "the same, of smaller ledgers", "offload"),
    most("memory_mib", 200, "MiB of memory that archiving a large ledger takes, besides an idle process", "offload"),
    most("memory_of_tenfold_mib", 200, "the same, of a ledger ten times as large", "offload"),
    most("gets_per_read", 1.1, "requests for one random entry", "offload"),
    most("largest_get_kib", 128, "KiB of the largest of them", "offload"),
    most("small_objects", 20, "objects that hold the many ledgers of 10 KB", "merge"),
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
    most("add_p99_ratio", 1.5, "99th percentile of adds beside an offloader, to that without one", "beside"),
)
