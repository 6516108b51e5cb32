"""The processes of a soak test: bookies, repair, offloader, gateway and load; two bookies are killed and restarted.

Three bookies run from start to end; their growth is judged. The other two are killed and stopped in turns and restarted
soon after, which causes ensemble changes, recoveries and catch-up. They are away longer than the repair waits, so the
repair replaces their copies, and they return with over-replicated copies.
"""

from __future__ import annotations

import time
from contextlib import ExitStack
from pathlib import Path
from typing import Final, Self

from ..equipment.bookies import RestartableBookie, metadata_in
from ..equipment.programs import ProgramFailed, Server, free_port, module, run_json_lines
from ..gates import Figures
from .watch import WatchedProcess

BOOKIES: Final = 5
LASTING: Final = 3
DOWN_SECONDS: Final = 5.0
START_SECONDS: Final = 60.0
VERIFY_SECONDS: Final = 900.0
SETTINGS: Final = (
    "journal.segment_bytes=4MiB",
    "journal.segment_count=4",
    "storage.write_cache_bytes=8MiB",
    "storage.read_cache_bytes=4MiB",
    "storage.index_cache_bytes=4MiB",
    "storage.entry_log_bytes=8MiB",
    "storage.flush_interval_ms=2000",
    "collection.interval_ms=5000",
    "collection.deleted_delay_s=10",
    "collection.compact_all_interval_ms=30000",
    "collection.unnamed_delay_s=20",
    "scrub.period_s=30",
)
"""Small sizes and intervals, so that all background work happens continuously."""
REPAIR: Final = ("lost_after_s=2", "open_grace_s=20", "interval_s=2", "lease_s=5", "check_period_s=120")
OFFLOAD: Final = ("deletion_lag_s=15", "max_set_wait_s=5", "interval_s=3", "tidy_interval_s=30", "orphan_delay_s=10")
MAINTENANCE: Final = ("collector_rounds", "ledgers_dropped", "entry_logs_removed", "compacted_bytes", "scrub_rounds")
"""Counters of every bookie."""
REPAIRED: Final = ("rounds", "places", "copied_batches", "copied_bytes")
_GATEWAY_MIB: Final = "4"
_POLL_SECONDS: Final = 0.1


