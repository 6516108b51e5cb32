"""Gates of the latency benchmark, and the parts of its page."""

from __future__ import annotations

from typing import Final

from ..compare.report import number, table
from ..gates import Figures
from ..pages import upper_bound
from .cases import CASES

HEAD: Final = """# Benchmarks of latency with bad members

The latency of adds while one bookie is slow, paused or dead, or while the disk is busy. `make bench-latency` writes
this page. It contains all results, good or bad.

Four bookies, the writer and the disk share the machine below. One client appends entries of 1 KiB to four ledgers with
E = Qw = 3 and Qa = 2, in an open loop at the rate below. The latency of an entry runs from its planned append to its
confirmation. An entry that was due and not sent when the load ended counts with the time that it had waited.

In a round, each case has a load of its own. The latencies before the fault are *healthy*, those from its begin on are
*during*; only *a dead member* is measured when the writer has replaced it. *Control* has the same two times without a
fault: its ratios show how much of the others is noise. A ratio comes from one load, a gate checks the median of the
rounds. The bookie that fails is the one with most of the four ledgers. Percentiles are exact.

*Client budget used up* counts the appends that the client refused because its unconfirmed and retained entries took
all of `max_pending_bytes`. A refused append waits a millisecond, which counts as its latency. [Where the time
goes](../understand/performance.md#a-bad-member-under-load) explains why a gate is missed.
"""

MAX_RATIO: Final = 1.5
"""An ack quorum of two hides one bad member of three. A busy disk is shared by all members, so it has no gate."""

GATES: Final = tuple(
    upper_bound(f"{case.name}_p99_ratio", MAX_RATIO, f"p99, {case.title}, relative to healthy", case.name)
    for case in CASES
    if case.name in ("slow", "paused", "killed", "dead")
)

_COLUMNS: Final = {"p50_ms": "p50", "p90_ms": "p90", "p99_ms": "p99", "p999_ms": "p99.9", "max_ms": "max"}


def sections(figures: Figures) -> list[str]:
    """The tables of the page."""
    rows, ratios = [], []
    for case in CASES:
        name = case.name
        if f"{name}_p99_ratio" not in figures:
            continue
        rows += [
            (case.title, side, *(number(figures[f"{name}_{side}_{figure}"]) for figure in _COLUMNS))
            for side in ("healthy", "during")
        ]
        of_rounds = [value for figure, value in figures.items() if figure.startswith(f"{name}_p99_ratio_")]
        shown = ", ".join(map(number, of_rounds))
        counts = (f"{figures[f'{name}_{count}']:,.0f}" for count in ("ensemble_changes", "refusals"))
        ratio = number(figures[f"{name}_p99_ratio"])
        ratios.append((case.title, f"**{ratio}**", shown, *counts))
    return [
        f"## Latency in ms, at {figures['rate_entries_per_s']:,.0f} entries per second\n",
        table(("case", "", *_COLUMNS.values()), rows),
        "## p99 relative to healthy\n",
        table(("case", "median", "rounds", "ensemble changes of four ledgers", "client budget used up, times"), ratios),
    ]
