"""Keeps the limbo marker of a running bookie, in memory and on the disk."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Final

from tallybook.core.errors import DiskFull
from tallybook.core.marks import sometimes
from tallybook.runtime.clock import Clock
from tallybook.runtime.disk import Disk
from tallybook.runtime.logging import logger

from .ledger_table import LedgerTable
from .limbo import Limbo, store_limbo

_log = logger("bookie.limbo")

SETTLES_SECONDS: Final = 3600.0
"""The least time of a life until ``below`` is final: all bookies compare the metadata several times meanwhile."""


class LimboMarker:
    """Changes the marker while the bookie runs; the table has it, and applies it to ledgers in memory.

    Args:
        path: of the marker.
        below: ``lost_below``.
    """

    def __init__(
        self, disk: Disk, path: str, table: LedgerTable, below: Callable[[], Awaitable[int]], clock: Clock
    ) -> None:
        self._disk = disk
        self._path = path
        self._table = table
        self._below = below
        self._clock = clock
        self._began = clock.monotonic()
        self._stored = table.limbo
        self._changing = asyncio.Lock()

    async def enrolled(self) -> None:
        """No other bookie acks under this id any more: now it can be told for good what may have been lost.

        Raises:
            DiskFull, DiskFailed: it could not be noted.
            MetadataUnavailable: it cannot be told.
        """
        if self._table.limbo.awaits_enrolment:
            async with self._changing:
                sometimes("boot: enrolled in the place of another bookie")
                limbo = self._table.limbo.reaching(await self._below(), awaits_enrolment=False)
                await self._store(limbo)
                self._table.end_doubt(limbo)
            _log.warning("in limbo until repaired: in the place of another bookie", below_ledger_id=limbo.below)

    async def compared(self, below: int, *, certain: bool) -> None:
        """The metadata were compared with what is held. Where the disk is full, the next comparison notes that.

        Args:
            below: ids below it were in use when they were found to be an older copy; 0: they were not.
            certain: that they are not an older copy now.

        Raises:
            DiskFailed: it could not be noted.
        """
        async with self._changing:
            limbo = self._table.limbo
            if not limbo.provisional:
                return
            if below > limbo.below:
                sometimes("bookie: limbo reaches further, since the metadata were an older copy")
                limbo = replace(limbo, below=below)
                self._table.widen_limbo(limbo)
                _log.warning("more ledgers in limbo: the metadata did not know of them", below_ledger_id=below)
            elif certain and not limbo.awaits_enrolment and self._clock.monotonic() - self._began >= SETTLES_SECONDS:
                limbo = replace(limbo, provisional=False)
                self._table.widen_limbo(limbo)
            if limbo != self._stored:
                try:
                    await self._store(limbo)
                except DiskFull as error:
                    _log.warning("limbo marker not written", path=self._path, error=error.message)

    async def _store(self, limbo: Limbo) -> None:
        await store_limbo(self._disk, self._path, limbo)
        self._stored = limbo
