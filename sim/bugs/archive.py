"""Bugs planted on purpose in what moves ledgers to the archive, drops their copies, and clears up: see ``bugs``."""

# A wrong function has the arguments of the right one, and does not look at all of them.

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from tallybook.archive.object_check import Found
from tallybook.bookie.garbage import Fate
from tallybook.client.background import client_tasks
from tallybook.metadata.model import LedgerMetadata
from tallybook.offload import mover
from tallybook.offload.mover import Mover
from tallybook.offload.orphans import Owned
from tallybook.runtime.deterministic import SimClock

from . import node
from .bug import Bug

FINISHED_LATER_SECONDS: Final = 1.0


def _believed(_right: Any) -> Any:
    async def read_back(_store: Any, _workers: Any, _key: str, encoded: Any) -> dict[int, Found]:
        return {
            held.ledger_id: Found(held.entries, held.payload_bytes, held.rolling_crc)
            for held in encoded.directory.ledgers
        }

    return read_back


class _FinishedLater:
    """An upload that says to have ended, and ends in a while."""

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
    async def fate_of(store: Any, ledger_id: int, bookie_id: str, identity: bytes = b"") -> Fate:
        fate: Fate = await right(store, ledger_id, bookie_id, identity)
        if fate is not Fate.KEPT:
            return fate
        archived = (await store.read_ledger(ledger_id)).value.archived
        return fate if archived is None else Fate.RELEASED

    return fate_of


def _only_receipts(right: Any) -> Any:
    def by(ledgers: Any, *missing: Any, **named: Any) -> Owned:
        owned: Owned = right((replace(metadata, archiving=None) for metadata in ledgers), *missing, **named)
        return owned

    return by


def _old_one_first(right: Any) -> Any:
    async def commit(self: Any, ledger_id: int, receipt: Any) -> bool:
        metadata: LedgerMetadata = await self._client.ledger_metadata(ledger_id)
        if metadata.archived is not None:
            await self._store.delete(metadata.archived.key)
        committed: bool = await right(self, ledger_id, receipt)
        return committed

    return commit


ARCHIVE_BUGS: Final[dict[str, Bug]] = {
    "archived before the upload is done": Bug(
        "a ledger is said to be archived while its object is still being written",
        "I16 I17",
        [(mover, "write_object", _not_waited_for), (mover, "read_back", _believed)],
        of_archives=True,
    ),
    "archived without reading back": Bug(
        "what the object store took is believed to be what it was given",
        "I16 I17",
        [(mover, "read_back", _believed)],
        of_archives=True,
    ),
    "dropped before the release": Bug(
        "a bookie drops what is archived, whether it was released or not",
        "I16",
        [(node, "fate_of", _dropped_early)],
        of_archives=True,
    ),
    "announced objects collected": Bug(
        "an object that is announced, and not committed yet, is taken for garbage",
        "I17",
        [(Owned, "by", _only_receipts)],
        of_archives=True,
    ),
    "old object removed first": Bug(
        "compaction removes the objects it reads from before it commits the new one",
        "I17",
        [(Mover, "_commit", _old_one_first)],
        of_archives=True,
    ),
}
