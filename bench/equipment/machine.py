"""Facts of the machine that figures belong to."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final

LIBRARIES: Final = ("grpcio", "uvloop", "rocksdict", "crc32c")


def facts(directory: Path) -> dict[str, str]:
    """Facts needed to judge the figures; ``directory`` has the data of the systems."""
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "processor": f"{_processor()}, {os.cpu_count()} cores",
        "memory": f"{_memory_bytes() / 2**30:.0f} GiB",
        "disk": _disk(directory),
        "kernel": f"{platform.system()} {platform.release()}",
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "tallybook": f"{_version('tallybook')}, {_revision()}",
        "libraries": ", ".join(f"{name} {_version(name)}" for name in LIBRARIES),
        "java": _java(),
    }


def peer_facts() -> dict[str, str]:
    """Versions of the programs that peers need, beside Java."""
    redis = re.search(r"v=(\S+)", _output("redis-server", "--version"))
    go = re.search(r"go version go(\S+)", _output("go", "version"))
    return {"go": go[1] if go else "none", "redis": redis[1] if redis else "none"}


def _processor() -> str:
    found = re.search(r"^model name\s*:\s*(.+)$", _read("/proc/cpuinfo"), re.MULTILINE)
    return found[1] if found else platform.machine()


def _memory_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _disk(directory: Path) -> str:
    """Device and file system of the longest mount point above ``directory``."""
    path = directory.resolve()
    mounts = [line.split()[:3] for line in _read("/proc/mounts").splitlines()]
    above = [mount for mount in mounts if path.is_relative_to(mount[1])]
    if not above:
        return "unknown"
    device, _, kind = max(above, key=lambda mount: len(mount[1]))
    return f"{device}, {kind}"


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


def _revision() -> str:
    here = Path(__file__).parent
    revision = _output("git", "--no-optional-locks", "-C", str(here), "rev-parse", "--short", "HEAD")
    changed = _output("git", "--no-optional-locks", "-C", str(here), "status", "--porcelain", "--untracked-files=no")
    return f"revision {revision or 'unknown'}{' with changes' if changed else ''}"


def _java() -> str:
    return next(iter(re.findall(r'version "([^"]+)"', _output("java", "-version"))), "none")


def _output(*command: str) -> str:
    """Output of a command; empty if it cannot be run."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    except OSError:
        return ""
    return (done.stdout + done.stderr).strip() if done.returncode == 0 else ""


def _read(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError as error:
        print(f"{path}: {error.strerror}", file=sys.stderr)
        return ""
