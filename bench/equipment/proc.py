"""Figures of other processes from ``/proc`` (Linux)."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path


def peak_memory_bytes(pid: int | str) -> int:
    """Peak physical memory of a process."""
    return _numbers(Path(f"/proc/{pid}/status").read_text())["VmHWM"] * 1024


def memory_bytes(pid: int | str) -> int:
    """Current physical memory of a process."""
    return _numbers(Path(f"/proc/{pid}/status").read_text())["VmRSS"] * 1024


def written_bytes(pids: Iterable[int]) -> int:
    """Bytes that processes have caused to be written to block devices, including dirty pages."""
    return sum(_numbers(Path(f"/proc/{pid}/io").read_text())["write_bytes"] for pid in pids)


def _numbers(text: str) -> dict[str, int]:
    """The first number of every line ``name: number ...``."""
    found = {}
    for line in text.splitlines():
        name, _, rest = line.partition(":")
        first = rest.split()[:1]
        if first and first[0].isdigit():
            found[name] = int(first[0])
    return found
