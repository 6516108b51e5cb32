"""Gates of the stream benchmarks, and the introduction of their page."""

from __future__ import annotations

from typing import Final

from ..pages import lower_bound, upper_bound

HEAD: Final = """# Benchmarks of streams

What a stream costs compared with the ledgers below it, how soon a reader sees a record, the cost of thousands of
streams, and the cost of a gateway. `make bench-streams` writes this page. It contains all results, good or bad.

Three bookies, the writer and the readers share the machine below. A record counts when it is durable on two bookies.
Each comparison alternates between its two sides within one run, and a ratio is the median of such pairs.
"""

GATES: Final = (
    lower_bound("append_1024_ratio", 0.85, "1 KiB records per second, relative to entries of a plain ledger", "append"),
    lower_bound("append_100_per_s", 150_000, "100 B records per second, from one process", "append"),
    upper_bound("tail_p50_ms", 3, "ms from append to reader at 1,000 records per second, median", "tail"),
    upper_bound("tail_p99_ms", 10, "the same, 99th percentile", "tail"),
    upper_bound(
        "roll_p999_growth_ms", 20, "ms that two rolls per second add to the 99.9th percentile of appends", "roll"
    ),
    upper_bound("list_seconds", 2, "seconds to list 10,000 streams", "many"),
    upper_bound("writers_mib", 1024, "MiB of a process with 2,000 open writers", "many"),
    upper_bound(
        "reads_per_batch",
        1.2,
        "reads of each batch, at all bookies together, with 1,000 followers of a stream",
        "followers",
    ),
    lower_bound(
        "gateway_ratio", 0.6, "64 KiB appends through a gateway: MiB/s, relative to the native client", "gateway"
    ),
)
