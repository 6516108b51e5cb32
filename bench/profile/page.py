"""Writes docs/understand/cost-of-an-entry.md."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Final

from tallybook.core.limits import MIB

from ..compare.report import table
from ..equipment.processor_time import ProcessorTime
from .attribution import LoadCosts
from .loads import CALLS
from .native_stacks import LIBRARIES, OTHER
from .steps import Step
from .waterfall import Waterfall, chart

BAR_CELLS: Final = 30
SMALL_SHARE: Final = 0.02
"""Steps below this share of a load are one row of its table, and listed below it."""

LARGEST: Final = 3
_US_PER_S: Final = 1e6
_PROJECT: Final = f"{os.pardir}/project"
_ROOT: Final = f"{os.pardir}/{os.pardir}"

_HEAD: Final = f"""\
# The cost of an entry

Processor time of an entry, by process and by step, under the loads of the
[benchmarks]({_PROJECT}/benchmarks.md). [Where the time goes](performance.md) explains what bounds these loads, and
[the walk of an append](walk-append.md) describes the steps. A program writes this page:

    .venv/bin/python -m tallybook.bench.profile                         # eight minutes; writes this page
    .venv/bin/python -m tallybook.bench.profile --quick --page FILE     # four minutes; figures mean little
    .venv/bin/python -m tallybook.bench.profile --only alone,open-loop  # some loads; prints their largest costs
"""

_HOW: Final = f"""\
## How it is measured

- Three bookies of `tallybook up` and the load program run on one machine. Adds have E = Qw = 3 and Qa = 2, so each
  entry is handled once by the client and three times by bookies. *Bookies* is the sum of all three.
- `py-spy` samples the Python stack of each thread, without stopping it. The innermost function that the table in
  [`bench/profile/steps.py`]({_ROOT}/bench/profile/steps.py) lists decides the step. A stack without such a function
  counts as *other*.
- The samples give only proportions. The processor time of each thread comes from the kernel
  (`/proc/PID/task/TID/stat`), user and system time together, so waiting does not count. A thread without Python code,
  such as those of gRPC and RocksDB, is a step by its name.
- `py-spy` cannot see into compiled code. Time in gRPC, the C library and the kernel counts as the Python function that
  called it.
- `py-spy` also samples threads that are ready to run and wait for a processor, most of them in the event loop. So the
  shares of *{Step.EVENT_LOOP.value}* and *{Step.LOOP_GRPC.value}* come from
  the native stacks that `perf` samples. Without `perf` the former contains the latter, and is too large.
- Entries and batches of adds are counted by the bookies, in the seconds in which the samples were taken. Reads are
  counted by the load program; their mean rate is used.
- The same bias may remain in steps after which a thread often waits, above all *send*.
- A step of few samples is uncertain. The samplers use the same processors as the load, so rates here are lower than
  those of the benchmarks.
"""

_CALLS: Final = """\
## append_nowait and append_many

A program may hand over entries one by one (`append_nowait`) or as a list (`append_many`). The loads that differ only in
that, from one process; *processors* is the mean number that were busy:
"""

_CALLS_WHY: Final = """\
- **Work of the client.** `append_nowait` checks the handle, the entry and the byte budget for each entry, and its
  caller has to ask for the group or the future of each. `append_many` takes the budget once for a call, and waits once.
  Both gather and encode entries in the same way.
- **Batches.** `append_many` hands over all its entries in one turn of the event loop, so they are gathered into few
  batches. With `append_nowait` a batch has what was appended while earlier ones were in flight. A batch costs about the
  same for any number of small entries, so this decides at small windows.
- **Waiting.** A call of `append_many` ends when its last entry is confirmed. A program with one call at a time appends
  nothing until then: processors are idle between its calls, and its rate is lower although an entry costs less. Calls
  to several ledgers at a time, or `append_nowait`, keep bookies busy.
"""

_WATERFALLS: Final = f"""\
## Where the time of one call goes

Not processor time, but the time that passes, waits included, of calls traced from the caller on
([traces]({os.pardir}/operate/tracing.md)). Stages follow each other; the means add up to the mean of the whole call,
the medians do not. An append is shown with the request whose ack completed the ack quorum, a read with the first
answer. A traced entry may be any entry of its batch. A span costs some microseconds, so untraced calls are a little
faster.
"""

_LIBRARIES: Final = """\
## In which library

