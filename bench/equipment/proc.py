"""What the kernel knows about other processes (Linux)."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path


def peak_memory_bytes(pid: int | str) -> int:
    """The most physical memory that a process ever had at one time."""
    return _numbers(Path(f"/proc/{pid}/status").read_text())["VmHWM"] * 1024


def memory_bytes(pid: int | str) -> int:
    """The physical memory that a process has now."""
    return _numbers(Path(f"/proc/{pid}/status").read_text())["VmRSS"] * 1024


def written_bytes(pids: Iterable[int]) -> int:
    """Bytes that processes sent towards block devices, or will have to."""
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
