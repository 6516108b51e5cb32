"""The report in Markdown, docs/project/benchmarks.md."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tallybook.cli.measure.latency import median

from ..gates import PEER, TALLYBOOK, Figures, GateVerdict, Measurement, judge
from .gates import FAILURE_GATES, GATES, title
from .workloads import FAILURES, GROUPS, BenchWorkload

PLOT_NAME: Final = "benchmarks.png"

_NAMES: Final = {TALLYBOOK: "Tallybook", PEER: "BookKeeper"}

COLUMNS: Final = {
    "entries_per_s": "entries/s",
    "mb_per_s": "MB/s",
    "p50_ms": "p50 ms",
    "p99_ms": "p99 ms",
    "p999_ms": "p99.9 ms",
    "errors": "errors",
    "rate": "planned/s",
    "seq_entries_per_s": "in order, entries/s",
    "seq_mb_per_s": "MB/s",
    "cold_seq_entries_per_s": "first pass",
    "random_p50_ms": "random p50 ms",
    "random_p99_ms": "p99 ms",
    "mean_commit_bytes": "mean commit",
    "journal_mb_per_s": "journal MB/s",
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

_INTRODUCTION: Final = """\
# Benchmarks

Tallybook and Apache BookKeeper 4.17.3 on one machine, under the same loads, in turns. This page is written by
`make bench`; it contains all results, good or bad. [Where the time goes](performance.md) explains the figures,
and why a gate is not met.
"""

_HOW: Final = """\
## How it is measured

- Both systems: three bookies on loopback and one disk, ledgers with E = Qw = 3 and Qa = 2, a checksum on every entry,
  every entry durable on two bookies before it is confirmed, entry-log flushing on.
- Tallybook runs as `tallybook up` starts it, with default settings, and is loaded by `tallybook bench`. BookKeeper runs
  with `DbLedgerStorage`, a synced journal, the v2 protocol and no client throttling, and is loaded by a Java program
  of the same shape; `bench/peers/bookkeeper` has both, and the JVM options.
- In a round the two take turns, workload by workload: BookKeeper, Tallybook, BookKeeper, Tallybook. Only one is under
  load at a time, and the other has had time to come to rest. Both start empty, and are warmed up, for each group of
  workloads.
- A load has a warm-up that is not counted: five seconds for Tallybook, eight for BookKeeper. The latency of an entry
  runs from its append to its confirmation; in an open loop from the moment it was *planned* for. Every entry counts.
  A run with an error does not.
- Reads: a ledger is written, closed, left alone until it is flushed, then read twice; the second pass is compared.
  BookKeeper reads with `batchRead`, its fastest way.
- A ratio is formed in each round, from figures that are minutes apart; a gate is about the median of the ratios.
- *Journal, of the raw device*: bytes a second that the journal of one loaded bookie wrote while its device was busy,
  against bare `O_DIRECT|O_DSYNC` writes of the same size right after.
- *Bytes written*: what the kernel counted for the bookies (`/proc/PID/io`), from the first entry to after the flush,
  against the payload bytes that each of them accepted. *Memory*: the most a bookie ever had (`VmHWM`), above the sum
  of its caches.
"""

_FAILURES: Final = """\
## When something dies

Tallybook alone; a gate is about the worst round. *A bookie is killed*: one ledger with E = Qw = 3 and 1 KiB entries at
a steady rate, and `kill -9` to one of its three bookies. Where it is *stopped* it gets `kill -STOP`: its connection
stays, and it says nothing. There is one replacement candidate, or there are four, of which three are stopped at the
same moment. Detection runs from there until the writer looks for another bookie: a timeout that settings decide
(`away_timeout_ms`, a quarter of it where nothing can be confirmed without the bookie; `add_timeout_ms` for one that
says nothing). The change runs from there to the first confirmation under the new ensemble. *A writer is killed*: in the
middle of its appends; recovery fences the ledger, reads what is not known to be confirmed (the tail), writes it again,
and closes the ledger.
"""

_REPEAT: Final = """\
## Repeat it

    make bench                                      # three rounds, about three quarters of an hour; writes this page
    make bench BENCH_ARGS=--quick                   # a smoke run of some minutes: nothing to conclude from
    make bench BENCH_ARGS='--only adds-1KiB,alone'  # some workloads
    make bench BENCH_ARGS='--only change,recovery'  # what happens when a bookie or a writer is killed; needs no peer
    make bench BENCH_ARGS='--dir /mnt/disk/bench'   # where both systems keep their data; 40 GB are needed

