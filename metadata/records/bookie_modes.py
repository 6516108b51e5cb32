"""Modes of bookies set by an operator: read-only or draining. One record per bookie.

The bookie applies its record, also after a restart; clients then choose other bookies. The auditor drains the bookie:
it treats its copies as if they were lost, without the delay, and uses the bookie as a source meanwhile.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

from tallybook.core.errors import DamagedFile
from tallybook.runtime.clock import Clock
from tallybook.runtime.logging import logger
from tallybook.runtime.rng import Rng

from ..store import MetadataStore
from .update import RecordUpdater

_log = logger("metadata.bookie_modes")

PREFIX: Final = "bookies/mode/"
PAGE_NAMES: Final = 1_000


class RequestedMode(Enum):
    """Mode that an operator requested for a bookie."""

    NORMAL = "normal"
    READ_ONLY = "read_only"
    DRAINING = "draining"
    """Accept no writes, and be replaced in all ledgers."""


async def requested_mode(store: MetadataStore, bookie_id: str, *, linearizable: bool = False) -> RequestedMode:
    """The requested mode of a bookie. With ``linearizable``, includes all changes made before the call.

    Raises:
        MetadataUnavailable: the store does not answer.
        DamagedFile: the record is invalid.
    """
    record = await store.read_record(PREFIX + bookie_id, linearizable=linearizable)
    return RequestedMode.NORMAL if record is None else _decode(bookie_id, record.value)


async def requested_modes(store: MetadataStore, *, linearizable: bool = False) -> dict[str, RequestedMode]:
    """All bookies with a requested mode other than normal; ``linearizable`` as for ``requested_mode``.

    Raises:
        MetadataUnavailable: the store does not answer, or not completely.
    """
    found: dict[str, RequestedMode] = {}
    after: str | None = ""
    while after is not None:
        page = await store.list_records(PREFIX, after, PAGE_NAMES)
        for name in page.names:
            bookie_id = name.removeprefix(PREFIX)
            try:
                mode = await requested_mode(store, bookie_id, linearizable=linearizable)
            except DamagedFile as error:
                # Perhaps of a later version. The modes of other bookies are still known.
                _log.error("cannot decode the mode requested of a bookie", bookie_id=bookie_id, error=error.message)
                continue
            if mode is not RequestedMode.NORMAL:
                found[bookie_id] = mode
        after = page.next_after()
    return found


async def request_mode(store: MetadataStore, clock: Clock, rng: Rng, bookie_id: str, mode: RequestedMode) -> None:
    """Request a mode for a bookie.

    Raises:
        MetadataUnavailable, MetadataConflict: nothing was changed.
        MetadataOutcomeUnknown: it may have been changed.
    """
    value = mode.value.encode()
    await RecordUpdater(store, clock, rng).update(PREFIX + bookie_id, lambda _before: value)


def _decode(bookie_id: str, value: bytes) -> RequestedMode:
    try:
        return RequestedMode(value.decode())
    except ValueError as error:
        raise DamagedFile(f"the record {PREFIX}{bookie_id} has no valid mode of a bookie: {error}") from error