class SoakCluster:
    """All processes; a context manager that ends them."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.metadata = metadata_in(directory)
        self.bookies = [
            RestartableBookie(f"b{each}", directory / f"b{each}", self.metadata, SETTINGS) for each in range(BOOKIES)
        ]
        self.watched: list[WatchedProcess] = []
        self.strikes = 0
        """Number of times that a bookie was killed or stopped."""
        self.through_gateway = 0
        """How many loads went through the gateway."""
        self._undo = ExitStack()
        self._down: tuple[RestartableBookie, float] | None = None
        self._gateway_address = ""
        self._gateway_load: Server | None = None

    def __enter__(self) -> Self:
        with ExitStack() as undo:
            for bookie in self.bookies:
                undo.callback(bookie.stop)
                bookie.start()
            for bookie in self.bookies:
                bookie.ready()
            self.load = self._start(undo, "load", "tallybook.bench.soak.load", "run", "--book", str(self._book))
            self._repair = self._watch_repair(undo)
            self._watch_offloader(undo)
            self._watch_gateway(undo)
            http = self.load.ready(START_SECONDS)["http"]
            self.watched += [WatchedProcess(each.name, each.pid, each.http_port) for each in self.bookies[:LASTING]]
            self.watched.append(WatchedProcess("load", self.load.pid, _port(http)))
            self._wait_for_answers()
            self._undo = undo.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._undo.close()

    def strike(self) -> None:
        """Kill or stop one of the two bookies, alternating; ``tend`` restarts it."""
        if self._down is not None:
            return
        bookie = self.bookies[LASTING + self.strikes % (BOOKIES - LASTING)]
        # Each of the two is killed once, then stopped once.
        (bookie.stop if self.strikes // (BOOKIES - LASTING) % 2 else bookie.kill)()
        self.strikes += 1
        self._down = (bookie, time.monotonic() + DOWN_SECONDS)

    def tend(self) -> None:
        """Restart bookies that were down long enough, keep the gateway busy, and check that all processes run.

        Raises:
            ProgramFailed: a process ended by itself.
        """
        if self._down is not None and time.monotonic() >= self._down[1]:
            self._down[0].start()
            self._down = None
        if self._gateway_load is not None and self._gateway_load.ended is not None:
            # An append may fail while a bookie is down; the next load starts anew.
            self.through_gateway += not self._gateway_load.ended
            self._gateway_load = None
        if self._gateway_load is None:
            options = ["--metadata", self.metadata, "--gateway", self._gateway_address]
            options += ["--mib", _GATEWAY_MIB, "--rounds", "1"]
            command = module("tallybook.bench.streams.gateway_load", *options)
            self._gateway_load = Server(command, self.directory / "gateway-load.json")
        for bookie in self.bookies:
            if bookie.ended is not None:
                raise ProgramFailed(f"{bookie.name} ended by itself with {bookie.ended}")
        if self.load.ended is not None:
            raise ProgramFailed(f"the load ended with {self.load.ended}: see {self.directory / 'load.log'}")

    def end(self) -> tuple[Figures, Figures]:
        """Wait for all bookies, end the load, and read everything back: figures of the load and of the check.

        Raises:
            ProgramFailed: a process failed.
        """
        if self._down is not None:
            self._down[0].start()
            self._down = None
        for bookie in self.bookies:
            bookie.ready()
        if self._gateway_load is not None:
            self._gateway_load.stop()
        self.load.stop()
        if self.load.ended:
            raise ProgramFailed(f"the load ended with {self.load.ended}: see {self.directory / 'load.log'}")
        options = ["--metadata", self.metadata, "--book", str(self._book)]
        command = module("tallybook.bench.soak.load", "verify", *options)
        return self.load.said()[-1], run_json_lines(command, timeout_seconds=VERIFY_SECONDS)[-1]

    def totals(self) -> Figures:
        """Background work of the bookies that ran from start to end, and of the repair.

        Raises:
            ProgramFailed: a process does not respond.
        """
        metrics = [bookie.metrics() for bookie in self.bookies[:LASTING]]
        maintenance = {name: sum(each[f"tallybook_bookie_{name}_total"] for each in metrics) for name in MAINTENANCE}
        repair = self._repair.metrics()
        return {**maintenance, **{f"repair_{name}": repair[f"tallybook_repair_{name}_total"] for name in REPAIRED}}

    # -- inside -----------------------------------------------------------------------

    def _wait_for_answers(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        while not all(each.answers for each in self.watched):
            if time.monotonic() > deadline:
                raise ProgramFailed(f"not every process shows metrics within {START_SECONDS:.0f} s")
            time.sleep(_POLL_SECONDS)

    @property
    def _book(self) -> Path:
        return self.directory / "book.json"

    def _watch_repair(self, undo: ExitStack) -> WatchedProcess:
        port = free_port()
        settings = [*REPAIR, f"http_listen=127.0.0.1:{port}"]
        options = [word for each in settings for word in ("--set", each)]
        repair = self._start(undo, "repair", "tallybook.cli", "repair", "run", *options)
        self.watched.append(WatchedProcess("repair", repair.pid, port))
        return self.watched[-1]

    def _watch_offloader(self, undo: ExitStack) -> None:
        archive, port = self.directory / "archive", free_port()
        archive.mkdir()
        settings = [*OFFLOAD, f"http_listen=127.0.0.1:{port}"]
        options = ["--archive", f"file://{archive}", *(word for each in settings for word in ("--set", each))]
        offloader = self._start(undo, "offloader", "tallybook.cli", "offload", "run", *options)
        self.watched.append(WatchedProcess("offloader", offloader.pid, port))

    def _watch_gateway(self, undo: ExitStack) -> None:
        gateway = self._start(undo, "gateway", "tallybook.cli", "gateway", "run", "--json")
        addresses = gateway.ready(START_SECONDS)
        self._gateway_address = addresses["ready"]
        self.watched.append(WatchedProcess("gateway", gateway.pid, _port(addresses["http"])))

    def _start(self, undo: ExitStack, name: str, program: str, *words: str) -> Server:
        server = Server(module(program, *words, "--metadata", self.metadata), self.directory / f"{name}.json")
        undo.callback(server.stop)
        return server


def _port(address: str) -> int:
    return int(address.rpartition(":")[2])
