"""Which objects are mostly dead: what is left in a set when ledgers that share it are deleted, or have moved away.

The metadata tell only of the ledgers that live. What an object held when it was written is in its own directory,
which never changes: it is read once, a small request for each set, and a bounded number of them at a time.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Final

from tallybook.archive.objects.port import ObjectStore
from tallybook.archive.objects.probe import OBJECT_ERRORS, ObjectPass, Turns
from tallybook.archive.reader import ArchiveReader
from tallybook.archive.schema import SETS_FOLDER
from tallybook.core.config import OffloadSettings
from tallybook.core.limits import KIB
from tallybook.metadata.archived import Receipt
from tallybook.metadata.model import LedgerMetadata

LOOKS_AT_A_TIME: Final = 200
LEDGER_BYTES: Final = KIB
"""What a ledger takes in the index of an object, however little it holds: so that sets of empty ledgers count."""


class DeadSpace:
    """Knows how much each set object held.

    Args:
        store: asked whether an object that it does not give is the only one.
        reader: reads directories.
    """

    def __init__(self, store: ObjectStore, reader: ArchiveReader, settings: OffloadSettings) -> None:
        self._store = store
        self._reader = reader
        self._settings = settings
        self._held: dict[str, int] = {}
        self._turns = Turns()

    async def mostly_dead(self, ledgers: Iterable[LedgerMetadata], keys: Iterable[str]) -> frozenset[str]:
        """Those of ``keys`` of which at least ``compact_dead_percent`` is nobody's any more.

        Args:
            ledgers: all there are.
            keys: what the bucket holds.

        Raises:
            ArchiveUnavailable, ArchiveDenied: the store does not answer.
        """
        receipts: dict[str, Receipt] = {}
        alive: dict[str, int] = {}
        for metadata in ledgers:
            receipt = metadata.archived
            if receipt is not None and receipt.key.startswith(SETS_FOLDER):
                receipts[receipt.key] = receipt
                alive[receipt.key] = alive.get(receipt.key, 0) + receipt.payload_bytes + LEDGER_BYTES
        found = sorted(receipts.keys() & set(keys))
        self._held = {key: self._held[key] for key in found if key in self._held}
        # Else those that failed could take all looks each time.
        unknown = self._turns.order((key for key in found if key not in self._held), key=str)
        asked = ObjectPass(self._store)
        for key in unknown[:LOOKS_AT_A_TIME]:
            if asked.ended:
                break
            await self._look(receipts[key], asked)
        bound = self._settings.compact_dead_percent
        return frozenset(
            key
            for key in found
            if key in self._held and (self._held[key] - alive[key]) * 100 >= bound * self._held[key] > 0
        )

    async def _look(self, receipt: Receipt, asked: ObjectPass) -> None:
        try:
            directory = await asked.ask(partial(self._reader.directory, receipt))
        except OBJECT_ERRORS as error:
            if not await asked.concerns_one_object(error):
                raise
            # The release, or verification, of its ledgers reports it.
            self._turns.failed(receipt.key)
            return
        self._held[receipt.key] = sum(held.payload_bytes + LEDGER_BYTES for held in directory.ledgers)
