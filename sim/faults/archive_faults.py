"""What goes wrong with offloaders and with the object store, beyond what goes wrong with every client."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from tallybook.runtime.rng import Rng

from .bucket import Bucket
from .process import SimProcess, Surroundings
from .workload import Workload

STRUCK_REQUESTS: Final = ("write", "finish", "finish", "info", "read", "list", "delete")
MOST_REQUESTS: Final = 3
"""An offloader is struck at one of so many of its next requests of one kind."""
AFTERWARDS_SECONDS: Final = 0.3
"""Or a little later: between the last request to the store and the commit there are only those to the metadata."""
DAY_US: Final = 24 * 3600 * 1_000_000
SECOND_US: Final = 1_000_000


class ArchiveNemesis:
    """Strikes offloaders and the object store.

    Args:
        later: undoes something after so many seconds, unless all was undone by then.
    """

    def __init__(
        self,
        around: Surroundings,
        workload: Workload,
        bucket: Bucket,
        rng: Rng,
        later: Callable[[float, Callable[[], object]], None],
    ) -> None:
        self._around = around
        self._workload = workload
        self._bucket = bucket
        self._rng = rng
        self._later = later
        self._waiting: dict[tuple[str, str], tuple[int, Callable[[], None]]] = {}
        """By process and kind of request, how many are to pass yet, and what happens at the next one."""
        bucket.on_request = self._request
        self.strikes: dict[str, Callable[[], None]] = {
            "offloader_kill_at": lambda: self._strike_at(self._kill),
            "offloader_freeze_at": lambda: self._strike_at(self._freeze),
            "offloader_clock": self._clock,
            "bucket_away": self._away,
            "bucket_storm": bucket.storm,
        }

    def heal(self) -> None:
        """Nobody is struck any more, and the store works."""
        self._waiting.clear()
        self._bucket.heal()

    def _offloader(self) -> SimProcess | None:
        slots = [slot for slot in self._workload.processes if slot.startswith("offloader")]
        return self._workload.processes[slots[self._rng.randint(0, len(slots) - 1)]].process if slots else None

    def _strike_at(self, strike: Callable[[SimProcess], None]) -> None:
        process = self._offloader()
        if process is not None:
            name = STRUCK_REQUESTS[self._rng.randint(0, len(STRUCK_REQUESTS) - 1)]
            self._waiting[process.name, name] = (self._rng.randint(0, MOST_REQUESTS - 1), partial(strike, process))

    def _request(self, who: str, name: str) -> None:
        if (who, name) not in self._waiting:
            return
        left, strike = self._waiting.pop((who, name))
        if left:
            self._waiting[who, name] = (left - 1, strike)
        else:
            self._around.god.mark("nemesis: struck an offloader at its work")
            self._later(AFTERWARDS_SECONDS * self._rng.random() ** 2, strike)

    def _kill(self, process: SimProcess) -> None:
        process.kill(silent=self._rng.random() < 0.3)

    def _freeze(self, process: SimProcess) -> None:
        """For about as long as it takes others to take its place, and to finish what it has begun."""
        process.freeze()
        self._later(0.5 + 5.0 * self._rng.random(), process.thaw)

    def _clock(self) -> None:
        process = self._offloader()
        if process is not None:
            span = DAY_US if self._rng.random() < 0.5 else 5 * SECOND_US
            process.clock.jump_wall(self._rng.randint(-span, span))

    def _away(self) -> None:
        """Nothing reaches the store for a while."""
        self._bucket.away = True

        def back() -> None:
            self._bucket.away = False

        self._later(0.2 + 4.0 * self._rng.random() ** 2, back)
