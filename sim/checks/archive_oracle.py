"""Archive invariants that hold at every moment of a run (I16, I17).

When the metadata say that a ledger is archived, or that bookies may drop it, this module reads the object with pyarrow
(no product code) and compares it with what writers were told. When an object is removed, no ledger may be in it.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from tallybook.archive.format.schema import object_id_of
from tallybook.metadata.ledger.model import LedgerMetadata

from ..cluster.bucket import Bucket
from ..oracle.oracle import Oracle
from ..workload.history import History

if TYPE_CHECKING:
    from ..cluster.bookie_node import BookieNode


@dataclass(frozen=True, slots=True)
class ObjectContents:
    """Contents of an archive object, read with pyarrow."""

    size_bytes: int
    sha256: bytes
    ledgers: dict[int, list[tuple[int, bytes]]]
    """Entry ids and payloads of each ledger, in row order."""
    damage: str = ""


class ArchiveOracle:
    """Compares the bucket with the metadata whenever one of them changes."""

    def __init__(self, oracle: Oracle, history: History, bucket: Bucket) -> None:
        self._oracle = oracle
        self._history = history
        self._bucket = bucket
        self._read: dict[str, ObjectContents] = {}
        bucket.on_removed = self.removed

    def changed(self, before: LedgerMetadata | None, after: LedgerMetadata | None) -> None:
        """Check one change of a ledger's metadata."""
        if before is None or after is None:
            return
        if after.archived != before.archived:
            self._check_receipt(before, after)
        if after.copies_released != before.copies_released:
            detail = f"ledger {after.ledger_id} was released"
            self._oracle.expect(after.copies_released, "I3", f"{detail}, and is to be kept again")
            problem = self.problem_of(after)
            self._oracle.expect(not problem, "I16", f"{detail}, and {problem}")

    def removed(self, key: str) -> None:
        """Check that no ledger is in a removed object, nor announced for it."""
        self._read.pop(key, None)
        for ledger_id, known in self._oracle.ledgers.items():
            archived, archiving = known.metadata.archived, known.metadata.archiving
            if archived is not None and archived.key == key:
                self._oracle.violated("I17", f"object {key} was removed, and ledger {ledger_id} is in it")
            if archiving is not None and archiving.object_id == object_id_of(key):
                self._oracle.violated("I17", f"object {key} was removed, and ledger {ledger_id} is on its way into it")

    def problem_of(self, metadata: LedgerMetadata) -> str:
        """Why the archive does not hold the whole ledger of these metadata; empty if it does."""
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

    def _check_receipt(self, before: LedgerMetadata, after: LedgerMetadata) -> None:
        problem = self.problem_of(after)
        self._oracle.expect(not problem, "I17", f"ledger {after.ledger_id} is recorded as archived, but {problem}")
        self._oracle.mark(
            "archive: a ledger was committed" if before.archived is None else "archive: a ledger was moved"
        )

    def _contents(self, key: str) -> ObjectContents | None:
        if key not in self._read:
            data = self._bucket.peek(key)
            if data is None:
                return None
            self._read[key] = _contents_of(data)
        return self._read[key]


def _contents_of(data: bytes) -> ObjectContents:
    ledgers: dict[int, list[tuple[int, bytes]]] = {}
    damage = ""
    try:
        table = pq.read_table(pa.BufferReader(data), columns=["ledger_id", "entry_id", "payload"], use_threads=False)
        for ledger_id, entry_id, payload in zip(*(column.to_pylist() for column in table.columns), strict=True):
            ledgers.setdefault(ledger_id, []).append((entry_id, payload))
    except (pa.ArrowException, OSError) as error:
        damage = f"({str(error)[:80]})"
    return ObjectContents(len(data), hashlib.sha256(data).digest(), ledgers, damage)


def check_drops(oracle: Oracle, nodes: dict[str, BookieNode]) -> None:
    """Check that bookies dropped only ledgers that they may drop (I16)."""
    for node in nodes.values():
        if node.bookie is not None:
            for ledger in list(node.bookie._parts.table):  # noqa: SLF001 - no public way to get it
                if ledger.deleted:
                    oracle.check_gone(node.name, ledger.ledger_id)
