"""Stages of single calls, one after another, from their spans. Pure.

A stage ends at a moment that a span begins or ends, or has an event; it begins where the stage before it ends. So the
stages of a call add up to its whole time.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean, median
from typing import Final, NamedTuple, TypeAlias

from tallybook.bookie.spans import ENTRY_LOG, INDEX, JOURNAL, JOURNAL_WRITE, SERVE
from tallybook.client.spans import ADD, READ, REQUEST

from ..loads.traced_calls import CALLER

ACK_QUORUM: Final = 2
BAR_CELLS: Final = 40

Moments: TypeAlias = list[tuple[str, int]]
"""Stages, each with the time at which it ends."""


class TimedSpan(NamedTuple):
    """A span; ids are hexadecimal, times nanoseconds of the wall clock."""

    name: str
    trace_id: str
    span_id: str
    parent_id: str
    begin_ns: int
    end_ns: int
    events: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Waterfall:
    """Times of the stages of calls of one kind, in seconds, by stage; each has one for every call."""

    title: str
    stages: Mapping[str, Sequence[float]]
    calls: int
    incomplete: int
    """Traced calls without all spans, which are left out."""


def waterfall(title: str, spans: Iterable[TimedSpan]) -> Waterfall:
    """The stages of all traced calls."""
    traces: defaultdict[str, list[TimedSpan]] = defaultdict(list)
    for span in spans:
        traces[span.trace_id].append(span)
    stages: defaultdict[str, list[float]] = defaultdict(list)
    calls = incomplete = 0
    for trace in traces.values():
        try:
            moments = moments_of(trace)
        except LookupError:
            incomplete += 1
            continue
        calls += 1
        for (_, begin), (stage, end) in pairwise(moments):
            stages[stage].append((end - begin) / 1e9)
    return Waterfall(title, stages, calls, incomplete)


def moments_of(trace: Sequence[TimedSpan]) -> Moments:
    """The stages of one call, the first entry being its begin.

    Raises:
        LookupError: a span is missing.
    """
    caller = next((span for span in trace if span.name == CALLER), None)
    if caller is None:
        raise LookupError("no span of the caller")
    found = _read(trace, caller) if _children(trace, caller, READ) else _add(trace, caller)
    return [("", caller.begin_ns), *found, ("client: result to the caller", caller.end_ns)]


def _add(trace: Sequence[TimedSpan], caller: TimedSpan) -> Moments:
    add = _child(trace, caller, ADD)
    request = _answered(trace, add)[ACK_QUORUM - 1]
    serve = _child(trace, request, SERVE)
    journal = _child(trace, serve, JOURNAL)
    write = _child(trace, journal, JOURNAL_WRITE)
    return [
        ("client: append call", add.begin_ns),
        ("client: wait in the accumulator", add.events["sealed"]),
        ("client: encode", request.begin_ns),
        ("client: wait to send", request.events["sent"]),
        ("send, receive at the bookie", serve.begin_ns),
        ("bookie: verify, admission", journal.begin_ns),
        ("bookie: wait for the journal's turn", write.begin_ns),
        ("bookie: device write, until reported", write.end_ns),
        ("bookie: ack", serve.end_ns),
        ("send, receive at the client", request.end_ns),
        ("client: confirm, in order", add.end_ns),
    ]


def _read(trace: Sequence[TimedSpan], caller: TimedSpan) -> Moments:
    read = _child(trace, caller, READ)
    request = _answered(trace, read)[0]
    serve = _child(trace, request, SERVE)
    index, log = _children(trace, serve, INDEX), _children(trace, serve, ENTRY_LOG)
    # Without a lookup or a read from the disk, because a cache has the entry, the stage takes no time.
    looked_up = max((span.end_ns for span in index), default=serve.begin_ns)
    began = min((span.begin_ns for span in index + log), default=serve.begin_ns)
    return [
        ("client: read call", request.begin_ns),
        ("client: encode, wait to send", request.events["sent"]),
        ("send, receive at the bookie", serve.begin_ns),
        ("bookie: caches", began),
        ("bookie: index", max(began, looked_up)),
        ("bookie: entry log", max((span.end_ns for span in log), default=max(began, looked_up))),
        ("bookie: answer", serve.end_ns),
        ("send, receive at the client", request.end_ns),
        ("client: verify, decode", read.end_ns),
    ]


def _answered(trace: Sequence[TimedSpan], parent: TimedSpan) -> list[TimedSpan]:
    """Requests with the bookie's span, the first to be answered first."""
    served = (span for span in _children(trace, parent, REQUEST) if _children(trace, span, SERVE))
    return sorted(served, key=lambda span: span.end_ns)


def _children(trace: Sequence[TimedSpan], parent: TimedSpan, name: str) -> list[TimedSpan]:
    return [span for span in trace if span.parent_id == parent.span_id and span.name == name]


def _child(trace: Sequence[TimedSpan], parent: TimedSpan, name: str) -> TimedSpan:
    return _children(trace, parent, name)[0]


def chart(found: Waterfall) -> str:
    """A table of the stages with bars, as preformatted text."""
    means = {stage: fmean(times) for stage, times in found.stages.items()}
    total, passed = sum(means.values()), 0.0
    width = max(map(len, means), default=0)
    lines = [f"    {'stage':<{width}}  mean ms   p50 ms"]
    for stage, mean in means.items():
        begin, end = (round(moment / total * BAR_CELLS) for moment in (passed, passed + mean))
        passed += mean
        bar = " " * min(begin, BAR_CELLS - 1) + ("█" * (end - begin) or "▏")
        lines.append(f"    {stage:<{width}}  {mean * 1e3:7.3f}  {median(found.stages[stage]) * 1e3:7.3f}  {bar}")
    whole = [sum(times) for times in zip(*found.stages.values(), strict=True)]
    if whole:
        lines.append(f"    {'all':<{width}}  {total * 1e3:7.3f}  {median(whole) * 1e3:7.3f}")
    left = f", {found.incomplete:,} more left out for want of a span" if found.incomplete else ""
    return f"### {found.title}\n\n{found.calls:,} calls{left}.\n\n" + "\n".join(lines) + "\n"
