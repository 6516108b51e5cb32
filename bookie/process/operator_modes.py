"""Applies the mode that the operator set in the metadata: accept writes, or be read-only.

The record is polled, so a bookie that was down when it changed follows it later. While the metadata store does not
respond, the last known mode stays in force.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tallybook.core.errors import DamagedFile, NewerFormat, PeerError
from tallybook.metadata.records.bookie_modes import RequestedMode, requested_mode
from tallybook.metadata.store import MetadataStore
from tallybook.runtime.clock import Clock
from tallybook.runtime.logging import logger

POLL_SECONDS: Final = 2.0

_log = logger("bookie.modes")


async def follow_mode(
    store: MetadataStore,
    bookie_id: str,
    set_read_only: Callable[[bool], None],
    clock: Clock,
    before: RequestedMode,
    interval_s: float = POLL_SECONDS,
) -> None:
    """Apply the record of ``bookie_id`` until cancelled; its mode so far is ``before``."""
    while True:
        await clock.sleep(interval_s)
        before = await poll_mode(store, bookie_id, set_read_only, before)


async def poll_mode(
    store: MetadataStore,
    bookie_id: str,
    set_read_only: Callable[[bool], None],
    before: RequestedMode = RequestedMode.NORMAL,
) -> RequestedMode:
    """Poll the record once and apply it. Returns its mode, or ``before`` if it cannot be read."""
    try:
        mode = await requested_mode(store, bookie_id)
    except (PeerError, DamagedFile, NewerFormat) as error:
        _log.warning("the mode set by the operator cannot be read", bookie_id=bookie_id, error=error.message)
        return before
    if mode is not before:
        _log.info("mode set by the operator", bookie_id=bookie_id, mode=mode.value)
        set_read_only(mode is not RequestedMode.NORMAL)
    return mode
