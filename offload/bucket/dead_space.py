"""Finds sparse objects: sets of which most ledgers were deleted, or moved to other objects.

The metadata lists existing ledgers only. The original content of an object is in its directory, which never changes: it
is read once, with a small request per set, and a bounded number of them per pass.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Final

from tallybook.archive.format.schema import SETS_FOLDER
from tallybook.archive.objects.port import ObjectStore
from tallybook.archive.objects.probe import OBJECT_ERRORS, ObjectPass, RequestOrder
from tallybook.archive.reader import ArchiveReader
from tallybook.core.limits import KIB
from tallybook.core.settings import OffloadSettings
from tallybook.metadata.ledger.archived import Receipt
from tallybook.metadata.ledger.model import LedgerMetadata

MAX_READS_PER_PASS: Final = 200
LEDGER_BYTES: Final = KIB
"""Bytes that a ledger takes in the index of an object, so that sets of empty ledgers count."""


class DeadSpace:
    """Knows the original payload of each set.

    Args:
        store: the bucket, to tell errors of one object from errors of the store.
        reader: reads directories.
    """

    def __init__(self, store: ObjectStore, reader: ArchiveReader, settings: OffloadSettings) -> None:
        self._store = store
        self._reader = reader
        self._settings = settings
        self._held: dict[str, int] = {}
        self._turns = RequestOrder()

    async def mostly_dead(self, ledgers: Iterable[LedgerMetadata], keys: Iterable[str]) -> frozenset[str]:
        """The sets of ``keys`` of which at least ``compact_dead_percent`` is no longer referenced.

        Args:
            ledgers: all existing ledgers.
            keys: the objects in the bucket.

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
        # Failed objects come last, so that they do not use up the limit in every pass.
        unknown = self._turns.order((key for key in found if key not in self._held), key=str)
        asked = ObjectPass(self._store)
        for key in unknown[:MAX_READS_PER_PASS]:
            if asked.ended:
                break
            await self._examine(receipts[key], asked)
        bound = self._settings.compact_dead_percent
        return frozenset(
            key
            for key in found
            if key in self._held and (self._held[key] - alive[key]) * 100 >= bound * self._held[key] > 0
        )

    async def _examine(self, receipt: Receipt, asked: ObjectPass) -> None:
        try:
            directory = await asked.ask(partial(self._reader.directory, receipt))
        except OBJECT_ERRORS as error:
            if not await asked.concerns_one_object(error):
                raise
            # Release or verification of its ledgers reports the error.
            self._turns.failed(receipt.key)
            return
        self._held[receipt.key] = sum(held.payload_bytes + LEDGER_BYTES for held in directory.ledgers)
