"""What must hold of the archive at every moment of a run (I16, I17).

Whenever the metadata say that a ledger is in an object, or that bookies may drop it, the bytes of that object are
read as any reader of Parquet would, by no code of the product, and compared with what writers were told. Whenever an
object goes, no ledger may be in it.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from tallybook.archive.schema import object_id_of
from tallybook.metadata.model import LedgerMetadata

from .bucket import Bucket
from .god import God
from .history import History

if TYPE_CHECKING:
    from .node import BookieNode


@dataclass(frozen=True, slots=True)
class Contents:
    """An object as anybody may read it."""

    size_bytes: int
    sha256: bytes
    ledgers: dict[int, list[tuple[int, bytes]]]
    """Ids and payloads of each ledger, in the order of the rows."""
    damage: str = ""


class Archivist:
    """Compares the bucket with the metadata, at each change of either."""

    def __init__(self, god: God, history: History, bucket: Bucket) -> None:
        self._god = god
        self._history = history
        self._bucket = bucket
        self._read: dict[str, Contents] = {}
        bucket.on_removed = self.removed

    def changed(self, before: LedgerMetadata | None, after: LedgerMetadata | None) -> None:
        """The metadata of a ledger have changed."""
        if before is None or after is None:
            return
        if after.archived != before.archived:
            self._look_at_receipt(before, after)
        if after.copies_released != before.copies_released:
            detail = f"ledger {after.ledger_id} was released"
            self._god.expect(after.copies_released, "I3", f"{detail}, and is to be kept again")
            problem = self.problem_of(after)
            self._god.expect(not problem, "I16", f"{detail}, and {problem}")

    def removed(self, key: str) -> None:
        """An object is gone. Whoever announces one has a claim to it from before it is there."""
        self._read.pop(key, None)
        for ledger_id, known in self._god.ledgers.items():
            archived, archiving = known.metadata.archived, known.metadata.archiving
            if archived is not None and archived.key == key:
                self._god.violated("I17", f"object {key} was removed, and ledger {ledger_id} is in it")
            if archiving is not None and archiving.object_id == object_id_of(key):
                self._god.violated("I17", f"object {key} was removed, and ledger {ledger_id} is on its way into it")

    def problem_of(self, metadata: LedgerMetadata) -> str:
        """Why the archive does not hold the whole ledger, as its metadata say; empty where it does."""
        ledger_id, receipt = metadata.ledger_id, metadata.archived
        if receipt is None:
            return "is in no object"
        contents = self._contents(receipt.key)
        if contents is None:
            return f"its object {receipt.key} is not there"
        if (contents.size_bytes, contents.sha256) != (receipt.object_bytes, receipt.object_sha256) or contents.damage:
            return f"its object {receipt.key} is another one than was archived {contents.damage}"
        entries = contents.ledgers.get(ledger_id, [])
        payloads = [payload for _, payload in entries]
        if [entry_id for entry_id, _ in entries] != list(range(metadata.last_entry_id + 1)):
            return f"its object has {len(entries)} entries of it, up to {metadata.last_entry_id} are to be there"
        if sum(map(len, payloads)) != metadata.length or receipt.entries != len(payloads):
            return f"its object has other bytes of it than the {metadata.length} that it ends with"
        for append in self._history.confirmed.get(ledger_id, ()):
            if append.entry_id < len(payloads) and payloads[append.entry_id] != append.payload:
                return f"its entry {append.entry_id} was {append.payload[:40]!r} when it was confirmed"
        return ""

    def _look_at_receipt(self, before: LedgerMetadata, after: LedgerMetadata) -> None:
        problem = self.problem_of(after)
        self._god.expect(not problem, "I17", f"ledger {after.ledger_id} is said to be archived, and {problem}")
        self._god.mark("archive: a ledger was committed" if before.archived is None else "archive: a ledger was moved")

    def _contents(self, key: str) -> Contents | None:
        if key not in self._read:
            data = self._bucket.peek(key)
            if data is None:
                return None
            self._read[key] = _contents_of(data)
        return self._read[key]


def _contents_of(data: bytes) -> Contents:
    ledgers: dict[int, list[tuple[int, bytes]]] = {}
    damage = ""
    try:
        table = pq.read_table(pa.BufferReader(data), columns=["ledger_id", "entry_id", "payload"], use_threads=False)
        for ledger_id, entry_id, payload in zip(*(column.to_pylist() for column in table.columns), strict=True):
            ledgers.setdefault(ledger_id, []).append((entry_id, payload))
    except (pa.ArrowException, OSError) as error:
        damage = f"({str(error)[:80]})"
    return Contents(len(data), hashlib.sha256(data).digest(), ledgers, damage)


def look_at_drops(god: God, nodes: dict[str, BookieNode]) -> None:
    """Whatever a bookie has dropped it may drop (I16)."""
    for node in nodes.values():
        if node.bookie is not None:
            for ledger in list(node.bookie._parts.table):  # noqa: SLF001 - nobody else asks a bookie for this
                if ledger.deleted:
                    god.gone(node.name, ledger.ledger_id)