Shares of the processor time of each process, by the library of the innermost function, sampled by `perf`. The kernel
is in the table only if the program may sample it, as root may.
"""


def render(
    facts: Mapping[str, str], costs: Sequence[LoadCosts], waterfalls: Sequence[Waterfall] = (), *, quick: bool = False
) -> str:
    """The whole page; ``quick`` marks figures of a short run."""
    parts = [_HEAD]
    if quick:
        parts.append("**These figures are of a short run (`--quick`), and too few samples for conclusions.**\n")
    parts += [table(("machine", ""), list(facts.items())), "## Overview\n", _overview(costs)]
    titles = [load.title for load in CALLS]
    if calls := [cost for cost in costs if cost.title in titles]:
        parts += [_CALLS, _calls(calls), _CALLS_WHY]
    if waterfalls:
        parts += [_WATERFALLS, *map(chart, waterfalls)]
    parts += [_section(cost) for cost in costs]
    if any(shares for cost in costs for shares in cost.libraries.values()):
        parts += [_LIBRARIES, _libraries(costs)]
    return "\n".join([*parts, _HOW])


def largest(costs: LoadCosts) -> list[tuple[Step, float]]:
    """The steps with the largest shares of a load, with these shares; *other* is not one."""
    total = costs.total().total_s
    shares: list[tuple[Step, float]] = []
    for step, used in costs.steps():
        if step is not Step.OTHER and total:
            shares.append((step, used.total_s / total))
    return sorted(shares, key=lambda pair: -pair[1])[:LARGEST]


def microseconds(seconds: float) -> str:
    """A time in microseconds with three digits."""
    value = seconds * _US_PER_S
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def percent(share: float) -> str:
    """A share as text."""
    return f"{share * 100:.0f} %"


def _overview(costs: Sequence[LoadCosts]) -> str:
    """One line for each load."""
    head = ("µs of a processor", "entries/s", *_processes(costs), "entry", "of it system", "MiB", "batch")
    rows = []
    for cost in costs:
        every = cost.total()
        rows.append(
            (
                cost.title,
                f"{cost.entries / cost.seconds:,.0f}",
                *(microseconds(cost.total(name).total_s / cost.entries) for name in _processes(costs)),
                microseconds(every.total_s / cost.entries),
                microseconds(every.system_s / cost.entries),
                microseconds(every.total_s / (cost.entries * cost.entry_bytes) * MIB),
                microseconds(every.total_s / cost.batches) if cost.batches else "-",
            )
        )
    return table(head, rows)


def _calls(costs: Sequence[LoadCosts]) -> str:
    head = ("load", "entries/s", *(f"{name}, µs" for name in _processes(costs)), "entries per batch", "processors")
    rows = [
        (
            cost.title,
            f"{cost.entries / cost.seconds:,.0f}",
            *(microseconds(cost.total(name).total_s / cost.entries) for name in _processes(costs)),
            f"{cost.entries / cost.batches:,.0f}" if cost.batches else "-",
            f"{cost.total().total_s / cost.seconds:.2f}",
        )
        for cost in costs
    ]
    return table(head, rows)


def _section(cost: LoadCosts) -> str:
    total = cost.total().total_s
    small = [(step, used) for step, used in cost.steps() if used.total_s < SMALL_SHARE * total]
    rows = [_row(cost, step.value, (step,)) for step, used in cost.steps() if (step, used) not in small]
    if small:
        rows.append(_row(cost, f"steps below {percent(SMALL_SHARE)}", tuple(step for step, _ in small)))
    head = ("step", *(f"{name}, µs" for name in cost.times), "together, µs", "share", "")
    batch = f", in batches of {cost.entries / cost.batches:,.0f}" if cost.batches else ""
    top = "; ".join(f"{step.value} {percent(share)}" for step, share in largest(cost))
    lead = f"{microseconds(total / cost.entries)} µs per entry{batch}. Largest: {top}.{cost.note and f' {cost.note}'}"
    parts = [f"## {cost.title}", lead, table(head, rows).rstrip()]
    if small:
        listed = ", ".join(f"{step.value} {microseconds(used.total_s / cost.entries)}" for step, used in small)
        parts.append(f"*Steps below {percent(SMALL_SHARE)}*, µs: {listed}.")
    return "\n\n".join(parts) + "\n"


def _row(cost: LoadCosts, title: str, steps: Sequence[Step]) -> tuple[str, ...]:
    used = [
        sum((times.get(step, ProcessorTime()) for step in steps), ProcessorTime()).total_s
        for times in cost.times.values()
    ]
    share = sum(used) / cost.total().total_s
    bar = "█" * round(share * BAR_CELLS) or "▏"
    return (
        title,
        *(microseconds(each / cost.entries) if each else "" for each in used),
        microseconds(sum(used) / cost.entries),
        percent(share),
        bar,
    )


def _libraries(costs: Sequence[LoadCosts]) -> str:
    names = [*dict.fromkeys(LIBRARIES.values()), OTHER]
    rows = [
        (f"{cost.title}: {process}", *(percent(shares.get(name, 0.0)) for name in names))
        for cost in costs
        for process, shares in cost.libraries.items()
        if shares
    ]
    return table(("load and process", *names), rows)


def _processes(costs: Sequence[LoadCosts]) -> list[str]:
    return list(dict.fromkeys(name for cost in costs for name in cost.times))
