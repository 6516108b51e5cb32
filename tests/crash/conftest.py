"""The number of crash states that the suites of this folder check: a sample by default, many more in ``make crash``.

TALLYBOOK_TESTS=full selects the latter. In both cases the totals are printed at the end.
"""

from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Any

import pytest

from tallybook.sim.deterministic import CrashFound, CrashOptions, CrashReport, SimDisk, enumerate_crashes

from ..sampling import FULL, SAMPLE

EVERYTHING = CrashOptions(subsets=20, singles=64, torn_writes=64, tear_points=128)
"""Each pending change lost alone and kept alone, each write torn at each sector, and 20 combinations besides."""

PROPERTY = "crash states"
LEAST_STATES_OF_ALL = 25_000
LEAST_DOUBLES_OF_ALL = 2_000


class Crashes:
    """Runs ``enumerate_crashes`` as thoroughly as this run is meant to be, and keeps what it reports.

    Called with the options and the second crashes of an ordinary run; ``full`` says the options of a thorough one where
    ``EVERYTHING`` would take too long.
    """

    thorough = FULL

    def __init__(self, keep: Callable[[str, object], None]) -> None:
        self._keep = keep

    def __call__(
        self,
        workload: Callable[..., Any],
        check: Callable[..., Any],
        *,
        options: CrashOptions,
        doubles: int,
        disk: SimDisk | None = None,
        full: CrashOptions = EVERYTHING,
        full_doubles: int = 250,
    ) -> CrashReport:
        """Every state passes, or ``CrashFound``."""
        try:
            report = enumerate_crashes(
                workload,
                check,
                disk=disk,
                options=full if FULL else options,
                sample=SAMPLE,
                double_crashes=max(doubles, full_doubles) if FULL else -(-doubles // SAMPLE),
            )
        except CrashFound as found:
            self._keep(PROPERTY, {**asdict(found.report), "failures": []})
            raise
        self._keep(PROPERTY, {**asdict(report), "failures": []})
        return report


@pytest.fixture
def crashes(record_property: Callable[[str, object], None]) -> Crashes:
    """Enumerates crashes, thinly or fully."""
    return Crashes(record_property)


def pytest_configure(config: pytest.Config) -> None:
    """Register the mark that follows."""
    config.addinivalue_line("markers", "crash_states: enumerates crash states")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that enumerate crash states, for ``make crash`` to choose them."""
    for item in items:
        if "crashes" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.crash_states)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A full run that checked too few states has failed, too."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    whole = FULL and reporter is not None and not session.config.option.keyword
    if whole and not session.exitstatus and not hasattr(session.config, "workerinput"):
        least = {"checked": LEAST_STATES_OF_ALL, "doubles": LEAST_DOUBLES_OF_ALL}
        if any(_sum(reporter, key) < count for key, count in least.items()):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Report what was checked: one line per suite, and the totals."""
    suites = list(_reports(terminalreporter))
    if not suites:
        return
    terminalreporter.section("crash states")
    for name, report in suites:
        terminalreporter.write_line(f"{report['checked']:7} states, {report['doubles']:5} doubles  {name}")
    checked, doubles, lost, failed = (_sum(terminalreporter, key) for key in ("checked", "doubles", "broken", "stuck"))
    terminalreporter.write_line(f"{checked:7} states, {doubles:5} doubles  in all")
    terminalreporter.write_line(f"{lost} states in which something answered was lost, {failed} failed boots")


def _sum(terminalreporter: Any, key: str) -> int:
    return sum(report[key] for _, report in _reports(terminalreporter))


def _reports(terminalreporter: Any) -> Iterator[tuple[str, dict[str, int]]]:
    for outcome in ("passed", "failed"):
        for done in terminalreporter.getreports(outcome):
            for key, report in getattr(done, "user_properties", ()):
                if key == PROPERTY and done.when == "call":
                    yield done.nodeid.removeprefix("tests/crash/"), report
