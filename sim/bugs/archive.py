"""Planted bugs in offload: archiving, releasing copies, and removing objects."""

# A wrong function has the arguments of the correct one, and does not use all of them.

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from tallybook.archive.verifier import VerifiedLedger
from tallybook.bookie.ledgers.disposition import LedgerDisposition
from tallybook.client.background import client_tasks
from tallybook.metadata.ledger.model import LedgerMetadata
from tallybook.offload import mover
from tallybook.offload.bucket.orphans import Owned
from tallybook.offload.mover import Mover

from ..cluster import bookie_node
from ..deterministic import SimClock
from .bug import Bug

FINISHED_LATER_SECONDS: Final = 1.0


def _believed(_right: Any) -> Any:
    async def read_back(_store: Any, _workers: Any, _key: str, encoded: Any) -> dict[int, VerifiedLedger]:
        return {
            held.ledger_id: VerifiedLedger(held.entries, held.payload_bytes, held.rolling_crc)
            for held in encoded.directory.ledgers
        }

    return read_back


class _FinishedLater:
    """An upload whose ``finish`` returns at once and finishes later."""

    def __init__(self, upload: Any) -> None:
        self._upload = upload
        self.write, self.abort = upload.write, upload.abort

    async def finish(self) -> None:
        async def later() -> None:
            await SimClock().sleep(FINISHED_LATER_SECONDS)
            await self._upload.finish()

        client_tasks("planted bug").spawn(later(), name="finish")


class _HastyStore:
    def __init__(self, store: Any) -> None:
        self._store = store

    def upload(self, key: str) -> _FinishedLater:
        return _FinishedLater(self._store.upload(key))


def _not_waited_for(right: Any) -> Any:
    async def write_object(store: Any, *arguments: Any, **named: Any) -> Any:
        return await right(_HastyStore(store), *arguments, **named)

    return write_object


def _dropped_early(right: Any) -> Any:
    async def disposition_of(store: Any, ledger_id: int, bookie_id: str, identity: bytes = b"") -> LedgerDisposition:
        disposition: LedgerDisposition = await right(store, ledger_id, bookie_id, identity)
        if disposition is not LedgerDisposition.KEPT:
            return disposition
        archived = (await store.read_ledger(ledger_id)).value.archived
        return disposition if archived is None else LedgerDisposition.RELEASED

    return disposition_of


def _only_receipts(right: Any) -> Any:
    def by(ledgers: Any, *missing: Any, **named: Any) -> Owned:
        owned: Owned = right((replace(metadata, archiving=None) for metadata in ledgers), *missing, **named)
        return owned

    return by


def _old_one_first(right: Any) -> Any:
    async def commit(self: Mover, ledger_id: int, receipt: Any) -> bool:
        metadata: LedgerMetadata = await self._client.ledger_metadata(ledger_id)
        if metadata.archived is not None:
            await self._store.delete(metadata.archived.key)
        committed: bool = await right(self, ledger_id, receipt)
        return committed

    return commit


ARCHIVE_BUGS: Final[dict[str, Bug]] = {
    "archived before the upload is done": Bug(
        "a ledger is committed as archived while its object is still being uploaded",
        "I16 I17",
        [(mover, "write_object", _not_waited_for), (mover, "read_back", _believed)],
        of_archives=True,
    ),
    "archived without reading back": Bug(
        "an uploaded object is not read back and verified",
        "I16 I17",
        [(mover, "read_back", _believed)],
        of_archives=True,
    ),
    "dropped before the release": Bug(
        "a bookie drops archived ledgers before their copies are released",
        "I16",
        [(bookie_node, "disposition_of", _dropped_early)],
        of_archives=True,
    ),
    # Rarely seen: an object that may be the last copy of a ledger is kept by another rule, so only compaction shows it.
    "announced objects collected": Bug(
        "an announced object that is not committed yet is removed as an orphan",
        "I17",
        [(Owned, "by", _only_receipts)],
        of_archives=True,
    ),
    "old object removed first": Bug(
        "archive compaction removes its source objects before it commits the new one",
        "I17",
        [(Mover, "_commit", _old_one_first)],
        of_archives=True,
    ),
}
