"""How often something is tried to be written to the metadata store, and what is known of it in the end."""

from __future__ import annotations

from typing import Final, NoReturn

from tallybook.core.errors import MetadataConflict, MetadataOutcomeUnknown, TallybookError
from tallybook.core.marks import sometimes
from tallybook.runtime.clock import Clock
from tallybook.runtime.rng import Rng

from .store import BadVersion, Unknown

FIRST_PAUSE_SECONDS: Final = 0.002
LONGEST_PAUSE_SECONDS: Final = 0.25
MAX_ATTEMPTS: Final = 32
"""Compare-and-sets of one call; the pauses before the last ones are 0.13 s on average."""


class Attempts:
    """What one call has tried so far: how often, and whether a write of its own is still in the air."""

    def __init__(self, what: str, clock: Clock, rng: Rng, deadline: float) -> None:
        self._what = what
        self._clock = clock
        self._rng = rng
        self._deadline = deadline
        self._failures = 0
        self._in_the_air_over: int | None = None
        self._reason = ""

    @property
    def unsettled(self) -> bool:
        """Whether a write of this call may have landed, or may still land."""
        return self._in_the_air_over is not None

    def saw(self, version: int) -> None:
        """The value was read at ``version``: a write over an earlier one can no longer land."""
        if self._in_the_air_over is not None and version > self._in_the_air_over:
            self._in_the_air_over = None

    async def failed(self, result: BadVersion | Unknown, version: int) -> None:
        """Take note of a write over ``version`` that did not succeed, and wait before the next one.

        Raises:
            MetadataConflict, MetadataOutcomeUnknown: there may be no next one.
        """
        sometimes("update: another attempt")
        if isinstance(result, Unknown):
            sometimes("update: outcome unknown")
            self._in_the_air_over, self._reason = version, result.reason
        self._failures += 1
        if self._failures == MAX_ATTEMPTS or self._clock.monotonic() > self._deadline:
            self.give_up(MetadataConflict(f"{self._what}: {self._failures} times somebody else was first"))
        span = min(LONGEST_PAUSE_SECONDS, FIRST_PAUSE_SECONDS * 2**self._failures)
        await self._clock.sleep(self._rng.random() * span)

    def give_up(self, error: TallybookError) -> NoReturn:
        """End the call with ``error``, or with something worse if a write is in the air."""
        if self.unsettled:
            sometimes("update: given up with its outcome unknown")
            message = f"{self._what} may or may not take effect: {self._reason}"
            raise MetadataOutcomeUnknown(message) from error
        raise error
