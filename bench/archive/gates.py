"""Gates of the archive benchmarks, and the introduction of their page."""

from __future__ import annotations

from typing import Final

from ..compare.report import UNDERSTAND
from ..gates import Gate
from ..pages import lower_bound, upper_bound

HEAD: Final = f"""# Benchmarks of the archive

How fast closed ledgers are copied to an object store, what reading them from there costs, and how fast Spark reads
them. `make bench-archive` writes this page. It contains all results, good or bad.
[Where the time goes]({UNDERSTAND}/performance-storage.md#the-archive) explains the figures, and why a gate is not met.

The object store is a directory on the disk below. Each comparison alternates between its two sides within one run, and
a ratio is the median of such pairs. Payloads cannot be compressed.

In the figures of Spark, `columns` is `format("tallybook")` with option `columns`, which names the one column that the
query needs, and `floor` a Python data source that only passes the same batches from memory.
"""


def _of_parquet(figure: str, bound: float, what: str) -> Gate:
    return lower_bound(figure, bound, f"{what}, relative to plain Parquet", "spark")


GATES: Final = (
    # The workload of a gate is the part that an option can switch off.
    lower_bound(
        "large_offload_share",
        0.7,
        "offload of a large ledger, relative to the slower of reading a bookie and writing an object",
        "offload",
    ),
    lower_bound("small_offload_share", 0.7, "the same for smaller ledgers", "offload"),
    upper_bound("memory_mib", 200, "MiB of memory for archiving a large ledger, above an idle process", "offload"),
    upper_bound("memory_of_tenfold_mib", 200, "the same for a ledger ten times as large", "offload"),
    upper_bound("gets_per_read", 1.1, "requests to read one random entry", "offload"),
    upper_bound("largest_get_kib", 128, "KiB of the largest of these requests", "offload"),
    upper_bound("small_objects", 20, "objects with all ledgers of 10 KB", "merge"),
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
    upper_bound("add_p99_ratio", 1.5, "99th percentile of adds beside an offloader, relative to without", "beside"),
)
