"""A cluster of two revisions: bookies and clients of both, an upgrade bookie by bookie under load, and the way back.

In each step two loads write all the time, one with the code of each revision; at the end of it, clients of both
revisions read everything that was ever confirmed. Bookies change their revision with a clean stop on the way up and on
the way back, and then once more by a kill, so that each revision replays a journal of the other.
"""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from tallybook.bench.bookies import Bookie, metadata_in
from tallybook.bench.programs import ProgramFailed
from tallybook.bench.revisions import Tree

from .asking import AskingProgram
from .fixture import SETTINGS

BOOKIES: Final = 4
"""One more than a ledger needs, so that writers have somewhere to go while one is away."""
LOAD: Final = Path(__file__).with_name("mixed_load.py")
HOLD_SECONDS: Final = 3.0
"""How long the loads run between two changes."""

Say = Callable[[str], None]


class MixedCluster:
    """Bookies of which each has the code of one revision or the other.

    Args:
        directory: for everything.
        say: told of each step.
    """

    def __init__(self, old: Tree, new: Tree, directory: Path, say: Say) -> None:
        self._trees = {"old": old, "new": new}
        self._directory = directory
        self._say = say
        self._metadata = metadata_in(directory)
        self._bookies = [
            Bookie(f"b{number}", directory / f"b{number}", self._metadata, SETTINGS, environment=old.environment)
            for number in range(BOOKIES)
        ]
        self._written: list[dict[str, Any]] = []
        self._steps = 0

    def run(self) -> None:
        """All steps.

        Raises:
            ProgramFailed: something that was confirmed is not there, or a process ended that should not.
        """
        try:
            self._start(self._bookies)
            with self._step("old bookies"):
                time.sleep(HOLD_SECONDS)
            with self._step("bookies become new, one by one"):
                self._change("new", self._bookies, kill=False)
            with self._step("new bookies"):
                time.sleep(HOLD_SECONDS)
            with self._step("bookies become old again, one by one"):
                self._change("old", self._bookies, kill=False)
            with self._step("some are killed and become new"):
                self._change("new", self._bookies[: BOOKIES // 2], kill=True)
            with self._step("they are killed and become old, the others new"):
                self._change("old", self._bookies[: BOOKIES // 2], kill=True)
                self._change("new", self._bookies[BOOKIES // 2 :], kill=True)
        finally:
            for bookie in self._bookies:
                bookie.stop()

    def _start(self, bookies: Sequence[Bookie]) -> None:
        for bookie in bookies:
            bookie.start()
        for bookie in bookies:
            bookie.ready()

    def _change(self, side: str, bookies: Sequence[Bookie], *, kill: bool) -> None:
        for bookie in bookies:
            time.sleep(HOLD_SECONDS)
            if kill:
                bookie.kill()
            else:
                bookie.stop()
            bookie.environment = self._trees[side].environment
            self._start([bookie])
        time.sleep(HOLD_SECONDS)

    @contextmanager
    def _step(self, what: str) -> Iterator[None]:
        """Both loads run through it; then both sides read everything."""
        self._steps += 1
        loads = [self._program(side, "write", f"{side}-{self._steps}") for side in self._trees]
        try:
            for load in loads:
                load.says()
            yield
            for load in loads:
                load.terminate()
            found = [load.says() for load in loads]
        finally:
            for load in loads:
                load.kill()
        self._written += found
        errors = Counter[str]()
        for each in found:
            errors.update(each["errors"])
        confirmed = " and ".join(f"{sum(each['confirmed'].values()):,}" for each in found)
        self._say(f"{what}: {confirmed} entries by an old and a new client; errors: {dict(errors) or 'none'}")
        for side in self._trees:
            self._read(side)

    def _read(self, side: str) -> None:
        reading = self._program(side, "read")
        try:
            reading.answer(json.dumps(self._written))
            found = reading.says()
        finally:
            reading.kill()
        if found["lost"]:
            raise ProgramFailed(f"not as it was confirmed, to a client of the {side} side: {found['lost'][:10]}")
        self._say(f"    all {found['entries']:,} entries until now are read by the {side} client")

    def _program(self, side: str, *words: str) -> AskingProgram:
        command = [sys.executable, "-P", str(LOAD), self._metadata, *words]
        return AskingProgram(command, self._directory / f"{side}-{words[0]}.log", self._trees[side].environment)
