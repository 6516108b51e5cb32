"""Assigns identities to ledgers that are held without one: from an earlier version, or after an index rebuild.

Passes of the garbage collector find them, and this module reads their metadata. The result is used only while the
metadata store is not known to be behind, and if the key verifier, when known, is the same. Ids that may have been
assigned twice, since the store was once behind, get no identity: the entries may belong to the earlier ledger, and the
metadata to the later one. The next checkpoint writes an identity; if a crash loses it, a later pass sets it again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from tallybook.core.coverage import sometimes
from tallybook.core.errors import PeerError, StorageError
from tallybook.runtime.concurrency.rate_limit import RateLimiter
from tallybook.runtime.logging import logger

from .key_verification import LOOKUP_SECONDS, FactsLookup
from .table import LedgerTable

_log = logger("bookie.collector")

MAX_NOTED: Final = 10_000
"""Ledgers that wait for their identity; the next pass finds the others again."""


class LateIdentities:
    """Collects ledgers without identity, and sets it.

    Args:
        has_space: whether more ledgers may become dirty.
    """

    def __init__(self, table: LedgerTable, facts_of: FactsLookup, has_space: Callable[[], bool]) -> None:
        self._table = table
        self._facts_of = facts_of
        self._has_space = has_space
        self._noted: dict[int, None] = {}

    def note(self, ledger_id: int) -> None:
        """Note a ledger that the metadata has and that is held without an identity."""
        if len(self._noted) < MAX_NOTED:
            self._noted[ledger_id] = None

    async def drop(self) -> None:
        """Forget all noted ledgers: the metadata cannot be trusted now."""
        self._noted = {}

    async def give(self, pace: RateLimiter, above: int) -> None:
        """Set the identities of the noted ledgers; failures wait for the next pass.

        Args:
            above: ids up to this one may have been assigned twice.
        """
        noted, self._noted = self._noted, {}
        try:
            for ledger_id in noted:
                if ledger_id <= above:
                    continue
                if not self._has_space():
                    return
                await pace.spend(1)
                await self._give(ledger_id)
        except (TimeoutError, PeerError, StorageError) as error:
            _log.info("setting ledger identities postponed", error=str(error))

    async def _give(self, ledger_id: int) -> None:
        async with asyncio.timeout(LOOKUP_SECONDS):
            facts = await self._facts_of(ledger_id)
        if facts is None or not facts.identity:
            return
        async with self._table.using(ledger_id) as ledger:
            if ledger.deleted or ledger.identity or ledger.verifier not in (None, facts.verifier):
                return
            sometimes("collector: gives a ledger its identity")
            ledger.verifier, ledger.identity = facts.verifier, facts.identity
            self._table.mark_dirty(ledger)
