"""Processor time of threads and processes, from ``stat`` files below ``/proc/PID`` (Linux)."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tallybook.core.errors import InvalidArgument

TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class ProcessorTime:
    """Seconds of a processor, in the program and in the kernel for it."""

    user_s: float = 0.0
    system_s: float = 0.0

    @property
    def total_s(self) -> float:
        """Both together."""
        return self.user_s + self.system_s

    def __add__(self, other: ProcessorTime) -> ProcessorTime:
        return ProcessorTime(self.user_s + other.user_s, self.system_s + other.system_s)

    def __sub__(self, other: ProcessorTime) -> ProcessorTime:
        return ProcessorTime(self.user_s - other.user_s, self.system_s - other.system_s)

    def __mul__(self, factor: float) -> ProcessorTime:
        return ProcessorTime(self.user_s * factor, self.system_s * factor)


@dataclass(frozen=True, slots=True)
class ThreadTime:
    """Processor time of a thread. ``command`` is the name that the kernel knows it by."""

    command: str
    used: ProcessorTime


def processor_seconds(pids: Iterable[int]) -> float:
    """Processor time of processes so far, all threads together, also those that have ended."""
    stats = (Path(f"/proc/{pid}/stat").read_text() for pid in pids)
    return sum(parse_stat(text, TICKS_PER_S).used.total_s for text in stats)


def parse_stat(text: str, ticks_per_s: int) -> ThreadTime:
    """Name and processor time in a ``stat`` file.

    Raises:
        InvalidArgument: the text has another form.
    """
    head, _, tail = text.rpartition(")")
    fields = tail.split()
    try:
        used = ProcessorTime(int(fields[11]) / ticks_per_s, int(fields[12]) / ticks_per_s)
    except (IndexError, ValueError) as error:
        raise InvalidArgument(f"not the stat file of a thread: {text[:200]!r}") from error
    return ThreadTime(head.partition("(")[2], used)


def used_between(before: Mapping[int, ThreadTime], after: Mapping[int, ThreadTime]) -> dict[int, ThreadTime]:
    """Processor time of each thread between two readings. A new thread began at zero; one that ended is left out."""
    found = {}
    for thread_id, now in after.items():
        earlier = before.get(thread_id, ThreadTime(now.command, ProcessorTime()))
        found[thread_id] = ThreadTime(now.command, now.used - earlier.used)
    return found
