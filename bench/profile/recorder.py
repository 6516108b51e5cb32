"""Samples processes for some seconds: stacks with ``py-spy`` and ``perf``, and the processor time of threads."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tallybook.core.errors import InvalidArgument

from ..equipment.processor_time import TICKS_PER_S, ThreadTime, parse_stat, used_between
from ..equipment.programs import ProgramFailed
from .attribution import StepTimes, attribute, merge
from .native_stacks import FIELDS, library_shares, loop_shares, parse_native_stacks
from .stacks import parse_stacks

SAMPLES_PER_S: Final = 100
"""Of each thread. More would take processor time from the load, on the same machine."""

SLACK_SECONDS: Final = 30.0
_NATIVE_SAMPLES_PER_S: Final = 400
_STACK_BYTES: Final = 8192
_NO_KERNEL_FROM: Final = 2
"""From this value of perf_event_paranoid on, only root may sample the kernel."""


@dataclass(frozen=True, slots=True)
class Recording:
    """Result: by process the time of each step, and the share of each library (empty without perf)."""

    times: Mapping[str, StepTimes]
    libraries: Mapping[str, Mapping[str, float]]


def thread_times(pid: int) -> dict[int, ThreadTime]:
    """Processor time of each thread of a process so far.

    Raises:
        ProgramFailed: the process has ended.
    """
    found = {}
    try:
        for task in Path(f"/proc/{pid}/task").iterdir():
            try:
                found[int(task.name)] = parse_stat((task / "stat").read_text(), TICKS_PER_S)
            except (FileNotFoundError, ProcessLookupError):
                continue  # the thread has just ended
    except FileNotFoundError:
        raise ProgramFailed(f"process {pid} ended while it was profiled") from None
    return found


def record(processes: Mapping[str, Sequence[int]], seconds: float, scratch: Path) -> Recording:
    """Sample processes for ``seconds``.

    Args:
        processes: process ids by name; those with one name are added up.
        scratch: directory for the samples, which stay there.

    Raises:
        ProgramFailed: a process ended, or a sampler failed.
    """
    scratch.mkdir(parents=True, exist_ok=True)
    pids = [pid for group in processes.values() for pid in group]
    stacks = {pid: scratch / f"{pid}.stacks" for pid in pids}
    data = scratch / "perf.data"
    before = {pid: thread_times(pid) for pid in pids}
    samplers = [_start(_py_spy(pid, seconds, file)) for pid, file in stacks.items()]
    if shutil.which("perf"):
        samplers.append(_start(_perf(pids, seconds, data)))
    time.sleep(seconds)
    after = {pid: thread_times(pid) for pid in pids}
    _wait(samplers)
    native = list(parse_native_stacks(_script(data)))
    loops = loop_shares(native)
    times, libraries = {}, {}
    for name, group in processes.items():
        try:
            parts = [
                attribute(parse_stacks(stacks[pid].read_text()), used_between(before[pid], after[pid]), loops)
                for pid in group
            ]
        except (OSError, InvalidArgument) as error:
            raise ProgramFailed(f"py-spy: {error}") from error
        times[name] = merge(parts)
        libraries[name] = library_shares(stack for stack in native if stack.process_id in group)
    return Recording(times, libraries)


def _py_spy(pid: int, seconds: float, file: Path) -> list[str]:
    beside = Path(sys.executable).with_name("py-spy")
    program = str(beside) if beside.exists() else "py-spy"
    # Without --nonblocking it would stop the process for each sample.
    options = ["--nonblocking", "--threads", "--format", "raw", "--rate", str(SAMPLES_PER_S)]
    return [program, "record", "--pid", str(pid), "--duration", str(round(seconds)), *options, "--output", str(file)]


def _perf(pids: Sequence[int], seconds: float, file: Path) -> list[str]:
    paranoid = int(Path("/proc/sys/kernel/perf_event_paranoid").read_text())
    event = "task-clock" if os.geteuid() == 0 or paranoid < _NO_KERNEL_FROM else "task-clock:u"
    stacks = ["--call-graph", f"dwarf,{_STACK_BYTES}"]
    options = ["--quiet", "--event", event, *stacks, "--freq", str(_NATIVE_SAMPLES_PER_S), "--output", str(file)]
    return ["perf", "record", *options, "--pid", ",".join(map(str, pids)), "--", "sleep", str(seconds)]


def _script(file: Path) -> str:
    """The samples of perf as text; empty if there are none."""
    if not file.exists():
        return ""
    command = ["perf", "script", "--no-inline", "--fields", FIELDS, "--input", str(file)]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout


def _start(command: Sequence[str]) -> subprocess.Popen[str]:
    try:
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )
    except OSError as error:
        raise ProgramFailed(f"{command[0]} cannot be started: {error}; make setup installs py-spy") from error


def _wait(samplers: Sequence[subprocess.Popen[str]]) -> None:
    """Wait for the samplers.

    Raises:
        ProgramFailed: one of them failed.
    """
    failures = []
    for sampler in samplers:
        try:
            _, errors = sampler.communicate(timeout=SLACK_SECONDS)
        except subprocess.TimeoutExpired:
            sampler.kill()
            _, errors = sampler.communicate()
        if sampler.returncode:
            failures.append(f"{sampler.args!r} ended with {sampler.returncode}: {errors.strip()[-500:]}")
    if failures:
        raise ProgramFailed("; ".join(failures))
