"""Text and tables of the page on scale."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from textwrap import fill
from typing import Final

from ..compare.report import number, table
from ..gates import Figures
from .many import CREATE_SECONDS
from .many_load import CONCURRENCY, SAMPLE
from .processes import LEDGERS, RATE

HEAD: Final = """# Benchmarks of scale

How costs grow with the number of bookies, clients, ledgers and streams. `make bench-scale` writes this page. It
contains all results, good or bad; there are no gates.

All processes share the processors and the disk of the machine below, so rates would only show how many processors there
are. The tables have the processor time of an entry instead, of all clients and of all bookies together. The rows of one
table can be compared. They are no forecast for other machines: an entry costs less the more entries share a batch, and
how many do depends on the rate, and on how fast processors, disk and network are; nothing here went over a network.

Entries have 1 KiB and three copies, where there are three bookies. Entries are sent at a steady rate, and the latency
of an entry runs from its planned append to its confirmation; one that was not sent when the load ended counts with the
time that it had waited. Processor time is divided by the entries confirmed meanwhile. Percentiles are exact.
"""

BOOKIES: Final = "bookies"
CLIENTS: Final = "clients"
LEDGER: Final = "ledgers"
STREAM: Final = "streams"

_PROCESS_COLUMNS: Final = {
    "client_us": "clients µs",
    "bookie_us": "bookies µs",
    "copy_us": "bookies µs per copy",
    "batch_entries": "entries per batch",
    "p50_ms": "p50 ms",
    "p99_ms": "p99 ms",
}
_APPEND_COLUMNS: Final = {
    "client_kib": "client KiB each",
    "bookie_kib": "bookie KiB each",
    "p50_ms": "p50 ms",
    "p99_ms": "p99 ms",
    "client_us": "client µs per entry",
    "bookie_us": "bookies µs per entry",
}
_COLUMNS: Final[Mapping[str, Mapping[str, str]]] = {
    BOOKIES: _PROCESS_COLUMNS,
    CLIENTS: _PROCESS_COLUMNS,
    LEDGER: {"create_us": "create µs", "open_us": "open µs", "close_us": "close µs", **_APPEND_COLUMNS},
    STREAM: {"create_us": "create µs", **_APPEND_COLUMNS},
}

_TEXT: Final[Mapping[str, str]] = {
    BOOKIES: f"One client appends to {LEDGERS} ledgers, {RATE:,.0f} entries per second, with Qa a majority of the "
    "copies. Each row is a new cluster. With more than three bookies, each ledger has three of them.",
    CLIENTS: f"Three bookies; {LEDGERS} ledgers and {RATE:,.0f} entries per second are divided among the clients, each "
    "a process. A batch has entries of one ledger, so more clients do not make batches smaller.",
    LEDGER: f"One client creates ledgers, {CONCURRENCY} at a time, and appends an entry to each; no more are created "
    f"after {CREATE_SECONDS:.0f} s. Memory is the growth of the physical memory of the client and of one bookie until "
    "then, divided by the ledgers; with few ledgers it is mostly other growth. Then 1,000 entries per second go to "
    "ledgers drawn at random, each append a task of its own. At last ledgers are closed, and opened, "
    f"{CONCURRENCY} at a time and at most {SAMPLE:,}. Times are per ledger. Metadata are in SQLite.",
    STREAM: f"The same with streams, {CONCURRENCY} at a time: to create one is to create the stream and its writer.",
}


def counts_in(figures: Iterable[str], kind: str) -> list[int]:
    """The numbers of bookies, clients, ledgers or streams that figures are about, ascending."""
    return sorted({int(name.split("_")[1]) for name in figures if name.startswith(f"{kind}_")})


def sections(figures: Figures) -> list[str]:
    """A table for each kind."""
    found = []
    for kind, columns in _COLUMNS.items():
        rows = []
        for count in counts_in(figures, kind):
            values = {name: figures.get(f"{kind}_{count}_{name}") for name in columns}
            actual = figures.get(f"{kind}_{count}_count", count)
            rows.append((f"{actual:,.0f}", *("" if value is None else number(value) for value in values.values())))
        found += [f"## {kind.title()}\n", f"{fill(_TEXT[kind], 120)}\n", table((kind, *columns.values()), rows)]
    return found
