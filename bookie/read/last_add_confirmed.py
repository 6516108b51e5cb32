"""The last add confirmed (LAC) of ledgers: reads, long polls, and explicit LACs from writers.

Every batch carries the LAC of its ledger. A writer that pauses, or wants readers to see confirmed entries at once,
sends an explicit LAC. It is journaled, because readers must not see the LAC fall when the bookie restarts.
"""

from __future__ import annotations

import asyncio
from typing import Final

from tallybook.core.answers import LacAnswer
from tallybook.core.errors import BookieUnavailable, Busy, EntryAbsent, EntryUnknown, NoSuchLedger
from tallybook.runtime.metrics.part_metrics import PartMetrics

from ..journal.format import ExplicitLacRecord
from ..ledgers.key_verification import KeyVerification, introducing_record
from ..ledgers.state import Ledger
from ..ledgers.table import LedgerTable
from ..write.admission import Admission
from ..write.pending_acks import PendingAcks

MAX_WAITERS: Final = 65_536
"""Concurrent long polls; more are BUSY."""

_RETRY_MS: Final = 1_000


class LastAddConfirmed:
    """Serves the LAC requests of a bookie; ``AddPath`` handles the LAC that batches carry."""

    def __init__(
        self, table: LedgerTable, commits: PendingAcks, admission: Admission, verifiers: KeyVerification
    ) -> None:
        self._table = table
        self._commits = commits
        self._admission = admission
        self._verifiers = verifiers
        self._closed = False
        self.waiter_count = 0
        """Number of long polls in flight."""

    async def read(self, ledger_id: int) -> LacAnswer:
        """See ``LedgerStore.read_lac``."""
        async with self._table.using(ledger_id) as ledger:
            _check_known(ledger)
            if not ledger.was_met:
                raise EntryAbsent(f"this bookie has nothing of ledger {ledger_id}")
            return LacAnswer(ledger.lac, ledger.fenced)

    async def wait(self, ledger_id: int, above: int, timeout_ms: int) -> LacAnswer:
        """See ``LedgerStore.wait_lac``.

        Raises:
            EntryUnknown: the ledger is in limbo.
            NoSuchLedger: the ledger was deleted.
            Busy: there are too many long polls.
        """
        async with self._table.using(ledger_id) as ledger:
            _check_known(ledger)
            if ledger.lac <= above and not ledger.fenced:
                if self.waiter_count >= MAX_WAITERS:
                    raise Busy(f"more than {MAX_WAITERS} long polls", retry_after_ms=_RETRY_MS)
                self.waiter_count += 1
                try:
                    await self._news(ledger, above, timeout_ms / 1000)
                finally:
                    self.waiter_count -= 1
            return LacAnswer(ledger.lac, ledger.fenced)

    async def write(self, ledger_id: int, lac: int, key: bytes) -> None:
        """See ``LedgerStore.write_lac``.

        Raises:
            Unauthorized, NoSuchLedger: as for a fence.
            Busy: the journal has no space for the record.
        """
        async with self._table.using(ledger_id) as ledger:
            await self._verifiers.authorize(ledger, key)
            if ledger.deleted:
                raise NoSuchLedger(f"ledger {ledger_id} was deleted")
            if lac > ledger.lac:
                refusal = self._admission.urgent_refusal()
                if refusal is not None:
                    self._admission.count(refusal)
                    raise Busy("the journal is full", retry_after_ms=refusal.retry_after_ms)
                # The journal first: a LAC that it refuses must not be shown to readers, because it would fall again.
                if not ledger.verifier_recorded:
                    self._commits.append(introducing_record(ledger), ledger)
                    ledger.verifier_recorded = True
                self._commits.append(ExplicitLacRecord(ledger_id, lac), ledger)
                ledger.explicit_lac = lac
                ledger.raise_lac(lac)
                self._table.mark_dirty(ledger)
            await self._commits.durable(ledger)

    def close(self) -> None:
        """End every long poll: the bookie is stopping."""
        self._closed = True
        for ledger in self._table:
            ledger.wake_lac_waiters()

    async def _news(self, ledger: Ledger, above: int, timeout_seconds: float) -> None:
        """Wait for a LAC above ``above``, a fence, a deletion, or the timeout."""
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[None] = loop.create_future()
        try:
            async with asyncio.timeout(timeout_seconds):
                while ledger.lac <= above and not ledger.fenced and not ledger.deleted:
                    if self._closed:
                        raise BookieUnavailable("the bookie is stopping")
                    waiter = loop.create_future()
                    ledger.lac_waiters[waiter] = None
                    await waiter
        except TimeoutError:
            return
        finally:
            ledger.lac_waiters.pop(waiter, None)


def _check_known(ledger: Ledger) -> None:
    if ledger.deleted:
        raise NoSuchLedger(f"ledger {ledger.ledger_id} was deleted")
    if ledger.limbo:
        raise EntryUnknown(f"ledger {ledger.ledger_id} is in limbo: entries may have been lost")


METRICS: Final = PartMetrics[LastAddConfirmed]().gauge(
    "lac_waiters",
    "tallybook_bookie_lac_waiters",
    "Long polls waiting for a LAC.",
    lambda lacs: lacs.waiter_count,
)
