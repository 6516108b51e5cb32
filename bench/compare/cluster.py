"""Driver of Tallybook through its own commands: ``tallybook up`` and ``tallybook bench``."""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from tallybook.core.errors import PeerError, check
from tallybook.core.limits import MIB
from tallybook.core.settings import StorageSettings
from tallybook.runtime.http.scrape import fetch_metrics

from ..equipment.proc import peak_memory_bytes, written_bytes
from ..equipment.programs import ProgramFailed, Server, module, run_json_lines
from ..gates import TALLYBOOK, Figures
from .system import SLACK_SECONDS, START_SECONDS, two_passes
from .workloads import BenchWorkload, Pace, WorkloadKind

COMMITS_METRIC: Final = "tallybook_journal_commits_total"
WRITTEN_METRIC: Final = "tallybook_journal_bytes_total"
ACCEPTED_METRIC: Final = "tallybook_bookie_add_bytes_total"
BATCHES_METRIC: Final = "tallybook_bookie_add_batches_total"
BUSY_METRIC: Final = "tallybook_journal_device_seconds_total"

FIRST_ADD_SECONDS: Final = 60.0
"""Time in which a load must add its first entry."""
MARGIN_SECONDS: Final = 2.0
"""A load that is observed for some time goes on for so long after it."""
_POLL_SECONDS: Final = 0.1


