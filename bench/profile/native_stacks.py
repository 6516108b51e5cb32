"""Parses the native stacks that ``perf script`` prints: in which library a processor works, and how much in the loop.

``py-spy`` also samples a thread that is ready to run and waits for a processor. Such a wait begins most often in the
event loop, so the share of the loop has to come from ``perf``, which samples only threads that run.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from .steps import Step

KERNEL: Final = "kernel"
OTHER: Final = "other"
LIBRARIES: Final = {
    "libpython": "Python",
    "python3": "Python",
    "cygrpc": "gRPC",
    "libc.": "C library",
    "loop.": "uvloop",
    "_asyncio": "asyncio",
    "_crc32c": "crc32c",
    "rocksdict": "RocksDB",
    "_message": "protobuf",
    "[kernel": KERNEL,
}
"""Beginnings of file names, and the names on the page."""

FIELDS: Final = "comm,pid,tid,ip,sym,dso"
"""Fields of ``perf script`` that this module parses."""

_SAMPLE: Final = re.compile(r"^\S.*?\s+(\d+)/(\d+)\s*$")
_FRAME: Final = re.compile(r"^\s+[0-9a-f]+ (.*) \((.*)\)$")
_RUNS_PYTHON: Final = "_PyEval_EvalFrameDefault"
_RUNS_LOOP: Final = frozenset({"uv_run", "uv__io_poll", "uv__run_check", "uv__run_idle", "uv__run_timers"})
"""Functions that call all others of the loop. ``uv_run`` is not enough: only the inner part of a stack is kept."""
_GRPC: Final = "cygrpc"


@dataclass(frozen=True, slots=True)
class NativeStack:
    """A sampled stack, innermost frame first: the function and the file of its library."""

    process_id: int
    thread_id: int
    frames: tuple[tuple[str, str], ...]

    @property
    def library(self) -> str:
        """The library of the innermost frame, as named on the page."""
        file = self.frames[0][1] if self.frames else ""
        return next((title for start, title in LIBRARIES.items() if file.startswith(start)), OTHER)

    @property
    def in_loop(self) -> bool:
        """Whether its thread has an event loop."""
        return any(function in _RUNS_LOOP for function, _ in self.frames)

    @property
    def loop_step(self) -> Step | None:
        """The step, if the event loop does not run Python code; ``None`` if it does, or is not on the stack."""
        grpc = False
        for function, file in self.frames:
            if function == _RUNS_PYTHON:
                return None
            grpc = grpc or file.startswith(_GRPC)
            if function in _RUNS_LOOP:
                return Step.LOOP_GRPC if grpc else Step.EVENT_LOOP
        return None


def parse_native_stacks(text: str) -> Iterator[NativeStack]:
    """The samples in the output of ``perf script``."""
    head: tuple[int, int] | None = None
    frames: list[tuple[str, str]] = []
    for line in [*text.splitlines(), ""]:
        if frame := _FRAME.match(line):
            frames.append((frame[1], frame[2].rpartition("/")[2]))
        elif sample := _SAMPLE.match(line):
            head = (int(sample[1]), int(sample[2]))
        elif not line and head is not None:
            yield NativeStack(*head, tuple(frames))
            head, frames = None, []


def loop_shares(stacks: Iterable[NativeStack]) -> dict[int, dict[Step, float]]:
    """For each thread with an event loop, the share of its time in each step of the loop itself."""
    samples = list(stacks)
    totals = Counter(stack.thread_id for stack in samples)
    found: dict[int, Counter[Step]] = {stack.thread_id: Counter() for stack in samples if stack.in_loop}
    for stack in samples:
        if (step := stack.loop_step) is not None:
            found[stack.thread_id][step] += 1
    return {
        thread_id: {step: count / totals[thread_id] for step, count in steps.items()}
        for thread_id, steps in found.items()
    }


def library_shares(stacks: Iterable[NativeStack]) -> Mapping[str, float]:
    """The share of each library; empty if there is no sample."""
    counts = Counter(stack.library for stack in stacks)
    return {name: count / counts.total() for name, count in counts.items()}
