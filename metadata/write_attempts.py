"""Retry policy of compare-and-set loops: attempts, pauses, and whether a write has an unknown outcome.

``Updater`` is the base of the updaters of ledgers and records.
"""

from __future__ import annotations

from typing import Final, NoReturn

from tallybook.core.coverage import sometimes
from tallybook.core.errors import MetadataConflict, MetadataOutcomeUnknown, TallybookError
from tallybook.runtime.clock import Clock
from tallybook.runtime.concurrency.backoff import Backoff
from tallybook.runtime.rng import Rng

from .store import BadVersion, MetadataStore, Unknown

FIRST_PAUSE_SECONDS: Final = 0.004
MAX_PAUSE_SECONDS: Final = 0.25
MAX_ATTEMPTS: Final = 32
"""Compare-and-sets per call; the last pauses are 0.19 s on average."""
MAX_TRIES: Final = 20
"""Tries per call of ``Updater.tries``: 3 s in total."""


class Attempts:
    """Attempts of one call, and whether one of its writes has an unknown outcome."""

    def __init__(self, what: str, clock: Clock, rng: Rng, deadline: float) -> None:
        self._what = what
        self._backoff = Backoff(clock, rng, first_s=FIRST_PAUSE_SECONDS, longest_s=MAX_PAUSE_SECONDS, deadline=deadline)
        self._failures = 0
        self._unknown_over: int | None = None
        self._reason = ""

    @property
    def outcome_unknown(self) -> bool:
        """Whether a write of this call may have been applied, or may still be."""
        return self._unknown_over is not None

    def note_version(self, version: int) -> None:
        """Note a read at ``version``: a write for an earlier version can no longer be applied."""
        if self._unknown_over is not None and version > self._unknown_over:
            self._unknown_over = None

    async def failed(self, result: BadVersion | Unknown, version: int) -> None:
        """Note a failed write for ``version``, and wait before the next attempt.

        Raises:
            MetadataConflict, MetadataOutcomeUnknown: no attempts are left.
        """
        sometimes("update: another attempt")
        if isinstance(result, Unknown):
            sometimes("update: outcome unknown")
            self._unknown_over, self._reason = version, result.reason
        self._failures += 1
        if self._failures == MAX_ATTEMPTS or not await self._backoff.pause():
            self.give_up(MetadataConflict(f"{self._what}: another client was first {self._failures} times"))

    def give_up(self, error: TallybookError) -> NoReturn:
        """Raise ``error``, or MetadataOutcomeUnknown if a write has an unknown outcome."""
        if self.outcome_unknown:
            sometimes("update: given up with its outcome unknown")
            message = f"{self._what} may or may not take effect: {self._reason}"
            raise MetadataOutcomeUnknown(message) from error
        raise error


class Tries:
    """Iterates over the tries of a loop that reads again after each write; pauses before each try but the first."""

    def __init__(self, clock: Clock, rng: Rng) -> None:
        self._backoff = Backoff(clock, rng, first_s=FIRST_PAUSE_SECONDS, longest_s=MAX_PAUSE_SECONDS)
        self._made = 0

    def __aiter__(self) -> Tries:
        return self

    async def __anext__(self) -> int:
        if self._made == MAX_TRIES:
            raise StopAsyncIteration
        if self._made:
            await self._backoff.pause()
        self._made += 1
        return self._made


class Updater:
    """Changes ``store`` by compare-and-set. Stateless: one per process is enough.

    Args:
        store: the metadata store.
        clock: for the pauses between attempts.
        rng: jitter for these pauses, so that two updaters do not collide repeatedly.
        timeout_seconds: no attempt begins after this time.
    """

    def __init__(self, store: MetadataStore, clock: Clock, rng: Rng, *, timeout_seconds: float = 20.0) -> None:
        self._store = store
        self._clock = clock
        self._rng = rng
        self._timeout_seconds = timeout_seconds

    @property
    def store(self) -> MetadataStore:
        """The metadata store."""
        return self._store

    def tries(self) -> Tries:
        """The tries of one call, for ``async for``."""
        return Tries(self._clock, self._rng)

    def _attempts(self, what: str) -> Attempts:
        return Attempts(what, self._clock, self._rng, self._clock.monotonic() + self._timeout_seconds)
