"""Gates of the stream benchmarks, and the introduction of their page."""

from __future__ import annotations

from typing import Final

from ..pages import lower_bound, upper_bound

HEAD: Final = """# Benchmarks of streams

What a stream costs over the ledgers below it, how soon a reader sees a record, what thousands of streams take, and what
a gateway costs. This page is written by `make bench-streams`; it contains all results, good or bad.

Three bookies, the writer and the readers share the machine below; every record is durable on two bookies before it
counts. Ratios are medians of pairs from one run, in which what is compared takes turns.
"""

GATES: Final = (
    lower_bound("append_1024_ratio", 0.85, "records of 1 KiB a second, to entries of a bare ledger", "append"),
    lower_bound("append_100_per_s", 150_000, "records of 100 B a second, from one process", "append"),
    upper_bound("tail_p50_ms", 3, "ms from an append to a reader, 1,000 a second, median", "tail"),
    upper_bound("tail_p99_ms", 10, "the same, 99th percentile", "tail"),
    upper_bound(
        "roll_p999_growth_ms", 20, "ms that rolling twice a second adds to the 99.9th percentile of appends", "roll"
    ),
    upper_bound("list_seconds", 2, "seconds to list 10,000 streams", "many"),
    upper_bound("writers_mib", 1024, "MiB of a process with 2,000 open writers", "many"),
    upper_bound(
        "reads_per_batch",
        1.2,
        "reads of each batch, of all bookies together, by 1,000 who follow a stream",
        "followers",
    ),
    lower_bound(
        "gateway_ratio", 0.6, "MiB/s of appends of 64 KiB through a gateway, to the native client's", "gateway"
    ),
)
