"""The report in Markdown, docs/project/benchmarks.md."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Final

from tallybook.cli.measure.latency import median

from ..gates import TALLYBOOK, GateVerdict, Measurement, judge
from .gates import FAILURE_GATES, GATES, title
from .peer import KINDS
from .workloads import FAILURES, GROUPS, BenchWorkload, Pace

PLOT_NAME: Final = "benchmarks.png"

_NAMES: Final = {**{name: kind.title for name, kind in KINDS.items()}, TALLYBOOK: "Tallybook"}

COLUMNS: Final = {
    "entries_per_s": "entries/s",
    "mb_per_s": "MB/s",
    "p50_ms": "p50 ms",
    "p90_ms": "p90 ms",
    "p99_ms": "p99 ms",
    "p999_ms": "p99.9 ms",
    "max_ms": "max ms",
    "errors": "errors",
    "rate": "planned/s",
    "seq_entries_per_s": "in order, entries/s",
    "seq_mb_per_s": "MB/s",
    "cold_seq_entries_per_s": "first pass",
    "random_p50_ms": "random p50 ms",
    "random_p99_ms": "p99 ms",
    "mean_commit_bytes": "mean commit",
    "journal_mb_per_s": "journal MB/s",
    "device_mb_per_s": "written MB/s",
    "raw_mb_per_s": "raw MB/s",
    "written_per_byte": "written per byte",
    "peak_memory_mib": "peak MiB",
    "gap_ms": "longest gap ms",
    "detection_ms": "detection ms",
    "change_ms": "change ms",
    "ledger_entries": "entries",
    "tail_entries": "of them in the tail",
    "recovery_ms": "recovery ms",
    "tail_read_ms": "reading the tail ms",
    "beyond_tail_ms": "the rest ms",
}
"""The figures in tables, in order, with their titles."""

MIN_ROUNDS: Final = 5
"""A run with fewer rounds is marked as short on its page."""

SHORT: Final = "**A short run: its figures only show that everything runs.**\n"

UNDERSTAND: Final = f"{os.pardir}/understand"
"""The folder of the pages that explain the figures, as a link from docs/project/."""

_INTRODUCTION: Final = f"""\
# Benchmarks

Tallybook and Apache BookKeeper 4.17.3 on one machine, under the same loads, alternately. `make bench` writes this page.
It contains all results, good or bad. [Where the time goes]({UNDERSTAND}/performance.md) explains the figures, and why
a gate is not met.
"""

_HOW: Final = """\
## How it is measured

- Both systems: three bookies on loopback and one disk, ledgers with E = Qw = 3 and Qa = 2, a checksum on every entry,
  every entry durable on two bookies before it is confirmed, entry-log flushing on.
- Tallybook runs as started by `tallybook up`, with default settings, and is loaded by `tallybook bench`. BookKeeper
  runs with `DbLedgerStorage`, a synced journal, the v2 protocol and no client throttling, and is loaded by an
  equivalent Java program. `bench/peers/bookkeeper` has this program and the JVM options.
- In a round the two systems alternate, workload by workload: BookKeeper, Tallybook, BookKeeper, Tallybook. Only one is
  under load at a time, after the other has become idle. For each group of workloads, both start empty and are warmed
  up.
- Each load begins with a warm-up that is not counted: five seconds for Tallybook, eight for BookKeeper. The latency of
  an entry is the time from its append to its confirmation; in an open loop, from its *planned* append, so a stall
  counts for every entry that should have been sent meanwhile. All planned entries are sent. The load programs keep
  every latency in nanoseconds, and percentiles are exact: a histogram would round them. A run with an error does not
  count.
- *25, 50 and 75 % of the peer's peak rate* are open loops, at these shares of what BookKeeper reached in the same round
  with 1 KiB entries and 5,000 unconfirmed.
- Reads: a ledger is written, closed, and left alone until it is flushed. Then it is read twice, and the second pass is
  compared. BookKeeper reads with `batchRead`, its fastest way.
- Each ratio comes from one round, from figures that are minutes apart; a gate checks the median of the ratios. The
  spread is the highest less the lowest value, as a share of the median.
- *Journal, of the raw device*: bytes per second that the journal of one loaded bookie wrote while its device was busy,
  compared with plain `O_DIRECT|O_DSYNC` writes of the same size directly afterwards.
- *Bytes written*: the kernel's count for the bookies (`/proc/PID/io`), from the first entry until after the flush,
  divided by the payload bytes that each of them accepted. *Written by the bookies, of the raw device*: the same count
  of all bookies per second while the load adds entries, relative to plain writes of 1 MiB afterwards. *Memory*: the
  peak of a bookie (`VmHWM`), less the sum of its caches.
"""

_FAILURES: Final = """\
## Failures

Tallybook only. A gate checks the worst round.

- *A bookie is killed*: one ledger with E = Qw = 3 and 1 KiB entries at a constant rate, and `kill -9` for one of its
  three bookies. *A bookie is stopped*: it gets `kill -STOP`, so its connection stays open but it does not answer. There
  is either one replacement candidate, or there are four, of which three are stopped at the same moment.
- *Detection* is the time from then until the writer looks for a replacement. Settings decide it: `away_timeout_ms`, or
  a quarter of it if nothing can be confirmed without the bookie; `add_timeout_ms` for a bookie that does not answer.
- *Change* is the time from then until the first confirmation with the new ensemble.
- *A writer is killed* in the middle of its appends: recovery fences the ledger, reads the entries that are not known to
  be confirmed (the tail), writes them back, and closes the ledger.
