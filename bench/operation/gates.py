"""Gates of the operation benchmarks, and the introduction of their page."""

from __future__ import annotations

from typing import Final

from ..pages import lower_bound, upper_bound

HEAD: Final = """# Benchmarks of operation

What TLS costs, what becomes of a cluster that is asked for ten times of what it can do, and how long a program waits
for its imports. This page is written by `make bench-operation`; it contains all results, good or bad.

*TLS*: two clusters of three bookies, one with certificates on both sides of every connection, one without, loaded in
turns by one client; bookies and client share the processors of the machine below, so that what encryption takes from
any of them shows. What is read lies in the bookies' caches, so that no disk has a part in it. A ratio is of one turn;
the gate looks at the median.

*Overload*: the peak is that of one client with 5,000 entries of 1 KiB unconfirmed, measured before each turn. In the
turn, 200 clients with connections of their own offer ten times as much together, for four times as long. An entry for
which its client has no space is refused with BUSY, at once; a bookie refuses batches likewise. A modest client, which
asks for 100 entries a second, goes on meanwhile. Jain's index is 1 where all 200 get the same, and 1/200 where one gets
everything. Two turns that are not counted come first, in which caches fill and processes find their size. After each
turn its ledgers are deleted, and the bookies free their space.

*Import*: new interpreters that import one module and end, less one that imports nothing; the best of 20, with compiled
code kept.
"""

TLS: Final = "tls"
OVERLOAD: Final = "overload"
IMPORT: Final = "import"
PARTS: Final = (TLS, OVERLOAD, IMPORT)

GATES: Final = (
    # The workload of a gate is the part that an option can switch off.
    lower_bound("tls_adds_64KiB_ratio", 0.75, "MB/s of adds of 64 KiB with TLS, to those without", TLS),
    lower_bound("tls_reads_64KiB_ratio", 0.75, "MB/s of reads of 64 KiB with TLS, to those without", TLS),
    lower_bound("overload_goodput_ratio", 0.8, "entries/s confirmed under ten times the peak, to the peak", OVERLOAD),
    lower_bound("overload_jain", 0.9, "Jain's index of what 200 clients got; worst turn", OVERLOAD),
    lower_bound("overload_modest_part", 0.95, "what a modest client got, of what it asked for; worst turn", OVERLOAD),
    upper_bound("overload_errors", 0, "errors of other types than BUSY", OVERLOAD),
    upper_bound(
        "overload_memory_growth", 1.1, "memory of a bookie in the second half of it, to the first; worst", OVERLOAD
    ),
    upper_bound("import_client_ms", 300, "ms that a program waits for `import tallybook.client`", IMPORT),
)
