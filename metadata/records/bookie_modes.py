"""What an operator wants of a bookie: that it takes no more writes, or that it is emptied. One record a bookie.

The bookie follows its record, also after a restart; clients then choose others. Who drains it is the auditor, which
treats what it holds as if it were lost, without the delay, and uses it as a source meanwhile.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

from tallybook.core.errors import DamagedFile
from tallybook.runtime.clock import Clock
from tallybook.runtime.logging import logger
from tallybook.runtime.rng import Rng

from .record_update import RecordUpdater
from .store import MetadataStore

_log = logger("metadata.bookie_modes")

PREFIX: Final = "bookies/mode/"
LISTED_AT_ONCE: Final = 1_000


class WantedMode(Enum):
    """What a bookie is to do."""

    NORMAL = "normal"
    READ_ONLY = "read_only"
    DRAINING = "draining"
    """Take no more writes, and be named by no ledger in the end."""


async def wanted_mode(store: MetadataStore, bookie_id: str, *, linearizable: bool = False) -> WantedMode:
    """What is wanted of a bookie. With ``linearizable``, no less than what was wanted before the call.

    Raises:
        MetadataUnavailable: the store does not answer.
        DamagedFile: its record holds something else.
    """
    record = await store.read_record(PREFIX + bookie_id, linearizable=linearizable)
    return WantedMode.NORMAL if record is None else _decode(bookie_id, record.value)


async def wanted_modes(store: MetadataStore, *, linearizable: bool = False) -> dict[str, WantedMode]:
    """What is wanted of every bookie of which something is wanted; ``linearizable`` as for ``wanted_mode``.

    Raises:
        MetadataUnavailable: the store does not answer, or not with all of it.
    """
    found: dict[str, WantedMode] = {}
    after: str | None = ""
    while after is not None:
        page = await store.list_records(PREFIX, after, LISTED_AT_ONCE)
        for name in page.names:
            bookie_id = name.removeprefix(PREFIX)
            try:
                mode = await wanted_mode(store, bookie_id, linearizable=linearizable)
            except DamagedFile as error:
                # Perhaps of a later version. What is wanted of the others is known all the same.
                _log.error("what is wanted of a bookie cannot be understood", bookie_id=bookie_id, error=error.message)
                continue
            if mode is not WantedMode.NORMAL:
                found[bookie_id] = mode
        after = page.next_after()
    return found


async def want_mode(store: MetadataStore, clock: Clock, rng: Rng, bookie_id: str, mode: WantedMode) -> None:
    """Want it of a bookie from now on.

    Raises:
        MetadataUnavailable, MetadataConflict: nothing was changed.
        MetadataOutcomeUnknown: it may have been changed.
    """
    value = mode.value.encode()
    await RecordUpdater(store, clock, rng).update(PREFIX + bookie_id, lambda _before: value)


def _decode(bookie_id: str, value: bytes) -> WantedMode:
    try:
        return WantedMode(value.decode())
    except ValueError as error:
        raise DamagedFile(f"the record {PREFIX}{bookie_id} names no mode of a bookie: {error}") from error
