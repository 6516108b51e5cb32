"""Retry policy of compare-and-set loops: attempts, pauses, and whether a write has an unknown outcome."""

from __future__ import annotations

from typing import Final, NoReturn

from tallybook.core.coverage import sometimes
from tallybook.core.errors import MetadataConflict, MetadataOutcomeUnknown, TallybookError
from tallybook.runtime.clock import Clock
from tallybook.runtime.concurrency.backoff import Backoff
from tallybook.runtime.rng import Rng

from .store import BadVersion, Unknown

FIRST_PAUSE_SECONDS: Final = 0.004
MAX_PAUSE_SECONDS: Final = 0.25
MAX_ATTEMPTS: Final = 32
"""Compare-and-sets per call; the last pauses are 0.19 s on average."""


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