It needs a JDK 17 and Maven for the peer, which is fetched on the first run. An interrupted run ends its processes and
keeps what it measured under `bench/results/`. After a `kill -9` the next run ends the peer's processes, or
`bench/peers/bookkeeper/peer stop DIR` does. Single loads, on any cluster:

    tallybook bench write --metadata URI --entry-bytes 1024 --ledgers 4 --window 5000 --seconds 10
    tallybook bench read --metadata URI --entry-bytes 1024 --entries 400000
    tallybook bench journal --dir DIR
    bench/peers/bookkeeper/peer                     # the peer by itself
"""


def render(facts: dict[str, str], measurements: Sequence[Measurement], *, plot: bool) -> str:
    """The whole page."""
    verdicts = [judge(gate, measurements) for gate in GATES]
    parts = [_INTRODUCTION, _machine(facts), _gates(verdicts)]
    if plot:
        parts.append(f"![Entries a second and latency of both systems]({PLOT_NAME})\n")
    tables = [_workload(workload, measurements) for group in GROUPS for workload in group]
    parts += ["## Round by round\n", *filter(None, tables), *_failures(measurements), _HOW, _REPEAT]
    return "\n".join(parts)


def _machine(facts: dict[str, str]) -> str:
    return table(("machine", ""), list(facts.items()))


def _gates(verdicts: Sequence[GateVerdict]) -> str:
    how = "A figure with x is Tallybook's divided by BookKeeper's in the same round."
    return f"## Gates\n\n{how}\n\n{_verdicts(verdicts, 'median')}"


def _verdicts(verdicts: Sequence[GateVerdict], looked_at: str) -> str:
    rows = [
        (
            title(verdict.gate),
            verdict.gate.wanted,
            "not measured" if verdict.value is None else f"**{number(verdict.value)}{_unit(verdict)}**",
            "yes" if verdict.met else "**no**",
            ", ".join(number(pair.value) for pair in verdict.pairs),
        )
        for verdict in verdicts
    ]
    return table(("gate", "wanted", looked_at, "met", "rounds"), rows)


def _failures(measurements: Sequence[Measurement]) -> list[str]:
    """Tallybook's figures of failures; empty if there are none."""
    tables = [table for workload in FAILURES if (table := _workload(workload, measurements))]
    if not tables:
        return []
    verdicts = [verdict for gate in FAILURE_GATES if (verdict := judge(gate, measurements)).pairs]
    return [_FAILURES, _verdicts(verdicts, "worst"), *tables]


def _unit(verdict: GateVerdict) -> str:
    return "x" if verdict.gate.ratio else ""


def _workload(workload: BenchWorkload, measurements: Sequence[Measurement]) -> str:
    """The figures of every round, and medians of rounds without errors; empty if there are none."""
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
    for system in (PEER, TALLYBOOK):
        own = [measurement.figures for measurement in found if measurement.system == system]
        sound = [figures for figures in own if not figures.get("errors")]
        if len(own) > 1 and sound:
            rows.append(("median", _NAMES[system], *(_cell(_median(sound, name)) for name in columns)))
    rendered = table(("round", "system", *(COLUMNS[name] for name in columns)), rows)
    return f"### {workload.title[0].upper()}{workload.title[1:]}\n\n{rendered}"


def _median(figures: Sequence[Figures], name: str) -> float | None:
    values = [figure[name] for figure in figures if name in figure]
    return median(values) if values else None


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
