"""Comparison with several peers in the same rounds, and its report, docs/project/benchmarks-peers.md.

Each peer is compared with Tallybook by itself, one after the other, and has results of its own:

    DIR/PEER/results.jsonl     measurements of a peer and of Tallybook beside it
    DIR/benchmarks-peers.md    the report
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from textwrap import fill
from typing import Final

from tallybook.cli.measure.latency import median
from tallybook.core.errors import InvalidArgument

from ..gates import Gate, judge
from .comparison import Comparison
from .gates import GATES
from .history import FILE_NAME, ComparisonResults
from .peer import KINDS
from .report import number, short_note, table, workload_table
from .workloads import GROUPS, WORKLOADS, BenchWorkload, Pace, WorkloadKind

PAGE_NAME: Final = "benchmarks-peers.md"

COMPARED: Final = tuple(
    workload
    for group in GROUPS
    for workload in group
    if workload.kind is WorkloadKind.ADDS and workload.name != "adds-4KiB"
)

_INTRODUCTION: Final = """\
# Benchmarks beside other systems

Tallybook and other systems that store logs, on one machine, under the same loads. This page contains all results, good
or bad. [Benchmarks](benchmarks.md) has more about BookKeeper: reads, failures, and how Tallybook is measured.
"""

_HOW: Final = """\
## How it is measured

- Each system writes the same entries, and confirms an entry when it is on disk. Otherwise the guarantees differ, as the
  list above says; the ratios compare speed only.
- Tallybook runs as started by `tallybook up`, with default settings: three bookies, E = Qw = 3 and Qa = 2, or one
  bookie and E = Qw = Qa = 1 beside a peer with one copy. A confirmed entry is on the disks of an ack quorum.
- All servers and the load program share the machine and one disk. So a server with more threads, or a load program that
  costs less, is faster here also where it would not be on machines of its own.
- Four ledgers or streams are written at once, one in *one at a time*. NATS is loaded over one connection with
  `PublishAsync` of its Go client, Redis over one connection per stream with pipelined commands, by the program in
  `bench/peers/load`. The load programs of BookKeeper and Tallybook are a Java and a Python program.
- In a round, Tallybook alternates with each peer, workload by workload. Only one system is under load at a time, after
  the other has become idle. Both start empty and are warmed up for each group of workloads.
- Each load begins with a warm-up that is not counted. The latency of an entry is the time from its append to its
  confirmation; in *25, 50 and 75 % of the peer's peak rate*, open loops, from its *planned* append. The peak is what
  the peer reached in the same round, so the rates differ from peer to peer, and Tallybook gets the same.
- A ratio comes from one round; the table has the median of the rounds. Runs with an error do not count.
- Redis has default settings but for those above: commands run on one thread, and the append-only file is rewritten in
  the background when it has doubled.
"""

_REPEAT: Final = """\
## Repeat it

    make bench-peers                                                   # five rounds, about two hours
    make bench-peers BENCH_ARGS=--quick                                # a smoke test of some minutes
    .venv/bin/python -m tallybook.bench --peers nats --only adds-1KiB  # one peer, some workloads
    bench/peers/nats/peer                                              # NATS by itself; likewise redis

NATS and the load program are compiled in the first run, which needs Go 1.26; versions are those of
`bench/peers/load/go.mod`. Redis is the installed `redis-server` (Debian: package `redis-server`). BookKeeper needs a
JDK 17 and Maven. Results are under `bench/results/`; a run of all peers and workloads with at least five rounds
writes this page.
"""


def parse_peers(text: str) -> list[str]:
    """The names of peers, separated by commas.

    Raises:
        InvalidArgument: there is no such peer, or none is named.
    """
    names = list(dict.fromkeys(filter(None, text.split(","))))
    if not names or not set(names) <= KINDS.keys():
        raise InvalidArgument(f"peers are {', '.join(KINDS)}, not {text!r}")
    return names


class PeersComparison:
    """Runs rounds with each peer in turn.

    Args:
        directory: data of all systems.
        results: by peer.
        only: workloads to run; empty: all of ``COMPARED``.
        port: the first of six ports for the peers, one of which runs at a time.

    Raises:
        InvalidArgument: these peers do not run one of the workloads.
    """

    def __init__(
        self,
        directory: Path,
        results: Mapping[str, ComparisonResults],
        pace: Pace,
        only: Collection[BenchWorkload],
        port: int,
    ) -> None:
        if other := [workload.name for workload in only if workload not in COMPARED]:
            raise InvalidArgument(f"not compared with several peers: {', '.join(other)}")
        self._each = [
            Comparison(directory, found, pace, only or COMPARED, port, peer) for peer, found in results.items()
        ]

    def run(self, rounds: int) -> None:
        """Run ``rounds`` rounds. Results before an error or an interruption are kept.

        Raises:
            ProgramFailed: a system cannot be started or stopped.
        """
        for number_of_round in range(1, rounds + 1):
            for comparison in self._each:
                comparison.run_round(number_of_round)


def load_peers(target: Path) -> dict[str, ComparisonResults]:
    """Read the results of a comparison with several peers.

    Raises:
        InvalidArgument: there are none, or they are not valid.
    """
    found = {peer: ComparisonResults.load(target / peer) for peer in KINDS if (target / peer / FILE_NAME).exists()}
    if not found:
        raise InvalidArgument(f"{target} has no results")
    return found


def render_peers(results: Mapping[str, ComparisonResults]) -> str:
    """The whole page. The figures of a short run are marked."""
    facts = next(iter(results.values())).facts
    tables = [
        workload_table(workload, found.measurements).replace("### ", f"### {KINDS[peer].title}: ", 1)
        for peer, found in results.items()
        for workload in COMPARED
    ]
    parts = [
        _INTRODUCTION,
        *short_note(facts),
        table(("machine", ""), list(facts.items())),
        "## What a confirmation means\n",
        "\n".join(fill(f"- {KINDS[peer].guarantee}", 120, subsequent_indent="  ") for peer in results) + "\n",
        "## Ratios\n",
        "A figure with x is Tallybook's, divided by the peer's in the same round; in parentheses: medians of both.\n",
        _ratios(results),
        _HOW,
        _REPEAT,
        "## Round by round\n",
        *filter(None, tables),
    ]
    return "\n".join(parts)


def _ratios(results: Mapping[str, ComparisonResults]) -> str:
    names = [workload.name for workload in COMPARED]
    gates = [gate for gate in GATES if gate.ratio and gate.workload in names]
    rows = [
        (f"{WORKLOADS[gate.workload].title}: {gate.what}", *(_ratio(gate, results[peer], peer) for peer in results))
        for gate in gates
    ]
    heads = [f"{KINDS[peer].title}, {_copies(KINDS[peer].bookies)}" for peer in results]
    return table(("load and figure", *heads), rows)


def _copies(number_of_copies: int) -> str:
    return "one copy" if number_of_copies == 1 else f"{number_of_copies} copies"


def _ratio(gate: Gate, results: ComparisonResults, peer: str) -> str:
    verdict = judge(gate, results.measurements, peer)
    if verdict.value is None:
        return "not measured"
    ours, theirs = (median([getattr(pair, side) for pair in verdict.pairs]) for side in ("ours", "peer"))
    unit = "" if gate.at_least else " ms"
    ratio = round(verdict.value, 2)
    behind = ratio < 1 if gate.at_least else ratio > 1
    ahead = ", **the peer is faster**" if behind else ""
    return f"**{number(ratio)}x** ({number(ours)} : {number(theirs)}{unit}){ahead}"
