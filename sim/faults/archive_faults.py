"""Faults of offloaders and of the object store, in addition to those of every client."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from tallybook.runtime.rng import Rng

from ..cluster.bucket import Bucket
from ..cluster.process import SimEnvironment, SimProcess
from ..workload.ledgers import Workload

STRUCK_REQUESTS: Final = ("write", "finish", "finish", "info", "read", "list", "delete")
MAX_REQUESTS: Final = 3
"""The fault strikes at one of the next so many requests of one kind."""
AFTERWARDS_SECONDS: Final = 0.3
"""Maximum extra delay, so that faults also strike between the last object request and the metadata commit."""
DAY_US: Final = 24 * 3600 * 1_000_000
SECOND_US: Final = 1_000_000


class ArchiveNemesis:
    """Injects faults into offloaders and the object store.

    Args:
        later: calls a function after some seconds, unless the nemesis has healed everything by then.
    """

    def __init__(
        self,
        env: SimEnvironment,
        workload: Workload,
        bucket: Bucket,
        rng: Rng,
        later: Callable[[float, Callable[[], object]], None],
    ) -> None:
        self._env = env
        self._workload = workload
        self._bucket = bucket
        self._rng = rng
        self._later = later
        self._waiting: dict[tuple[str, str], tuple[int, Callable[[], None]]] = {}
        """By process and kind of request: how many requests to let pass, and the fault that strikes at the next one."""
        bucket.on_request = self._request
        self.strikes: dict[str, Callable[[], None]] = {
            "offloader_kill_at": lambda: self._strike_at(self._kill),
            "offloader_freeze_at": lambda: self._strike_at(self._freeze),
            "offloader_clock": self._clock,
            "bucket_away": self._away,
            "bucket_storm": bucket.storm,
        }

    def heal(self) -> None:
        """Cancel pending faults and let the store work."""
        self._waiting.clear()
        self._bucket.heal()

    def _offloader(self) -> SimProcess | None:
        slots = [slot for slot in self._workload.processes if slot.startswith("offloader")]
        return self._workload.processes[slots[self._rng.randint(0, len(slots) - 1)]].process if slots else None

    def _strike_at(self, strike: Callable[[SimProcess], None]) -> None:
        process = self._offloader()
        if process is not None:
            name = STRUCK_REQUESTS[self._rng.randint(0, len(STRUCK_REQUESTS) - 1)]
            self._waiting[process.name, name] = (self._rng.randint(0, MAX_REQUESTS - 1), partial(strike, process))

    def _request(self, who: str, name: str) -> None:
        if (who, name) not in self._waiting:
            return
        left, strike = self._waiting.pop((who, name))
        if left:
            self._waiting[who, name] = (left - 1, strike)
        else:
            self._env.oracle.mark("nemesis: struck an offloader during an operation")
            self._later(AFTERWARDS_SECONDS * self._rng.random() ** 2, strike)

    def _kill(self, process: SimProcess) -> None:
        process.kill(silent=self._rng.random() < 0.3)

    def _freeze(self, process: SimProcess) -> None:
        """Freeze an offloader for about as long as others need to take over and finish its work."""
        process.freeze()
        self._later(0.5 + 5.0 * self._rng.random(), process.thaw)

    def _clock(self) -> None:
        process = self._offloader()
        if process is not None:
            span = DAY_US if self._rng.random() < 0.5 else 5 * SECOND_US
            process.clock.jump_wall(self._rng.randint(-span, span))

    def _away(self) -> None:
        """Make the store unreachable for a while."""
        self._bucket.away = True

        def back() -> None:
            self._bucket.away = False

        self._later(0.2 + 4.0 * self._rng.random() ** 2, back)
