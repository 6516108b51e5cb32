"""The comparison: rounds in which both systems get the same loads in turns.

In a round, for each group of workloads, both systems are started with empty data, warmed up, and loaded in turns: the
peer, Tallybook, the peer, Tallybook. Only one of them is under load at a time; the other one has had time to finish its
background work. This module computes no averages: ``gates`` forms a ratio per round and uses the median.
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final

from tallybook.cli.measure.raw_device import RawDevice
from tallybook.core.limits import BLOCK_BYTES, KIB, MAX_COMMIT_BYTES

from ..equipment.programs import ProgramFailed
from ..gates import BOOKKEEPER, TALLYBOOK, Figures, Measurement
from .bookkeeper import BookKeeper
from .cluster import Tallybook
from .history import ComparisonResults
from .peer import KINDS, ScriptedPeer
from .system import System
from .workloads import FAILURES, GROUPS, PEAK, BenchWorkload, Pace, WorkloadKind

SMALLEST_COMMIT_BYTES: Final = 64 * KIB
"""The gate on the journal covers commits of at least this size."""

RAW_SECONDS: Final = 1.0


class Comparison:
    """Runs rounds and stores their results.

    Args:
        directory: data of both systems; on a real disk.
        only: workloads to run; empty: all.
        port: the first of up to six ports for the peer.
        peer: name of the peer.
    """

    def __init__(
        self,
        directory: Path,
        results: ComparisonResults,
        pace: Pace,
        only: Collection[BenchWorkload],
        port: int,
        peer: str = BOOKKEEPER,
    ) -> None:
        self._directory = directory
        self._results = results
        self._pace = pace
        self._only = only
        self._bookies = KINDS[peer].bookies
        folder = directory / peer
        self._peer = BookKeeper(folder, port) if peer == BOOKKEEPER else ScriptedPeer(peer, folder, port)

    def run(self, rounds: int) -> None:
        """Run ``rounds`` rounds. Results before an error or an interruption are kept.

        Raises:
            ProgramFailed: a system cannot be started or stopped.
        """
        for number in range(1, rounds + 1):
            self.run_round(number)

    def run_round(self, number: int) -> None:
        """Run one round; ``run`` says what it raises."""
        for group in GROUPS:
            wanted = self._wanted(group)
            if not wanted:
                continue
            if wanted[0].kind is WorkloadKind.JOURNAL:
                self._journal(number, wanted[0])
            else:
                self._group(number, wanted)
        for workload in self._wanted(FAILURES):
            self._failure(number, workload)

    def _wanted(self, group: Sequence[BenchWorkload]) -> list[BenchWorkload]:
        return [workload for workload in group if not self._only or workload in self._only]

    # -- both systems in turns ----------------------------------------------------------

    def _group(self, number: int, group: Sequence[BenchWorkload]) -> None:
        ours = Tallybook(self._directory / TALLYBOOK, self._bookies)
        both = any(workload.compared for workload in group)
        systems: list[System] = [self._peer, ours] if both else [ours]
        with ExitStack() as stack:
            for system in systems:
                self._say(number, f"starting {system.name}")
                stack.enter_context(running(system))
            for system in systems:
                system.measure(PEAK, replace(self._pace, seconds=self._pace.warm_up_seconds), 0.0)
            for workload in group:
                for system in systems if workload.compared else [ours]:
                    self._measure(number, system, workload)

    def _measure(self, number: int, system: System, workload: BenchWorkload) -> None:
        peak = self._peak_of_the_peer(number) if workload.share else 0.0
        if workload.share and not peak:
            self._say(number, f"{system.name}, {workload.title}: left out, the peer's peak rate is not known")
            return
        rate = peak * workload.share
        # Flush the page cache now, so that it is not written during the next load.
        os.sync()
        time.sleep(self._pace.settle_seconds)
        try:
            figures = system.measure(workload, self._pace, rate)
            if workload.kind is WorkloadKind.WRITTEN:
                figures["raw_mb_per_s"] = self._raw_mb_per_s(MAX_COMMIT_BYTES)
                figures["device_share"] = figures["device_mb_per_s"] / figures["raw_mb_per_s"]
            if workload.kind is WorkloadKind.ADDS and not figures["entries_per_s"]:
                raise ProgramFailed("no entry was confirmed")
        except ProgramFailed as failure:
            self._say(number, f"{system.name}, {workload.title}: {failure}")
            return
        self._keep(number, system.name, workload, {**figures, "rate": rate} if rate else figures)

    def _peak_of_the_peer(self, number: int) -> float:
        """The peer's peak rate in this round; measured again if it failed, else of the last round that has it; or 0."""
        if not self._peak_in_round(number):
            self._measure(number, self._peer, PEAK)
        return next((peak for each in range(number, 0, -1) if (peak := self._peak_in_round(each))), 0.0)

    def _peak_in_round(self, number: int) -> float | None:
        return self._results.figure(number, self._peer.name, PEAK.name, "entries_per_s")

    # -- Tallybook alone ----------------------------------------------------------------

    def _journal(self, number: int, workload: BenchWorkload) -> None:
        """One bookie under adds, and then the raw device, with writes of the same size as its commits."""
        cluster = Tallybook(self._directory / TALLYBOOK, bookies=1)
        self._say(number, f"starting one bookie of {cluster.name}")
        with running(cluster):
            os.sync()
            time.sleep(self._pace.settle_seconds)
            figures = cluster.measure(workload, self._pace, 0.0)
            commit_bytes = figures.get("mean_commit_bytes", 0.0)
            if commit_bytes >= SMALLEST_COMMIT_BYTES:
                size = min(MAX_COMMIT_BYTES, round(commit_bytes / BLOCK_BYTES) * BLOCK_BYTES)
                time.sleep(self._pace.flush_seconds)
                figures["raw_mb_per_s"] = self._raw_mb_per_s(size)
                figures["journal_to_raw"] = figures["journal_mb_per_s"] / figures["raw_mb_per_s"]
            self._keep(number, cluster.name, workload, figures)

    def _raw_mb_per_s(self, write_bytes: int) -> float:
        """Rate of durable writes to the device of the running cluster, while it is idle."""
        with RawDevice(self._directory / TALLYBOOK / "raw") as raw:
            return raw.bytes_per_second(write_bytes, RAW_SECONDS) / 1e6

    def _failure(self, number: int, workload: BenchWorkload) -> None:
        """A failure workload, on a cluster of its own: what a dead bookie or writer left must not affect others."""
        cluster = Tallybook(self._directory / TALLYBOOK, bookies=workload.bookies)
        self._say(number, f"starting {workload.bookies} bookies of {cluster.name}")
        with running(cluster):
            self._measure(number, cluster, workload)

    # -- inside -------------------------------------------------------------------------

    def _keep(self, number: int, system: str, workload: BenchWorkload, figures: Figures) -> None:
        self._results.add(Measurement(number, system, workload.name, figures))
        shown = ", ".join(f"{name} {value:g}" for name, value in figures.items())
        self._say(number, f"{system}, {workload.title}: {shown}")

    def _say(self, number: int, text: str) -> None:
        print(f"round {number}: {text}", flush=True)


@contextmanager
def running(system: System) -> Iterator[None]:
    """Start a system, and stop it in any case, also after a failed start."""
    try:
        system.start()
        yield
    finally:
        system.stop()
