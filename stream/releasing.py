"""Releases the ownership of a stream or subscription, so that other processes need not wait for the session to end."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

from tallybook.core.errors import (
    MetadataConflict,
    MetadataOutcomeUnknown,
    MetadataUnavailable,
    TallybookError,
    is_defect,
)
from tallybook.runtime.clock import Clock
from tallybook.runtime.concurrency.backoff import Backoff
from tallybook.runtime.concurrency.handle_lifetime import Lifetime
from tallybook.runtime.logging import logger
from tallybook.runtime.rng import Rng
from tallybook.runtime.tasks import Tasks

RELEASE_SECONDS: Final = 2.0
LONGEST_RELEASE_SECONDS: Final = 30.0
"""Bounds of the retry pauses."""

_log = logger("streams")


class OwnershipReleases:
    """Releases ownerships in the background.

    Args:
        tasks, lifetime: of the store of streams.
    """

    def __init__(self, clock: Clock, rng: Rng, tasks: Tasks, lifetime: Lifetime) -> None:
        self._clock = clock
        self._rng = rng
        self._tasks = tasks
        self._lifetime = lifetime

    def later(self, what: str, change: Callable[[], Awaitable[object]]) -> None:
        """Apply ``change``, which releases an ownership; retry until the metadata store accepts or refuses it.

        Does nothing once the store of streams is closed: the end of its session releases what it owns.
        """
        if not (self._lifetime.ended or self._tasks.closing):
            self._tasks.spawn(self._release(what, change, self._rng.fork("let go")), name="let go")

    async def _release(self, what: str, change: Callable[[], Awaitable[object]], rng: Rng) -> None:
        backoff = Backoff(self._clock, rng, first_s=RELEASE_SECONDS, longest_s=LONGEST_RELEASE_SECONDS)
        while True:
            try:
                await change()
            except (MetadataUnavailable, MetadataConflict, MetadataOutcomeUnknown) as error:
                # Until then, other processes wait for as long as this session lasts.
                _log.info("ownership not released yet", what=what, error=error.message)
                await backoff.pause()
            except TallybookError as error:
                if is_defect(error):
                    raise
                _log.info("ownership not released", what=what, error=error.message)
                return
            else:
                return
