"""The last add confirmed (LAC) of ledgers: telling it, waiting for it, being told it.

The LAC of a ledger rides on every batch. A writer that falls silent, or wants readers to see at once what is confirmed,
sends it alone, which is journaled, because readers of a bookie that restarts must not see it fall.
"""

from __future__ import annotations

import asyncio
from typing import Final

from tallybook.core.answers import LacAnswer
from tallybook.core.errors import BookieUnavailable, Busy, EntryAbsent, EntryUnknown, NoSuchLedger

from .admission import Admission
from .commits import Commits
from .journal.records import ExplicitLacRecord
from .ledger_state import Ledger
from .ledger_table import LedgerTable
from .verifiers import Verifiers, introduction_of

MAX_WAITERS: Final = 65_536
"""Long polls at once; more are BUSY."""

_RETRY_MS: Final = 1_000


class Lacs:
    """Everything about the LAC but what rides on batches."""

    def __init__(self, table: LedgerTable, commits: Commits, admission: Admission, verifiers: Verifiers) -> None:
        self._table = table
        self._commits = commits
        self._admission = admission
        self._verifiers = verifiers
        self._closed = False
        self.waiter_count = 0
        """Long polls under way."""

    async def read(self, ledger_id: int) -> LacAnswer:
        """See ``LedgerStore.read_lac``."""
        async with self._table.using(ledger_id) as ledger:
            _check_known(ledger)
            if not ledger.was_met:
                raise EntryAbsent(f"nothing is held of ledger {ledger_id}")
            return LacAnswer(ledger.lac, ledger.fenced)

    async def wait(self, ledger_id: int, above: int, timeout_ms: int) -> LacAnswer:
        """See ``LedgerStore.wait_lac``.

        Raises:
            EntryUnknown: the ledger is in limbo.
            NoSuchLedger: it was deleted.
            Busy: too many wait already.
        """
        async with self._table.using(ledger_id) as ledger:
            _check_known(ledger)
            if ledger.lac <= above and not ledger.fenced:
                if self.waiter_count >= MAX_WAITERS:
                    raise Busy("too many long polls", retry_after_ms=_RETRY_MS)
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
            Busy: there is no room for the record.
        """
        async with self._table.using(ledger_id) as ledger:
            await self._verifiers.authorise(ledger, key)
            if ledger.deleted:
                raise NoSuchLedger(f"ledger {ledger_id} was deleted")
            if lac > ledger.lac:
                refusal = self._admission.urgent_refusal()
                if refusal is not None:
                    self._admission.count(refusal)
                    raise Busy("no room in the journal", retry_after_ms=refusal.retry_after_ms)
                # The journal first: a LAC that it does not take must not be told, because it would fall.
                if not ledger.verifier_recorded:
                    self._commits.append(introduction_of(ledger), ledger)
                    ledger.verifier_recorded = True
                self._commits.append(ExplicitLacRecord(ledger_id, lac), ledger)
                ledger.explicit_lac = lac
                ledger.saw_lac(lac)
                self._table.mark_dirty(ledger)
            await self._commits.durable(ledger)

    def close(self) -> None:
        """End every long poll: the bookie stops."""
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
                        raise BookieUnavailable("the bookie stops")
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
        raise EntryUnknown(f"what was held of ledger {ledger.ledger_id} may have been lost")
