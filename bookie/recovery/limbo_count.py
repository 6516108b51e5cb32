"""Counts the ledgers that a bookie answers UNKNOWN for: the metadata names it for them, and they are in limbo here.

A replaced disk has no rows of what it lost, so the index does not know: the metadata of all ledgers of that time is
scanned, at the rate of the collector, in each of its passes until none is left.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Final, TypeAlias

from tallybook.core.errors import DamagedFile, NewerFormat, NoSuchLedger, PeerError, StorageError
from tallybook.metadata.store import MetadataStore
from tallybook.runtime.concurrency.rate_limit import RateLimiter
from tallybook.runtime.logging import logger

from ..directories.limbo import Limbo
from ..ledgers.confirmed_prefix import shares_of
from ..ledgers.table import LedgerTable

_log = logger("bookie.collector")

PAGE: Final = 1_000
MAX_CONCURRENT_LOOKUPS: Final = 4

NamedLedgers: TypeAlias = Callable[[int, RateLimiter], AsyncIterator[int]]
"""Lists the ledgers below an id whose metadata names this bookie, or may do so when they are closed."""


async def named_ledgers(store: MetadataStore, bookie_id: str, below: int, pace: RateLimiter) -> AsyncIterator[int]:
    """See ``NamedLedgers``. Ledgers whose metadata cannot be read are included.

    Raises:
        MetadataUnavailable: the store does not respond, or not with all of it.
    """
    after: int | None = -1
    while after is not None and after < below:
        page = await store.list_ledgers(after, PAGE)
        wanted = [ledger_id for ledger_id in page.ledger_ids if ledger_id < below]
        for at in range(0, len(wanted), MAX_CONCURRENT_LOOKUPS):
            chunk = wanted[at : at + MAX_CONCURRENT_LOOKUPS]
            await pace.spend(len(chunk))
            found = await asyncio.gather(*(_names(store, ledger_id, bookie_id) for ledger_id in chunk))
            for ledger_id, named in zip(chunk, found, strict=True):
                if named:
                    yield ledger_id
        after = page.next_after()


async def _names(store: MetadataStore, ledger_id: int, bookie_id: str) -> bool:
    try:
        metadata = (await store.read_ledger(ledger_id)).value
    except NoSuchLedger:
        return False
    except (DamagedFile, NewerFormat):
        return True  # its bookies are unknown
    if metadata.copies_released:
        return False
    if not metadata.closed and bookie_id in metadata.last_fragment.bookies:
        return True
    ours = (share for share in shares_of(metadata) if share.bookie_id == bookie_id)
    return any(next(share.ranges(), None) is not None for share in ours)


class LimboCount:
    """Counts ledgers in limbo.

    Args:
        named: ``None``: only ledgers with held entries are counted.
    """

    def __init__(self, table: LedgerTable, named: NamedLedgers | None, pace: RateLimiter) -> None:
        self._table = table
        self._named = named
        self._pace = pace
        self._none_of: Limbo | None = None
        """The marker with which no ledger was left in limbo: there is nothing to count until it changes."""
        self._counted: Limbo | None = None
        """The marker of the last complete count."""
        self.ledgers = 0
        """Result of the last complete count."""

    @property
    def index_in_doubt(self) -> bool:
        """Whether the index may lack rows: ledgers are in limbo, or may be and were not counted yet."""
        limbo = self._table.limbo
        return self.ledgers > 0 or (_may_lack(limbo) and self._counted != limbo)

    async def count(self, held: int, *, believed: bool = True) -> None:
        """Count them.

        Args:
            held: number of ledgers in limbo with held entries.
            believed: whether the metadata store is up to date; an older copy may not have all ledgers.
        """
        limbo = self._table.limbo
        if self._named is None or limbo == self._none_of or not _may_lack(limbo):
            self.ledgers, self._counted = held, limbo
            return
        found = 0
        try:
            async for ledger_id in self._named(limbo.below, self._pace):
                found += await self._in_limbo(ledger_id)
        except PeerError as error:
            _log.info("counting ledgers in limbo postponed", error=error.message)
            self.ledgers = max(self.ledgers, held)
            return
        if not believed:
            self.ledgers = max(self.ledgers, found)
            return
        self.ledgers, self._counted = found, limbo
        if not found and not limbo.awaits_registration:
            self._none_of = limbo

    async def _in_limbo(self, ledger_id: int) -> bool:
        try:
            return (await self._table.peek(ledger_id)).limbo
        except StorageError:
            return True  # its state is unknown, which is what limbo means


def _may_lack(limbo: Limbo) -> bool:
    """Whether anything was ever lost here, or may be."""
    return bool(limbo.events or limbo.awaits_registration)