"""

_REPEAT: Final = """\
## Repeat it

    make bench                                      # five rounds, about 90 minutes, and the other pages but peers
    make bench BENCH_ARGS=--quick                   # a smoke test of some minutes; its figures mean nothing
    make bench BENCH_ARGS='--only adds-1KiB,alone'  # some workloads
    make bench BENCH_ARGS='--only change,recovery'  # failures of a bookie or a writer; needs no BookKeeper
    make bench BENCH_ARGS='--dir /mnt/disk/bench'   # where both systems store their data; 40 GB are needed

BookKeeper needs a JDK 17 and Maven, and is downloaded in the first run. An interrupted run ends its processes and
keeps its results under `bench/results/`. After a `kill -9`, the next run ends BookKeeper's processes, or
`bench/peers/bookkeeper/peer stop DIR` does. Single loads, on any cluster:

    tallybook bench write --metadata URI --entry-bytes 1024 --ledgers 4 --window 5000 --seconds 10
    tallybook bench read --metadata URI --entry-bytes 1024 --entries 400000
    tallybook bench journal --dir DIR
    bench/peers/bookkeeper/peer                     # BookKeeper by itself
"""


def render(facts: dict[str, str], measurements: Sequence[Measurement], *, plot: bool) -> str:
    """The whole page."""
    verdicts = [judge(gate, measurements) for gate in GATES]
    parts = [_INTRODUCTION, *short_note(facts), table(("machine", ""), list(facts.items())), _gates(verdicts)]
    if plot:
        parts.append(f"![Entries a second and latency of both systems]({PLOT_NAME})\n")
    tables = [workload_table(workload, measurements) for group in GROUPS for workload in group]
    parts += ["## Round by round\n", *filter(None, tables), *_failures(measurements), _HOW, _REPEAT]
    return "\n".join(parts)


def run_facts(rounds: int, pace: Pace) -> dict[str, str]:
    """The length of a run, for ``short_note``."""
    return {"rounds": str(rounds), "seconds of a load": f"{pace.seconds:g}"}


def short_note(facts: Mapping[str, str]) -> list[str]:
    """A note on the page of a run that is too short for conclusions; else nothing."""
    short = int(facts["rounds"]) < MIN_ROUNDS or float(facts["seconds of a load"]) < Pace().seconds
    return [SHORT] if short else []


def _gates(verdicts: Sequence[GateVerdict]) -> str:
    how = (
        "A figure with x is Tallybook's, divided by BookKeeper's in the same round. *Not measured*: there was no "
        "round, or none without errors of either system; the tables below have them."
    )
    return f"## Gates\n\n{how}\n\n{_verdicts(verdicts, 'median')}"


def _verdicts(verdicts: Sequence[GateVerdict], looked_at: str) -> str:
    rows = [
        (
            title(verdict.gate),
            verdict.gate.wanted,
            "not measured" if verdict.value is None else f"**{number(verdict.value)}{_unit(verdict)}**",
            _spread([pair.value for pair in verdict.pairs]),
            "yes" if verdict.met else "**no**",
            ", ".join(number(pair.value) for pair in verdict.pairs),
        )
        for verdict in verdicts
    ]
    return table(("gate", "wanted", looked_at, "spread", "met", "rounds"), rows)


def _failures(measurements: Sequence[Measurement]) -> list[str]:
    """Tallybook's figures of failures; empty if there are none."""
    tables = [table for workload in FAILURES if (table := workload_table(workload, measurements))]
    if not tables:
        return []
    verdicts = [verdict for gate in FAILURE_GATES if (verdict := judge(gate, measurements)).pairs]
    return [_FAILURES, _verdicts(verdicts, "worst"), *tables]


def _unit(verdict: GateVerdict) -> str:
    return "x" if verdict.gate.ratio else ""


def workload_table(workload: BenchWorkload, measurements: Sequence[Measurement]) -> str:
    """The figures of every round, with median and spread of rounds without errors; empty if there are none."""
    found = [measurement for measurement in measurements if measurement.workload == workload.name]
    if not found:
        return ""
    columns = [name for name in COLUMNS if any(name in measurement.figures for measurement in found)]
    rows = [
        (
            str(measurement.round),
            _NAMES[measurement.system],
            *(_cell(measurement.figures.get(name)) for name in columns),
        )
        for measurement in found
    ]
    for system in _NAMES:
        own = [measurement.figures for measurement in found if measurement.system == system]
        sound = [figures for figures in own if not figures.get("errors")]
        if len(own) > 1 and sound:
            values = [[figures[name] for figures in sound if name in figures] for name in columns]
            rows.append(("median", _NAMES[system], *(_cell(median(each)) if each else "" for each in values)))
            rows.append(("spread", _NAMES[system], *map(_spread, values)))
    rendered = table(("round", "system", *(COLUMNS[name] for name in columns)), rows)
    return f"### {workload.title[0].upper()}{workload.title[1:]}\n\n{rendered}"


def _spread(values: Sequence[float]) -> str:
    """Highest less lowest of ``values``, relative to the median; empty if that says nothing."""
    if len(values) < 2 or not median(values):
        return ""
    return f"{(max(values) - min(values)) / abs(median(values)) * 100:.0f} %"


def _cell(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,}" if isinstance(value, int) else number(value)


def number(value: float) -> str:
    """A figure with about three significant digits and thousands separators."""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.2f}" if abs(value) < 10 else f"{value:.1f}"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(cell.replace('|', '/') for cell in line)} |\n" for line in lines)