class Tallybook:
    """A cluster of ``tallybook up``, loaded by ``tallybook bench``.

    Args:
        environment: environment of its processes; default: that of this process.
    """

    name = TALLYBOOK

    def __init__(self, directory: Path, bookies: int = 3, environment: Mapping[str, str] | None = None) -> None:
        self.directory = directory
        self._environment = environment
        self._bookies = bookies
        self._server: Server | None = None
        self._metadata = ""
        self._pids: dict[str, int] = {}
        self._http_ports: list[int] = []

    def start(self) -> None:
        """Start the bookies."""
        shutil.rmtree(self.directory, ignore_errors=True)
        self.directory.mkdir(parents=True)
        arguments = ["up", "--data", str(self.directory / "data"), "--bookies", str(self._bookies), "--json"]
        self._server = Server(_tallybook(*arguments), self.directory / "up.json", self._environment)
        ready = self._server.ready(START_SECONDS)
        self._metadata = ready["ready"]
        self._pids = {bookie["bookie_id"]: bookie["pid"] for bookie in ready["bookies"]}
        self._http_ports = [bookie["ports"]["http"] for bookie in ready["bookies"] if "http" in bookie["ports"]]

    def stop(self) -> None:
        """End the processes and remove the data."""
        if self._server is not None:
            self._server.stop()
            self._server = None
            shutil.rmtree(self.directory)

    def measure(self, workload: BenchWorkload, pace: Pace, rate: float) -> Figures:
        """Run a workload. Memory is the peak of any bookie since the start."""
        if workload.kind is WorkloadKind.CHANGE:
            return self._change(workload, pace)
        if workload.kind is WorkloadKind.RECOVERY:
            return self._recovery(workload, pace)
        before = self.metrics()
        figures = (
            self._written(workload, pace) if workload.kind is WorkloadKind.WRITTEN else self.load(workload, pace, rate)
        )
        peak = max(map(peak_memory_bytes, self._pids.values()))
        return {
            **figures,
            **journal_figures(before, self.metrics()),
            "peak_memory_mib": round(peak / MIB, 1),
            "memory_over_budget_mib": round((peak - memory_budget_bytes()) / MIB, 1),
        }

    def load(self, workload: BenchWorkload, pace: Pace, rate: float = 0.0) -> Figures:
        """Run a workload of adds or reads; returns the figures of the load program.

        Raises:
            ProgramFailed: the program failed.
        """
        if workload.kind is WorkloadKind.READS:
            return self._reads(workload, pace)
        return self._adds(workload, pace, rate, pace.warm_up_seconds)

    def add_command(self, workload: BenchWorkload, pace: Pace, rate: float, warm_up_seconds: float) -> list[str]:
        """The command of a load of adds, for callers that start it themselves."""
        options: dict[str, float] = {
            "--entry-bytes": workload.entry_bytes,
            "--ledgers": workload.ledgers,
            "--window": workload.window,
            "--seconds": pace.seconds,
            "--rate": rate,
            "--warm-up-seconds": warm_up_seconds,
            "--ensemble": self._copies,
            "--write-quorum": self._copies,
            "--ack-quorum": self._copies // 2 + 1,
        }
        return self._bench("write", options)

    def metrics(self) -> dict[str, float]:
        """The metrics of all bookies, summed.

        Raises:
            ProgramFailed: a bookie does not respond.
        """
        found: dict[str, float] = {}
        for port in self._http_ports:
            try:
                shown = fetch_metrics(port)
            except PeerError as error:
                raise ProgramFailed(f"cannot read metrics of the bookie on port {port}: {error}") from error
            for name, value in shown.items():
                found[name] = found.get(name, 0.0) + value
        return found

    def wait_for_adds(self, program: Server) -> None:
        """Wait until a load that has just been started adds entries.

        Raises:
            ProgramFailed: it ended instead, or took too long.
        """
        deadline, batches = time.monotonic() + FIRST_ADD_SECONDS, self.metrics().get(BATCHES_METRIC, 0.0)
        while self.metrics().get(BATCHES_METRIC, 0.0) <= batches:
            if program.ended is not None or time.monotonic() > deadline:
                raise ProgramFailed("a load of adds did not begin")
            time.sleep(_POLL_SECONDS)

    @property
    def _copies(self) -> int:
        """Copies of each entry."""
        return min(3, self._bookies)

    @property
    def metadata(self) -> str:
        """URI of its metadata store; valid while it runs."""
        return self._metadata

    @property
    def pids(self) -> Mapping[str, int]:
        """Process ids of the bookies by name."""
        return self._pids

    def _adds(self, workload: BenchWorkload, pace: Pace, rate: float, warm_up_seconds: float) -> Figures:
        command = self.add_command(workload, pace, rate, warm_up_seconds)
        return self._one(command, pace.seconds + warm_up_seconds + SLACK_SECONDS)

    def _reads(self, workload: BenchWorkload, pace: Pace) -> Figures:
        options = {
            "--entry-bytes": workload.entry_bytes,
            "--entries": pace.entries(workload),
            "--flush-seconds": pace.flush_seconds,
            "--warm-seconds": pace.seconds if workload.again else 0.0,
        }
        found = self._one(self._bench("read", options), pace.flush_seconds + pace.seconds + SLACK_SECONDS)
        return two_passes([found["cold"], found["warm"]])

    def _written(self, workload: BenchWorkload, pace: Pace) -> Figures:
        """Adds without a warm-up, and the bytes written to the disk: per second of the load, and until all is flushed.

        The load program also needs time to start, and to close and delete its ledgers, while the bookies flush: that
        is not part of its rate.
        """
        # The first pass over the journal writes it twice, once as zeros; this is not to be measured.
        self._adds(workload, pace, 0.0, pace.warm_up_seconds)
        time.sleep(pace.flush_seconds)
        written, accepted = written_bytes(self._pids.values()), self.metrics()[ACCEPTED_METRIC]
        command = self.add_command(workload, Pace(seconds=pace.seconds + MARGIN_SECONDS), 0.0, 0.0)
        program = Server(command, self.directory / "written.json", self._environment)
        try:
            self.wait_for_adds(program)
            began, before = time.monotonic(), written_bytes(self._pids.values())
            time.sleep(pace.seconds)
            in_window, seconds = written_bytes(self._pids.values()) - before, time.monotonic() - began
            figures = program.finished(SLACK_SECONDS)
        finally:
            program.stop()
        time.sleep(pace.flush_seconds)
        written, accepted = written_bytes(self._pids.values()) - written, self.metrics()[ACCEPTED_METRIC] - accepted
        return {
            **figures,
            "device_mb_per_s": round(in_window / seconds / 1e6, 1),
            "written_per_byte": round(written / accepted, 3),
        }

    def _change(self, workload: BenchWorkload, pace: Pace) -> Figures:
        pids = [text for name, pid in self._pids.items() for text in ("--pid", f"{name}={pid}")]
        options = ["--ack-quorum", str(workload.ack_quorum), "--before-seconds", str(pace.warm_up_seconds), *pids]
        options += ["--hung", str(workload.hung), *(["--stop"] if workload.stopped else [])]
        command = module("tallybook.bench.loads.ensemble_change", "--metadata", self._metadata, *options)
        return self._one(command, pace.warm_up_seconds + SLACK_SECONDS)

    def _recovery(self, workload: BenchWorkload, pace: Pace) -> Figures:
        entries = ["--entries", str(pace.entries(workload)), "--entry-bytes", str(workload.entry_bytes)]
        program = "tallybook.bench.loads.recovery"
        command = module(program, "write", "--metadata", self._metadata, *entries)
        writer = Server(command, self.directory / "writer.json", self._environment)
        try:
            ledger = writer.ready(SLACK_SECONDS)["ledger"]
        finally:
            writer.kill()
        command = module(program, "recover", str(ledger), "--metadata", self._metadata)
        return self._one(command, SLACK_SECONDS)

    def _bench(self, verb: str, options: dict[str, float]) -> list[str]:
        arguments = [text for name, value in options.items() for text in (name, str(value))]
        return _tallybook("bench", verb, "--metadata", self._metadata, *arguments, "--json")

    def _one(self, command: list[str], timeout_seconds: float) -> dict[str, Any]:
        found = run_json_lines(command, timeout_seconds=timeout_seconds, environment=self._environment)
        check(len(found) == 1, "a load prints one line of JSON")
        return found[0]


def memory_budget_bytes() -> int:
    """Cache memory of a bookie with default settings, including queued and pending adds."""
    storage = StorageSettings()
    caches = (storage.write_cache_bytes, storage.read_cache_bytes, storage.read_ahead_bytes, storage.index_cache_bytes)
    return int(sum(caches))


def journal_figures(before: dict[str, float], after: dict[str, float]) -> Figures:
    """Journal figures between two samples: bytes per commit, and bytes per second while the device was busy."""
    grown = {name: after[name] - before.get(name, 0.0) for name in after}
    commits = grown.get(COMMITS_METRIC, 0.0)
    written = grown.get(WRITTEN_METRIC, 0.0)
    busy_seconds = grown.get(BUSY_METRIC, 0.0)
    figures: Figures = {}
    if commits:
        figures["mean_commit_bytes"] = written / commits
    if busy_seconds:
        figures["journal_mb_per_s"] = written / busy_seconds / 1e6
    return figures


def _tallybook(*arguments: str) -> list[str]:
    return module("tallybook.cli", *arguments)
