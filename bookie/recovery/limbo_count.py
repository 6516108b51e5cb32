"""How many ledgers a bookie answers UNKNOWN for: those that the metadata name it for and that are in limbo here.

A disk that was replaced has no row of what it lost, so the index cannot tell: the metadata of all ledgers of then are
gone over, at the pace of the collector, in each of its rounds until none is left.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Final, TypeAlias

from tallybook.core.errors import DamagedFile, NewerFormat, NoSuchLedger, PeerError, StorageError
from tallybook.metadata.store import MetadataStore
from tallybook.runtime.logging import logger
from tallybook.runtime.pace import Pace

from .ledger_table import LedgerTable
from .limbo import Limbo
from .settled import shares_of

_log = logger("bookie.collector")

PAGE: Final = 1_000
LOOKUPS_AT_ONCE: Final = 4

NamedLedgers: TypeAlias = Callable[[int, Pace], AsyncIterator[int]]
"""Ledgers below an id of which the metadata name this bookie for entries, or may do so when they are closed."""


async def named_ledgers(store: MetadataStore, bookie_id: str, below: int, pace: Pace) -> AsyncIterator[int]:
    """See ``NamedLedgers``. Ledgers whose metadata cannot be read are among them.

    Raises:
        MetadataUnavailable: the store does not answer, or not with all of it.
    """
    after: int | None = -1
    while after is not None and after < below:
        page = await store.list_ledgers(after, PAGE)
        wanted = [ledger_id for ledger_id in page.ledger_ids if ledger_id < below]
        for at in range(0, len(wanted), LOOKUPS_AT_ONCE):
            chunk = wanted[at : at + LOOKUPS_AT_ONCE]
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
        return True  # whom it names cannot be told
    if metadata.copies_released:
        return False
    if not metadata.closed and bookie_id in metadata.last_fragment.bookies:
        return True
    ours = (share for share in shares_of(metadata) if share.bookie_id == bookie_id)
    return any(next(share.ranges(), None) is not None for share in ours)


class LimboCount:
    """Counts ledgers in limbo.

    Args:
        named: ``None``: only ledgers of which something is held are counted.
    """

    def __init__(self, table: LedgerTable, named: NamedLedgers | None, pace: Pace) -> None:
        self._table = table
        self._named = named
        self._pace = pace
        self._none_of: Limbo | None = None
        """The marker with which no ledger was left in limbo: there is nothing to count until it changes."""
        self._counted: Limbo | None = None
        """The marker with which a count came to its end last."""
        self.ledgers = 0
        """As of the last count that came to its end."""

    @property
    def index_in_doubt(self) -> bool:
        """Whether the index may lack rows: ledgers are in limbo, or may be and were not counted yet."""
        limbo = self._table.limbo
        return self.ledgers > 0 or (_may_lack(limbo) and self._counted != limbo)

    async def count(self, held: int, *, believed: bool = True) -> None:
        """Count them.

        Args:
            held: in limbo, of those of which something is held.
            believed: whether the metadata store is no older copy, which may not have all ledgers.
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
            _log.info("ledgers in limbo cannot be counted now", error=error.message)
            self.ledgers = max(self.ledgers, held)
            return
        if not believed:
            self.ledgers = max(self.ledgers, found)
            return
        self.ledgers, self._counted = found, limbo
        if not found and not limbo.awaits_enrolment:
            self._none_of = limbo

    async def _in_limbo(self, ledger_id: int) -> bool:
        try:
            return (await self._table.look(ledger_id)).limbo
        except StorageError:
            return True  # what it is cannot be told, which is what limbo means


def _may_lack(limbo: Limbo) -> bool:
    """Whether anything was ever lost here, or may be."""
    return bool(limbo.events or limbo.awaits_enrolment)
