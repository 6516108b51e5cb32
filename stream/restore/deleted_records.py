"""Decides which records of a copy were deleted rather than lost: deleted records are not restored.

- A record that disappeared before the copy was replaced is marked in the copy. For one deleted later, the deletions of
  its ledgers are on record. So a record was lost, not deleted, if one of its ledgers exists or was never deleted.
- A record without ledgers (a name, or a subscription without a reader) follows its stream, unless it had disappeared
  while its stream existed.
- An empty stream that had disappeared counts as deleted.
"""

from __future__ import annotations

from collections.abc import Mapping

from tallybook.archive.stream_records import RecordsCopy
from tallybook.core.errors import DamagedFile, NewerFormat, NoSuchLedger
from tallybook.core.ids import MAX_ID
from tallybook.metadata.store import MetadataStore
from tallybook.metadata.stream_use import HEADS, head_record

from ..catalog import subscription_record as subscriptions
from ..catalog.catalog import decode_name
from ..catalog.head_codec import decode_chapter, decode_head
from ..names import CHAPTERS, NAMES, NAMESPACES, SUBSCRIPTIONS, chapter_record, name_record


class DeletedRecords:
    """Whether records of a copy that are missing in the metadata were deleted.

    Args:
        own: whether the copy is of this cluster, so that the cluster's deletion records apply to its ledger ids.
    """

    def __init__(self, metadata: MetadataStore, copy: RecordsCopy, *, own: bool) -> None:
        self._metadata = metadata
        self._copy = copy
        self._own = own
        self._heads: dict[str, bool] = {}
        """For each missing head, whether it was deleted."""

    async def load(self) -> None:
        """Decide for all streams, before the first record is restored.

        Raises:
            MetadataUnavailable: the store does not answer.
        """
        for name in self._copy.records:
            if name.startswith(HEADS) and await self._metadata.read_record(name, linearizable=True) is None:
                try:
                    self._heads[name] = await self._by_ledgers(name)
                except (DamagedFile, NewerFormat):
                    self._heads[name] = False  # reported when it is restored

    async def was_deleted(self, name: str) -> bool:
        """Whether a missing record was deleted.

        Raises:
            DamagedFile, NewerFormat: it cannot be decoded.
            MetadataUnavailable: the store does not answer.
        """
        if name.startswith(HEADS):
            return self._heads[name] if name in self._heads else await self._by_ledgers(name)
        if name.startswith(NAMESPACES):
            return self._namespace_was_deleted(name)
        if name.startswith(NAMES):
            head = head_record(decode_name(name, self._copy.records[name]))
            return self._heads.get(head, False) or (name in self._copy.gone_at_ms and not self._is_there(head))
        head = head_record(name.removeprefix(CHAPTERS).removeprefix(SUBSCRIPTIONS).partition("/")[0])
        if self._heads.get(head, False):
            return True
        if (head in self._heads or head in self._copy.gone_at_ms) and not self._went_before(name, head):
            return False
        return await self._by_ledgers(name)

    def _is_there(self, head: str) -> bool:
        """Whether a stream is in the metadata, or is restored."""
        return head in self._copy.records and not self._heads.get(head, False)

    def _went_before(self, name: str, head: str) -> bool:
        """Whether a record disappeared before its stream did: only then can it have been deleted by itself."""
        gone_at_ms = self._copy.gone_at_ms
        return name in gone_at_ms and gone_at_ms[name] < gone_at_ms.get(head, MAX_ID)

    def _namespace_was_deleted(self, name: str) -> bool:
        streams, gone = name_record(name.removeprefix(NAMESPACES), ""), self._copy.gone_at_ms
        named = [each for each in self._copy.records if each.startswith(streams)]
        if name not in gone and not any(each not in gone for each in named):
            return False  # it existed, and was empty
        return not any(self._leads_to_a_stream(each) for each in named)

    def _leads_to_a_stream(self, name: str) -> bool:
        try:
            return self._is_there(head_record(decode_name(name, self._copy.records[name])))
        except (DamagedFile, NewerFormat):
            return name not in self._copy.gone_at_ms

    async def _by_ledgers(self, name: str) -> bool:
        """Whether a record was deleted, judged by its ledgers."""
        ledger_ids = ledgers_of(name, self._copy.records)
        if name in self._copy.gone_at_ms:
            return not any([await self._exists(ledger_id) for ledger_id in ledger_ids])
        if not self._own or not ledger_ids:
            return False
        return all([await self._metadata.deletion(ledger_id) is not None for ledger_id in ledger_ids])

    async def _exists(self, ledger_id: int) -> bool:
        try:
            await self._metadata.read_ledger(ledger_id, linearizable=True)
        except NoSuchLedger:
            return False
        except (DamagedFile, NewerFormat):
            return True  # it exists, though its record cannot be read
        return True


def ledgers_of(name: str, records: Mapping[str, bytes]) -> list[int]:
    """The ledgers of a head with its chapters, of a chapter, or of a subscription.

    Raises:
        DamagedFile, NewerFormat: a record cannot be decoded.
    """
    if name.startswith(SUBSCRIPTIONS):
        return list(subscriptions.ledgers_of(subscriptions.decode(name, records[name])))
    if name.startswith(CHAPTERS):
        return [each.ledger_id for each in decode_chapter(name, records[name])]
    head = decode_head(name, records[name])
    if head.deleting:
        return []
    found = [each.ledger_id for each in head.segments]
    for chapter in head.chapters:
        record = chapter_record(head.stream_id, chapter.number)
        if record in records:
            found += ledgers_of(record, records)
    return found
