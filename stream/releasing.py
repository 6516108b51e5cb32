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
from tallybook.runtime.logging import logger
from tallybook.runtime.rng import Rng

RELEASE_SECONDS: Final = 2.0
LONGEST_RELEASE_SECONDS: Final = 30.0
"""Bounds of the retry pauses."""

_log = logger("streams")


async def release_soon(what: str, change: Callable[[], Awaitable[object]], clock: Clock, rng: Rng) -> None:
    """Apply ``change``, which releases an ownership; retry until the metadata store accepts or refuses it."""
    backoff = Backoff(clock, rng, first_s=RELEASE_SECONDS, longest_s=LONGEST_RELEASE_SECONDS)
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
