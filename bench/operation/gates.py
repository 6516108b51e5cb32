"""Gates of the operation benchmarks, and the introduction of their page."""

from __future__ import annotations

from typing import Final

from ..pages import lower_bound, upper_bound

HEAD: Final = """# Benchmarks of operation

What TLS costs, how a cluster behaves under ten times its capacity, and how long imports take. `make bench-operation`
writes this page. It contains all results, good or bad.

*TLS*: two clusters of three bookies, one with certificates on both sides of every connection and one without. One
client loads them alternately. Bookies and client share the processors of the machine below, so the cost of encryption
is visible wherever it arises. All reads are from the bookies' caches, so disks do not matter. Each ratio comes from
one round; the gate checks the median.

*Overload*: the peak is the rate of one client with 5,000 unconfirmed entries of 1 KiB, measured before each round. In
the round, 200 clients, each with its own connections, together offer ten times the peak, for four times as long. A
client that has no space for an entry refuses it with BUSY at once; so does a bookie for a batch. At the same time a
modest client sends 100 entries per second. Jain's index is 1 if all 200 get the same rate, and 1/200 if one gets
everything. Two rounds come first and are not counted: in these, caches fill and processes reach their size. After
each round its ledgers are deleted, and the bookies free their space.

*Import*: a new interpreter imports one module and ends. The time of an interpreter that imports nothing is
subtracted. The best of 20, with compiled code cached.
"""

TLS: Final = "tls"
OVERLOAD: Final = "overload"
IMPORT: Final = "import"
PARTS: Final = (TLS, OVERLOAD, IMPORT)

GATES: Final = (
    # The workload of a gate is the part that an option can switch off.
    lower_bound("tls_adds_64KiB_ratio", 0.75, "64 KiB adds: MB/s with TLS, relative to without", TLS),
    lower_bound("tls_reads_64KiB_ratio", 0.75, "64 KiB reads: MB/s with TLS, relative to without", TLS),
    lower_bound(
        "overload_goodput_ratio",
        0.8,
        "confirmed entries/s at an offered load of ten times the peak, relative to the peak",
        OVERLOAD,
    ),
    lower_bound("overload_jain", 0.9, "Jain's fairness index of 200 clients; worst round", OVERLOAD),
    lower_bound(
        "overload_modest_part", 0.95, "share of a modest client's entries that are confirmed; worst round", OVERLOAD
    ),
    upper_bound("overload_errors", 0, "errors other than BUSY", OVERLOAD),
    upper_bound(
        "overload_memory_growth",
        1.1,
        "memory of a bookie in the second half of the load, relative to the first; worst",
        OVERLOAD,
    ),
    upper_bound("import_client_ms", 300, "ms for `import tallybook.client`", IMPORT),
)
