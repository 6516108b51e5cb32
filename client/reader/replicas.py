"""Asking the replicas of an entry: one after the other, and the next one already when one is slow.

Remembers, over all reads of a handle, who served last, who did not answer lately, and how long
answers take. The decisions are in ``machine`` and ``pace``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, Generic, TypeAlias, TypeVar

from tallybook.core.errors import (
    BookieUnavailable,
    DiskFailed,
    DiskFull,
    EntryCorrupt,
    EntryUnknown,
    InvalidBatch,
    RequestTimeout,
    TallybookError,
    is_defect,
)
from tallybook.core.marks import sometimes
from tallybook.metadata.doubt import in_doubt
from tallybook.metadata.model import LedgerMetadata
from tallybook.runtime.clock import Clock
from tallybook.runtime.hedging import first_of

from ..bookie_port import BookieConnection
from ..deeds import Deeds
from ..ports import Connections
from .machine import FailedLately, ReadAttempt, replica_order
from .pace import Pace

T = TypeVar("T")

Report: TypeAlias = Callable[[str, int, int, TallybookError], None]
"""Told of a bad copy: bookie id, ledger id, entry id, error."""

FAILURE_HELD_S: Final = 30.0
"""How long a bookie that did not answer a read is asked last."""

_HELD_AGAINST_IT: Final = (BookieUnavailable, RequestTimeout, DiskFailed, DiskFull)
"""Errors that the next read will most likely meet, too.

Others are of one ledger, of a moment, or of somebody else: the metadata store, say, that was to tell where it is.
"""


@dataclass(frozen=True, slots=True)
class Found(Generic[T]):
    """What a replica gave, verified."""

    value: T


class Replicas:
    """The replicas of one ledger, as one handle knows them."""

    def __init__(
        self, connections: Connections, clock: Clock, pace: Pace, report: Report, deeds: Deeds | None = None
    ) -> None:
        self._connections = connections
        self._clock = clock
        self._pace = pace
        self._report = report
        self._deeds = deeds or Deeds()
        self._preferred: str | None = None
        self._failed = FailedLately(FAILURE_HELD_S)

    def attempt(self, metadata: LedgerMetadata, entry_id: int, *, confirmed: bool) -> ReadAttempt:
        """A search for an entry, as far as its bookies are known now."""
        doubtful = in_doubt(metadata, entry_id)
        order = sorted(self.in_order(metadata.bookies_of(entry_id)), key=doubtful.__contains__)
        return ReadAttempt(metadata.ledger_id, entry_id, order, confirmed, doubtful)

    def in_order(self, write_set: tuple[str, ...]) -> list[str]:
        """Bookies of a write set in the order to ask them now."""
        return replica_order(write_set, self._preferred, self._failed.now(self._clock.monotonic()))

    async def search(self, attempt: ReadAttempt, ask: Callable[[BookieConnection], Awaitable[T]]) -> Found[T] | None:
        """The first good copy; ``None`` once every replica has failed, which ``attempt`` knows all about."""
        while (bookie_id := attempt.next()) is not None:
            asking = self._ask(attempt, bookie_id, ask)
            if self._pace.speculates and not attempt.all_asked:
                found = await first_of(asking, lambda: self._beside(attempt, ask), self._pace.wait_seconds)
            else:
                found = await asking
            if found is not None:
                return found
        return None

    async def _beside(self, attempt: ReadAttempt, ask: Callable[[BookieConnection], Awaitable[T]]) -> Found[T] | None:
        """The same from another replica, since the one that was asked takes long."""
        self._deeds.speculative_reads += 1
        return await self.search(attempt, ask)

    async def _ask(
        self, attempt: ReadAttempt, bookie_id: str, ask: Callable[[BookieConnection], Awaitable[T]]
    ) -> Found[T] | None:
        """The copy of one replica; ``None`` if it has no good one, or does not answer."""
        began = self._clock.monotonic()
        try:
            connection = await self._connections.get(bookie_id)
            value = await ask(connection)
        except InvalidBatch as error:
            sometimes("read: a copy fails its digest")
            self._failure(attempt, bookie_id, EntryCorrupt(f"bookie {bookie_id}: {error.message}"))
            return None
        except TallybookError as error:
            if is_defect(error):
                raise
            # Whatever its reason, even one that would hold for them all: any valid copy will do.
            self._failure(attempt, bookie_id, error)
            return None
        except asyncio.CancelledError:
            if self._clock.monotonic() - began >= self._pace.wait_seconds:
                sometimes("read: a replica was overtaken")
                # It was overtaken, or has had the time to be.
                self._failed.note(bookie_id, self._clock.monotonic())
            raise
        self._pace.answered(self._clock.monotonic() - began)
        self._preferred = bookie_id
        self._failed.forgive(bookie_id)
        return Found(value)

    def _failure(self, attempt: ReadAttempt, bookie_id: str, error: TallybookError) -> None:
        attempt.failed(bookie_id, error)
        if isinstance(error, EntryCorrupt | EntryUnknown):
            self._report(bookie_id, attempt.ledger_id, attempt.entry_id, error)
        elif isinstance(error, _HELD_AGAINST_IT):
            self._failed.note(bookie_id, self._clock.monotonic())
