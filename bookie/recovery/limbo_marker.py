"""Maintains the limbo marker of a running bookie, in memory and on the disk."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Final

from tallybook.core.coverage import sometimes
from tallybook.core.errors import DiskFull
from tallybook.runtime.clock import Clock
from tallybook.runtime.disk.port import Disk
from tallybook.runtime.logging import logger

from ..directories.limbo import Limbo, store_limbo
from ..ledgers.table import LedgerTable

_log = logger("bookie.limbo")

FINAL_SECONDS: Final = 3600.0
"""Minimum uptime until ``below`` is final: by then all bookies have compared the metadata several times."""


class LimboMarker:
    """Changes the marker while the bookie runs; the ledger table applies it to ledgers in memory.

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

    async def registered(self) -> None:
        """Note the registration: no other bookie acks under this id any more, so the extent of the loss is final.

        Raises:
            DiskFull, DiskFailed: it could not be written.
            MetadataUnavailable: the id counter cannot be read.
        """
        if self._table.limbo.awaits_registration:
            async with self._changing:
                sometimes("boot: registered in place of another bookie")
                limbo = self._table.limbo.reaching(await self._below(), awaits_registration=False)
                await self._store(limbo)
                self._table.end_doubt(limbo)
            _log.warning("in limbo until repaired: this bookie replaces another one", below_ledger_id=limbo.below)

    async def compared(self, below: int, *, certain: bool) -> None:
        """Note a comparison of the metadata with held ledgers. If the disk is full, the next comparison notes it.

        Args:
            below: ids below it were in use when the store was found to be an older copy; 0: it was not.
            certain: whether the store is certainly up to date now.

        Raises:
            DiskFailed: it could not be written.
        """
        async with self._changing:
            limbo = self._table.limbo
            if not limbo.provisional:
                return
            if below > limbo.below:
                sometimes("bookie: limbo reaches further, since the metadata were an older copy")
                limbo = replace(limbo, below=below)
                self._table.widen_limbo(limbo)
                _log.warning("more ledgers in limbo: the metadata did not have them", below_ledger_id=below)
            elif certain and not limbo.awaits_registration and self._clock.monotonic() - self._began >= FINAL_SECONDS:
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
