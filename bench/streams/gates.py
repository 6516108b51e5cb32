"""What the figures of streams must reach, and what the page of them says first."""

from __future__ import annotations

from typing import Final

from tallybook.bench.pages import least, most

HEAD: Final = """# Benchmarks of streams

What a stream costs over the ledgers below it, how soon a reader sees a record, what thousands of streams take, and what
a gateway costs. This page is written by `make bench-streams`; it holds whatever was measured, good or bad.

Three bookies, the writer and the readers share the machine below; every record is durable on two bookies before it
counts. Ratios are medians of pairs from one run, in which what is compared takes turns.
"""

GATES: Final = (
    least("append_1024_ratio", 0.85, "records of 1 KiB a second, to entries of a bare ledger", "append"),
    least("append_100_per_s", 150_000, "records of 100 B a second, from one process", "append"),
    most("tail_p50_ms", 3, "ms from an append to a reader, 1,000 a second, median", "tail"),
    most("tail_p99_ms", 10, "the same, 99th percentile", "tail"),
    most("roll_p999_growth_ms", 20, "ms that rolling twice a second adds to the 99.9th percentile of appends", "roll"),
    most("list_seconds", 2, "seconds to list 10,000 streams", "many"),
    most("writers_mib", 1024, "MiB of a process with 2,000 open writers", "many"),
    most(
        "reads_per_batch",
        1.2,
        "reads of each batch, of all bookies together, by 1,000 who follow a stream",
        "followers",
    ),
    least("gateway_ratio", 0.6, "MiB/s of appends of 64 KiB through a gateway, to the native client's", "gateway"),
)
