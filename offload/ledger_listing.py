"""Metadata of all ledgers, read again only where it may have changed.

An archived ledger changes only when an offloader releases or moves it, or when it is deleted. So it is read again
at intervals, or if its state is in doubt: a pass over a hundred thousand such ledgers costs a listing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Final

from tallybook.core.errors import DamagedFile, NewerFormat, NoSuchLedger
from tallybook.metadata.ledger.model import LedgerMetadata
from tallybook.metadata.store import MetadataStore

CONCURRENT_READS: Final = 32
PASSES_UNREAD: Final = 20
"""Passes after which an archived ledger is read again: another offloader may have moved it."""


class LedgerListing:
    """The ledgers of a cluster, as of the last read."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self._known: dict[int, LedgerMetadata] = {}
        self._unreadable: dict[int, str] = {}
        self._doubtful: set[int] = set()
        self._pass = 0

    @property
    def ledgers(self) -> Mapping[int, LedgerMetadata]:
        """Ascending by id."""
        return self._known

    @property
    def unreadable(self) -> Mapping[int, str]:
        """Existing ledgers with unreadable metadata, with the error. Their objects are unknown."""
        return self._unreadable

    @property
    def doubtful(self) -> bool:
        """Whether ledgers are in doubt since the last read."""
        return bool(self._doubtful)

    @property
    def store(self) -> MetadataStore:
        """The metadata store."""
        return self._store

    async def cluster_id(self) -> str:
        """Id of the cluster."""
        return await self._store.cluster_id()

    def doubt(self, ledger_ids: Iterable[int]) -> None:
        """Mark these ledgers as in doubt: the next read includes them."""
        self._doubtful.update(ledger_ids)

    async def refresh(self, *, everything: bool = False) -> bool:
        """Read the metadata; with ``everything``, of archived ledgers too. Returns whether all ledgers were read.

        A ledger with unreadable metadata is missing in ``ledgers``; others are not affected.

        Raises:
            MetadataUnavailable: the store does not answer.
        """
        listed, complete = await self._listed()
        self._pass += 1
        turn = self._pass % PASSES_UNREAD
        again = [
            ledger_id
            for ledger_id in listed
            if everything
            or ledger_id % PASSES_UNREAD == turn
            or ledger_id in self._doubtful
            or not _is_archived(self._known.get(ledger_id))
        ]
        found = {ledger_id: self._known[ledger_id] for ledger_id in listed if ledger_id in self._known}
        unreadable: dict[int, str] = {}
        for at in range(0, len(again), CONCURRENT_READS):
            chunk = again[at : at + CONCURRENT_READS]
            for ledger_id, metadata in zip(chunk, await asyncio.gather(*map(self._read, chunk)), strict=True):
                if isinstance(metadata, LedgerMetadata):
                    found[ledger_id] = metadata
                    continue
                found.pop(ledger_id, None)
                if metadata is not None:
                    unreadable[ledger_id] = metadata.message
        self._known = dict(sorted(found.items()))
        self._doubtful.clear()
        self._unreadable = unreadable
        return complete and not unreadable

    async def _listed(self) -> tuple[list[int], bool]:
        listed: list[int] = []
        while True:
            page = await self._store.list_ledgers(listed[-1] if listed else -1)
            listed += page.ledger_ids
            if page.complete or not page.ledger_ids:
                return listed, page.complete

    async def _read(self, ledger_id: int) -> LedgerMetadata | DamagedFile | NewerFormat | None:
        try:
            return (await self._store.read_ledger(ledger_id, linearizable=True)).value
        except NoSuchLedger:
            return None
        except (DamagedFile, NewerFormat) as error:
            return error


def _is_archived(metadata: LedgerMetadata | None) -> bool:
    return metadata is not None and metadata.archived is not None and metadata.archiving is None
