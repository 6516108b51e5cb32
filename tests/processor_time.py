"""Measures the processor time of tests, child processes included, for ``make test-times``."""

import os
import time
from collections import Counter
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

PROPERTY = "processor seconds"


def processor_seconds() -> float:
    """Processor time of this process and all processes below it, ended ones included."""
    children: dict[int, list[int]] = {}
    ticks: dict[int, int] = {}
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = status.read_text().rpartition(")")[2].split()
        except OSError:  # it has ended meanwhile
            continue
        number = int(status.parent.name)
        children.setdefault(int(fields[1]), []).append(number)
        ticks[number] = sum(map(int, fields[11:15]))
    found, below = 0, list(children.get(os.getpid(), []))
    for number in below:
        found += ticks[number]
        below += children.get(number, [])
    own = os.times()
    return time.process_time() + own.children_user + own.children_system + found / os.sysconf("SC_CLK_TCK")


class ProcessorTimes:
    """Writes tests and seconds of each folder to a file. A worker of xdist sends its figures with its reports."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._began = 0.0
        self._tests: Counter[str] = Counter()
        self._seconds: Counter[str] = Counter()

    def pytest_runtest_logstart(self) -> None:
        """Begin a test."""
        self._began = processor_seconds()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: Any) -> Generator[None, Any, Any]:
        """Add the time of a test to its last report."""
        if call.when == "teardown":
            item.user_properties.append((PROPERTY, processor_seconds() - self._began))
        return (yield)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Add a test to its folder."""
        folder = report.nodeid.split("::")[0].rpartition("/")[0]
        if report.when == "teardown":
            self._tests[folder] += 1
            self._seconds[folder] += dict(report.user_properties)[PROPERTY]

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Write the file."""
        if not hasattr(session.config, "workerinput"):
            rows = [f"{name},{self._tests[name]},{self._seconds[name]:.0f}" for name in sorted(self._tests)]
            self._file.write_text("\n".join(["folder,tests,seconds", *rows, ""]))
