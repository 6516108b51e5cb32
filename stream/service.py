"""Runs the stream janitor periodically, in one of the processes that offer to do so.

The leader is elected through the metadata (``metadata/records/leader.py``). That only saves work: passes may run
concurrently, also by hand (``tallybook stream keep``).
"""

from __future__ import annotations

import warnings
from collections.abc import Coroutine
from typing import Any, Final

from tallybook.core.errors import HandleClosed, TallybookError, is_defect
from tallybook.metadata.records.leader import Leadership
from tallybook.runtime.clock import Clock
from tallybook.runtime.concurrency.backoff import with_drift
from tallybook.runtime.logging import logger
from tallybook.runtime.rng import Rng

from .info import LagSweep
from .load import StreamLoad
from .streams import StreamStore

LEADER_RECORD: Final = "stream-keeper"
LEASE_SECONDS: Final = 10.0

_log = logger("stream.keeper")


async def run_janitor(
    streams: StreamStore, clock: Clock, rng: Rng, interval_s: float, load: StreamLoad | None = None
) -> None:
    """Run a pass of the stream janitor every ``interval_s`` seconds while this process leads; until cancelled.

    Args:
        load: counts passes and failures, and gets the lags of subscriptions after each pass while this process leads.

    Raises:
        DamagedFile: the leader record cannot be decoded.
        HandleClosed: the store, or its client, is closed.
    """
    counts = load or StreamLoad()
    pauses = rng.fork("passes")

    async def passes() -> None:
        try:
            await run_passes()
        finally:
            # The next leader reports them.
            counts.lags = LagSweep()

    async def run_passes() -> None:
        while True:
            try:
                failed = await streams.keep()
                counts.janitor_rounds += 1
                counts.janitor_failures += failed
                _log.debug("janitor pass done", failed_count=failed)
                if load is not None:
                    load.lags = await streams.sweep_lags()
            except TallybookError as error:
                if is_defect(error) or isinstance(error, HandleClosed):
                    raise
                counts.janitor_failures += 1
                _log.warning("janitor pass failed", error=error.message)
            await clock.sleep(with_drift(pauses, interval_s))

    leadership = Leadership(
        streams.metadata_store, clock, rng.fork("stream keeper"), record=LEADER_RECORD, lease_s=LEASE_SECONDS
    )
    await leadership.lead(passes)


def keep_for_ever(
    streams: StreamStore, clock: Clock, rng: Rng, interval_s: float, load: StreamLoad | None = None
) -> Coroutine[Any, Any, None]:
    """Deprecated name of ``run_janitor``, for one release."""
    warnings.warn("keep_for_ever is now called run_janitor", DeprecationWarning, stacklevel=2)
    return run_janitor(streams, clock, rng, interval_s, load)
