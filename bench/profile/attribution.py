"""Divides the processor time of threads among steps, by the shares of their sampled stacks."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from tallybook.core.batch import encoded_bytes
from tallybook.core.limits import BATCH_TABLE_ROW_BYTES

from ..equipment.processor_time import ProcessorTime, ThreadTime
from .stacks import Stack
from .steps import Step, step_of_stack, step_of_thread

StepTimes: TypeAlias = Mapping[Step, ProcessorTime]


@dataclass(frozen=True, slots=True)
class LoadCosts:
    """Processor time of one load.

    Args:
        title: title of the load.
        entries: entries that were confirmed, or read, while it was measured.
        batches: batches that they were in; 0 if unknown.
        times: processor time of each process, by step.
        note: more about the load, for its section.
        libraries: for each process the share of its time in each library; empty if not measured.
    """

    title: str
    seconds: float
    entry_bytes: int
    entries: float
    batches: float
    times: Mapping[str, StepTimes]
    libraries: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    note: str = ""

    def total(self, process: str | None = None) -> ProcessorTime:
        """Processor time of a process, or of all."""
        chosen = self.times.values() if process is None else [self.times[process]]
        return sum((used for times in chosen for used in times.values()), ProcessorTime())

    def steps(self) -> list[tuple[Step, ProcessorTime]]:
        """Every step with the time of all processes together, in the order of the steps."""
        sums: defaultdict[Step, ProcessorTime] = defaultdict(ProcessorTime)
        for times in self.times.values():
            for step, used in times.items():
                sums[step] += used
        return [(step, sums[step]) for step in Step if step in sums]


def attribute(
    stacks: Iterable[Stack],
    threads: Mapping[int, ThreadTime],
    loop_shares: Mapping[int, Mapping[Step, float]] | None = None,
) -> dict[Step, ProcessorTime]:
    """Divide the processor time of each thread among the steps that it was seen in.

    Idle time does not count: only the proportions within a thread come from the samples. A thread without any sample
    is a step by its name.

    Args:
        loop_shares: for threads with an event loop, the measured share of the loop itself. It replaces that of the
            samples, which count the waits of the loop, too.
    """
    seen: defaultdict[int, Counter[Step]] = defaultdict(Counter)
    for stack in stacks:
        if stack.frames:
            seen[stack.thread_id][step_of_stack(stack)] += stack.count
    found: defaultdict[Step, ProcessorTime] = defaultdict(ProcessorTime)
    for thread_id, thread in threads.items():
        if thread.used.total_s <= 0:
            continue
        counts = seen[thread_id]
        left = thread.used
        if (loop := (loop_shares or {}).get(thread_id)) is not None:
            del counts[Step.EVENT_LOOP]
            for step, share in loop.items():
                found[step] += thread.used * share
                left -= thread.used * share
        if not counts:
            counts[step_of_thread(thread.command)] = 1
        samples = counts.total()
        for step, count in counts.items():
            found[step] += left * (count / samples)
    return dict(found)


def merge(parts: Iterable[StepTimes]) -> dict[Step, ProcessorTime]:
    """The sum over several processes."""
    found: defaultdict[Step, ProcessorTime] = defaultdict(ProcessorTime)
    for times in parts:
        for step, used in times.items():
            found[step] += used
    return dict(found)


def entries_in_batches(batches: float, batch_bytes: float, entry_bytes: int) -> float:
    """Number of entries in batches of ``batch_bytes`` in total, if all entries have the same size."""
    return (batch_bytes - batches * encoded_bytes(0, 0)) / (entry_bytes + BATCH_TABLE_ROW_BYTES)
