"""Gives ledgers their identity that are held without one: an earlier version met them, or their index was rebuilt.

Rounds of the garbage collector come upon them, and ask the metadata. What these say is taken only while the store is
not known to be behind, and where the key verifier, if it is known, is the same. Ids that may have been handed out
twice, since the store was behind once, get none: the entries may be the earlier ledger's, and the metadata the later
one's. The next checkpoint writes an identity; what a crash takes away, a later round gives again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from tallybook.core.errors import PeerError, StorageError
from tallybook.core.marks import sometimes
from tallybook.runtime.logging import logger
from tallybook.runtime.pace import Pace

from .ledger_table import LedgerTable
from .verifiers import LOOKUP_SECONDS, FactsLookup

_log = logger("bookie.collector")

MAX_NOTED: Final = 10_000
"""Ledgers that wait for their identity; others are met again in the next round."""


class LateIdentities:
    """Remembers which ledgers have none, and asks for it.

    Args:
        has_room: whether some more ledgers may wait for a checkpoint.
    """

    def __init__(self, table: LedgerTable, facts_of: FactsLookup, has_room: Callable[[], bool]) -> None:
        self._table = table
        self._facts_of = facts_of
        self._has_room = has_room
        self._noted: dict[int, None] = {}

    def note(self, ledger_id: int) -> None:
        """A ledger that the metadata have is held without an identity."""
        if len(self._noted) < MAX_NOTED:
            self._noted[ledger_id] = None

    async def drop(self) -> None:
        """Forget them: the metadata are not to be believed now."""
        self._noted = {}

    async def give(self, pace: Pace, above: int) -> None:
        """Ask for the identities of those that were noted; what cannot be had now waits for the next round.

        Args:
            above: ids up to this one may have been handed out twice.
        """
        noted, self._noted = self._noted, {}
        try:
            for ledger_id in noted:
                if ledger_id <= above:
                    continue
                if not self._has_room():
                    return
                await pace.spend(1)
                await self._give(ledger_id)
        except (TimeoutError, PeerError, StorageError) as error:
            _log.info("identities of ledgers are learned later", error=str(error))

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
