"""A cluster of two revisions: bookies are upgraded one by one under load, and downgraded again.

In each step four loads run: one writes ledgers with the code of each revision, one writes a stream with each, through a
gateway of the other revision. A repair runs, and at the end of the step an offloader archives closed ledgers and
releases their copies; both alternate between the revisions. Then programs of both revisions read everything that was
ever confirmed: ledgers from bookies and archive, streams through the other revision's gateway.

Bookies are upgraded and downgraded first with a clean stop and then with a kill, so that each revision replays a
journal of the other.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

from tallybook.bench.compare.revisions import Tree
from tallybook.bench.equipment.bookies import RestartableBookie, metadata_in
from tallybook.bench.equipment.programs import ProgramFailed, Server, module

from .controlled_program import ControlledProgram
from .fixture import EAGER_OFFLOAD, SETTINGS, archive_url

BOOKIES: Final = 4
"""One more than a ledger needs, so that writers have a replacement while one bookie restarts."""
LOAD: Final = Path(__file__).with_name("mixed_load.py")
STREAMS: Final = Path(__file__).with_name("mixed_streams.py")
OTHER: Final = {"old": "new", "new": "old"}
START_SECONDS: Final = 60.0
OFFLOAD_SECONDS: Final = 180.0
HOLD_SECONDS: Final = 3.0


class MixedCluster:
    """A cluster whose bookies run one of two revisions each.

    Args:
        directory: for all files.
        say: called with a line for each step.
        hold_seconds: how long the loads run between two changes.
    """

    def __init__(
        self, old: Tree, new: Tree, directory: Path, say: Callable[[str], None], hold_seconds: float = HOLD_SECONDS
    ) -> None:
        self._trees = {"old": old, "new": new}
        self._directory = directory
        self._say = say
        self._hold_seconds = hold_seconds
        self._metadata = metadata_in(directory)
        self._bookies = [
            RestartableBookie(
                f"b{number}", directory / f"b{number}", self._metadata, SETTINGS, environment=old.environment
            )
            for number in range(BOOKIES)
        ]
        self._written: dict[Path, list[dict[str, Any]]] = {LOAD: [], STREAMS: []}
        self._gateways: dict[str, str] = {}
        self._steps = 0

    def run(self) -> None:
        """All steps.

        Raises:
            ProgramFailed: something that was confirmed is not there, or a process ended that should not.
        """
        with self._cluster():
            with self._step("old bookies"):
                time.sleep(self._hold_seconds)
            with self._step("bookies become new, one by one"):
                self._change("new", self._bookies, kill=False)
            with self._step("new bookies"):
                time.sleep(self._hold_seconds)
            with self._step("bookies become old again, one by one"):
                self._change("old", self._bookies, kill=False)
            with self._step("some are killed and become new"):
                self._change("new", self._bookies[: BOOKIES // 2], kill=True)
            with self._step("they are killed and become old, the others new"):
                self._change("old", self._bookies[: BOOKIES // 2], kill=True)
                self._change("new", self._bookies[BOOKIES // 2 :], kill=True)

    def run_briefly(self) -> None:
        """Do one step, with bookies of both revisions and one that is killed and upgraded.

        Raises:
            ProgramFailed: as ``run``.
        """
        for bookie in self._bookies[: BOOKIES // 2]:
            bookie.environment = self._trees["new"].environment
        with self._cluster(), self._step("bookies of both, of which one is killed and becomes new"):
            self._change("new", self._bookies[-1:], kill=True)

    @contextmanager
    def _cluster(self) -> Iterator[None]:
        """Start all bookies, and a gateway of each revision."""
        with ExitStack() as stack:
            for bookie in self._bookies:
                stack.callback(bookie.stop)
            self._start(self._bookies)
            for side in self._trees:
                gateway = self._server(side, "gateway", "run", "--json")
                stack.callback(gateway.stop)
                self._gateways[side] = gateway.ready(START_SECONDS)["ready"]
            yield

    def _start(self, bookies: Sequence[RestartableBookie]) -> None:
        for bookie in bookies:
            bookie.start()
        for bookie in bookies:
            bookie.ready()

    def _change(self, side: str, bookies: Sequence[RestartableBookie], *, kill: bool) -> None:
        for bookie in bookies:
            time.sleep(self._hold_seconds)
            if kill:
                bookie.kill()
            else:
                bookie.stop()
            bookie.environment = self._trees[side].environment
            self._start([bookie])
        time.sleep(self._hold_seconds)

    @contextmanager
    def _step(self, what: str) -> Iterator[None]:
        """Run all loads during the block; then programs of both revisions read everything."""
        self._steps += 1
        turn = list(self._trees)[self._steps % 2]
        with ExitStack() as stack:
            repair = self._server(turn, "repair", "run", "--set", "interval_s=1")
            stack.callback(repair.stop)
            loads = [
                (kind, self._program(kind, side, "write", f"{kind.stem}-{side}-{self._steps}"))
                for kind in self._written
                for side in self._trees
            ]
            for _, load in loads:
                stack.callback(load.kill)
            for _, load in loads:
                load.read_line()
            yield
            for _, load in loads:
                load.terminate()
            found = [(kind, load.read_line()) for kind, load in loads]
            if repair.ended is not None:
                raise ProgramFailed(f"a repair of the {turn} side ended with {repair.ended}")
        self._offload(turn)
        errors = Counter[str]()
        for kind, each in found:
            self._written[kind].append(each)
            errors.update(each["errors"])
        counts = [f"{sum(each['confirmed'].values()):,}" for _, each in found]
        self._say(
            f"{what}: {' and '.join(counts[:2])} entries by an old and a new client, {' and '.join(counts[2:])} "
            f"records through a gateway of the other side; {turn} offloader and repair; "
            f"errors: {dict(errors) or 'none'}"
        )
        for side in self._trees:
            for kind in self._written:
                self._read(kind, side)

    def _offload(self, side: str) -> None:
        """Archive closed ledgers and release their copies."""
        (self._directory / "archive").mkdir(exist_ok=True)
        words = [
            "--archive",
            archive_url(self._directory),
            "--once",
            *(w for each in EAGER_OFFLOAD for w in ("--set", each)),
        ]
        command = module("tallybook.cli", "offload", "run", "--metadata", self._metadata, *words)
        for _ in range(2):
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=OFFLOAD_SECONDS, check=False,
                env=self._trees[side].environment,
            )  # fmt: skip
            if done.returncode:
                raise ProgramFailed(f"the {side} offloader ended with {done.returncode}: {done.stderr.strip()[-2000:]}")

    def _read(self, kind: Path, side: str) -> None:
        reading = self._program(kind, side, "read")
        try:
            reading.answer(json.dumps(self._written[kind]))
            found = reading.read_line()
        finally:
            reading.kill()
        if found["lost"]:
            raise ProgramFailed(f"a client of the {side} side read other data than confirmed: {found['lost'][:10]}")
        what = "records" if kind is STREAMS else "entries"
        self._say(f"    all {found['entries']:,} {what} until now are read by the {side} client")

    def _server(self, side: str, *words: str) -> Server:
        command = module("tallybook.cli", *words, "--metadata", self._metadata)
        return Server(command, self._directory / f"{side}-{words[0]}.out", self._trees[side].environment)

    def _program(self, kind: Path, side: str, *words: str) -> ControlledProgram:
        where = self._gateways[OTHER[side]] if kind is STREAMS else self._metadata
        command = [sys.executable, "-P", str(kind), where, *words]
        return ControlledProgram(
            command, self._directory / f"{side}-{kind.stem}-{words[0]}.log", self._trees[side].environment
        )
