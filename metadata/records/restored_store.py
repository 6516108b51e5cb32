"""The record that the metadata store was found behind the bookies: it was restored from an older copy of itself.

A bookie finds that out which holds a ledger at or above the id counter, of which the store knows nothing; which has
seen a higher counter; or which holds another ledger than the store has, or has deleted, under one id. So does an
offloader whose archive has a manifest that counts such a ledger. It writes the record, then raises the counter above
all ids that were in use, so that none is handed out again. While the record is not approved, no bookie drops anything,
and no offloader: what such a store says of ledgers may be out of date. A damaged record counts as one that is not
approved. An operator who has brought back the right copy has no record any more, since that copy is from before; one
who goes on with the older copy approves it.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass, replace
from typing import Final

from tallybook.core.errors import DamagedFile
from tallybook.core.ids import MAX_ID
from tallybook.runtime.clock import Clock
from tallybook.runtime.rng import Rng

from .record_format import FIRST, check_format
from .record_json import NOT_UNDERSTOOD
from .record_update import RecordUpdater
from .store import MetadataStore

RECORD: Final = "collection/behind"
MANIFEST: Final = "archive/manifest"
"""In place of a bookie's id, which it cannot be: an offloader found it in the manifest of the archive."""


@dataclass(frozen=True, slots=True)
class Behind:
    """What was found.

    Attributes:
        id_counter: all ids that the store handed out before it went back, and still knows of, lay below it.
        highest_id: ids up to this one may have been handed out twice.
        bookie_id: the bookie that found it last, or ``MANIFEST``; empty: the record was damaged.
        approved_at_ms: when an operator let the bookies go on; 0: not yet.
    """

    id_counter: int
    highest_id: int
    bookie_id: str
    found_at_ms: int
    approved_at_ms: int = 0

    @property
    def pauses(self) -> bool:
        """Whether bookies drop nothing."""
        return not self.approved_at_ms

    @property
    def told(self) -> str:
        """What happened, for people."""
        if not self.bookie_id:
            return (
                f"the record {RECORD} cannot be understood: the metadata store may be an older copy of itself, and "
                "have handed out any id twice"
            )
        who = "the manifest of the archive" if self.bookie_id == MANIFEST else f"bookie {self.bookie_id}"
        return (
            f"{who} knows of ledger ids up to {self.highest_id}, and the metadata store only of "
            f"those below {self.id_counter}: it was restored from an older copy"
        )


def encode_behind(behind: Behind) -> bytes:
    """The value of the record."""
    return json.dumps({"format": FIRST, **asdict(behind)}, sort_keys=True).encode()


def decode_behind(name: str, value: bytes) -> Behind:
    """Understand the record.

    Raises:
        DamagedFile: it holds something else.
        NewerFormat: it is of a later version.
    """
    try:
        found = json.loads(value)
        check_format(name, found)
        behind = Behind(**{key: found[key] for key in Behind.__slots__})
        numbers = (behind.id_counter, behind.highest_id, behind.found_at_ms, behind.approved_at_ms)
        good = type(behind.bookie_id) is str and all(type(each) is int and 0 <= each <= MAX_ID for each in numbers)
    except NOT_UNDERSTOOD as error:
        raise DamagedFile(f"the record {name} cannot be understood: {error!r}") from error
    if not good:
        raise DamagedFile(f"the record {name} holds values that cannot be")
    return behind


UNREADABLE: Final = Behind(0, 0, "", 0)
"""What a damaged record counts as: nobody has approved it. It cannot be read which ids were handed out twice: all that
were handed out may have been, until the record is written anew."""

REMEDY: Final = (
    "stop every writer and bring back the right copy of the metadata, or go on with this one: "
    "POST /api/v1/bookie/gc/approve_store to a bookie"
)
"""What an operator can do."""


async def read_behind(store: MetadataStore) -> Behind | None:
    """What was found, ``UNREADABLE`` if the record is damaged; ``None``: the store was never behind. Linearizable.

    Raises:
        MetadataUnavailable: the store does not answer.
        NewerFormat: see ``decode_behind``.
    """
    record = await store.read_record(RECORD, linearizable=True)
    return None if record is None else _readable(record.value)


async def ids_below(id_counter: Callable[[], Awaitable[int]], found: Callable[[], Awaitable[Behind | None]]) -> int:
    """An id below which all lie that the store has ever handed out, as far as it is known, also where it went back.

    Args:
        id_counter: the counter of the store, read linearizably.
        found: what was found, if it was restored from an older copy.
    """
    counter = await id_counter()
    # In this order: the record is written before the counter is raised.
    behind = await found()
    return max(counter, 0 if behind is None else behind.highest_id + 1)


async def unapproved(store: MetadataStore) -> Behind | None:
    """What was found and not approved by an operator.

    Raises:
        As ``read_behind``.
    """
    found = await read_behind(store)
    return found if found is not None and found.pauses else None


class BehindRecord:
    """Keeps the record in a store."""

    def __init__(self, store: MetadataStore, clock: Clock, rng: Rng) -> None:
        self._store = store
        self._clock = clock
        self._records = RecordUpdater(store, clock, rng)

    async def read(self) -> Behind | None:
        """See ``read_behind``."""
        return await read_behind(self._store)

    async def report(self, bookie_id: str, id_counter: int, highest_id: int) -> Behind:
        """Note what a bookie has found, and raise the counter above ``highest_id``.

        Raises:
            MetadataUnavailable, MetadataConflict, MetadataOutcomeUnknown: it may not have been noted; try again.
            NewerFormat: see ``decode_behind``.
        """
        found = Behind(id_counter, highest_id, bookie_id, self._now_ms())

        def note(value: bytes | None) -> bytes:
            before = None if value is None else _readable(value)
            return encode_behind(_with(None if before is UNREADABLE else before, found))

        # In this order: once the counter is raised, nobody finds out any more.
        record = await self._records.update(RECORD, note)
        await self._store.raise_id_counter(min(highest_id + 1, MAX_ID))
        return decode_behind(RECORD, record.value)

    async def approve(self) -> bool:
        """An operator lets the bookies go on. Whether anything was found that was not approved yet.

        A damaged record is written anew.

        Raises:
            DamagedFile: the record was removed meanwhile.
            As ``report`` otherwise.
        """
        before = await self.read()
        if before is None or not before.pauses:
            return False
        now_ms = self._now_ms()
        id_counter = await self._store.id_counter()

        def approved(value: bytes | None) -> bytes:
            if value is None:
                raise DamagedFile(f"the record {RECORD} was removed meanwhile")
            found = _readable(value)
            if found is UNREADABLE:
                found = replace(found, id_counter=id_counter, highest_id=max(id_counter - 1, 0), found_at_ms=now_ms)
            return encode_behind(replace(found, approved_at_ms=now_ms)) if found.pauses else value

        await self._records.update(RECORD, approved)
        return True

    def _now_ms(self) -> int:
        return max(1, self._clock.wall_us() // 1000)


def _readable(value: bytes) -> Behind:
    """The record, or ``UNREADABLE`` if it is damaged.

    Raises:
        NewerFormat: it is of a later version.
    """
    try:
        return decode_behind(RECORD, value)
    except DamagedFile:
        return UNREADABLE


def _with(before: Behind | None, found: Behind) -> Behind:
    """The record after one more finding; the same where it says as much already."""
    if before is None:
        return found
    id_counter, highest_id = min(before.id_counter, found.id_counter), max(before.highest_id, found.highest_id)
    if before.pauses and (id_counter, highest_id) == (before.id_counter, before.highest_id):
        return before
    return replace(found, id_counter=id_counter, highest_id=highest_id)
