"""Sends read requests to the replicas of an entry: one after another, and to the next one early if one is slow.

Over all reads of a handle it tracks which bookie served last, which failed recently, and how long answers take. The
decisions are in ``machine``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, Generic, TypeAlias, TypeVar

from tallybook.core.coverage import sometimes
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
from tallybook.metadata.ledger.model import LedgerMetadata
from tallybook.metadata.ledger.untrusted_copies import untrusted_bookies
from tallybook.runtime.clock import Clock
from tallybook.runtime.concurrency.hedging import hedged

from ..connection.port import BookieConnection
from ..ports import Connections
from ..recovery_counters import RecoveryCounters
from .machine import ReadAttempt, RecentFailures, SpeculationPolicy, replica_order

T = TypeVar("T")

FailureCallback: TypeAlias = Callable[[str, int, int, TallybookError], None]
"""Receives reports of damaged copies: bookie id, ledger id, entry id, error."""

FAILURE_EXPIRY_S: Final = 30.0
"""How long a bookie that did not answer a read is asked last."""

_BOOKIE_FAILURES: Final = (BookieUnavailable, RequestTimeout, DiskFailed, DiskFull)
"""Errors that the next read from the bookie will most likely get, too.

Other errors concern one ledger, are transient, or are of another component, such as the metadata store.
"""


@dataclass(frozen=True, slots=True)
class ReplicaAnswer(Generic[T]):
    """A verified answer of a replica."""

    value: T


class Replicas:
    """Sends the reads of one handle, and tracks its replicas."""

    def __init__(
        self,
        connections: Connections,
        clock: Clock,
        pace: SpeculationPolicy,
        report: FailureCallback,
        counters: RecoveryCounters | None = None,
    ) -> None:
        self._connections = connections
        self._clock = clock
        self._pace = pace
        self._report = report
        self._counters = counters or RecoveryCounters()
        self._preferred: str | None = None
        self._failed = RecentFailures(FAILURE_EXPIRY_S)

    def attempt(self, metadata: LedgerMetadata, entry_id: int, *, confirmed: bool) -> ReadAttempt:
        """A search for an entry, with the bookies of ``metadata``."""
        doubtful = untrusted_bookies(metadata, entry_id)
        order = sorted(self.in_order(metadata.bookies_of(entry_id)), key=doubtful.__contains__)
        return ReadAttempt(metadata.ledger_id, entry_id, order, confirmed, doubtful)

    def in_order(self, write_set: tuple[str, ...]) -> list[str]:
        """Bookies of a write set in the order to ask them now."""
        return replica_order(write_set, self._preferred, self._failed.now(self._clock.monotonic()))

    async def search(
        self, attempt: ReadAttempt, ask: Callable[[BookieConnection], Awaitable[T]]
    ) -> ReplicaAnswer[T] | None:
        """The first good copy; ``None`` once every replica has failed; ``attempt`` has the errors."""
        while (bookie_id := attempt.next()) is not None:
            asking = self._ask(attempt, bookie_id, ask)
            if self._pace.speculates and not attempt.all_asked:
                found = await hedged(asking, lambda: self._beside(attempt, ask), self._pace.wait_seconds)
            else:
                found = await asking
            if found is not None:
                return found
        return None

    async def _beside(
        self, attempt: ReadAttempt, ask: Callable[[BookieConnection], Awaitable[T]]
    ) -> ReplicaAnswer[T] | None:
        """Speculative read: continue the search with another replica while the first is slow."""
        self._counters.speculative_reads += 1
        return await self.search(attempt, ask)

    async def _ask(
        self, attempt: ReadAttempt, bookie_id: str, ask: Callable[[BookieConnection], Awaitable[T]]
    ) -> ReplicaAnswer[T] | None:
        """The copy of one replica; ``None`` if it has no good copy, or does not answer."""
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
            self._failure(attempt, bookie_id, error)
            return None
        except asyncio.CancelledError:
            if self._clock.monotonic() - began >= self._pace.wait_seconds:
                sometimes("read: a replica was overtaken")
                # Another replica was faster, or the caller gave up after the speculation delay.
                self._failed.note(bookie_id, self._clock.monotonic())
            raise
        self._pace.answered(self._clock.monotonic() - began)
        self._preferred = bookie_id
        self._failed.forgive(bookie_id)
        return ReplicaAnswer(value)

    def _failure(self, attempt: ReadAttempt, bookie_id: str, error: TallybookError) -> None:
        attempt.failed(bookie_id, error)
        if isinstance(error, EntryCorrupt | EntryUnknown):
            self._report(bookie_id, attempt.ledger_id, attempt.entry_id, error)
        elif isinstance(error, _BOOKIE_FAILURES):
            self._failed.note(bookie_id, self._clock.monotonic())
