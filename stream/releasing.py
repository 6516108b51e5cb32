"""Gives up the ownership of a stream or a subscription, so that nobody waits for this process to end."""

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
from tallybook.runtime.backoff import Backoff
from tallybook.runtime.clock import Clock
from tallybook.runtime.logging import logger
from tallybook.runtime.rng import Rng

RELEASE_SECONDS: Final = 2.0
LONGEST_RELEASE_SECONDS: Final = 30.0
"""Bounds of the pauses before it is tried again."""

_log = logger("streams")


async def release_soon(what: str, change: Callable[[], Awaitable[object]], clock: Clock, rng: Rng) -> None:
    """Apply ``change``, which gives up an ownership, until the metadata store takes or refuses it."""
    backoff = Backoff(rng, first_s=RELEASE_SECONDS, longest_s=LONGEST_RELEASE_SECONDS)
    while True:
        try:
            await change()
        except (MetadataUnavailable, MetadataConflict, MetadataOutcomeUnknown) as error:
            # Who waits for it waits for as long as this session lasts.
            _log.info("not let go of yet", what=what, error=error.message)
            await clock.sleep(backoff.next_s())
        except TallybookError as error:
            if is_defect(error):
                raise
            _log.info("not let go of", what=what, error=error.message)
            return
        else:
            return
