"""Does what its operator wants of a bookie, as the metadata say: takes writes, or takes none.

The record is looked at again and again, so a bookie that was down when it was written follows it all the same. While
the metadata do not answer, the last word stands.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tallybook.core.errors import DamagedFile, NewerFormat, PeerError
from tallybook.metadata.bookie_modes import WantedMode, wanted_mode
from tallybook.metadata.store import MetadataStore
from tallybook.runtime.clock import Clock
from tallybook.runtime.logging import logger

LOOK_SECONDS: Final = 2.0

_log = logger("bookie.modes")


async def follow_mode(
    store: MetadataStore, bookie_id: str, set_read_only: Callable[[bool], None], clock: Clock, before: WantedMode
) -> None:
    """Follow the record of ``bookie_id``, which said ``before``, until cancelled."""
    while True:
        await clock.sleep(LOOK_SECONDS)
        before = await look_at_mode(store, bookie_id, set_read_only, before)


async def look_at_mode(
    store: MetadataStore,
    bookie_id: str,
    set_read_only: Callable[[bool], None],
    before: WantedMode = WantedMode.NORMAL,
) -> WantedMode:
    """Do what the record says now; it said ``before``. What it says, or said last where that cannot be told."""
    try:
        mode = await wanted_mode(store, bookie_id)
    except (PeerError, DamagedFile, NewerFormat) as error:
        _log.warning("what is wanted of this bookie is not known", bookie_id=bookie_id, error=error.message)
        return before
    if mode is not before:
        _log.info("mode wanted", bookie_id=bookie_id, mode=mode.value)
        set_read_only(mode is not WantedMode.NORMAL)
    return mode
