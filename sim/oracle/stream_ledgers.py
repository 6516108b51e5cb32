"""Tracks ledgers of streams and subscriptions, and finds orphans that no stream names (S10).

A stream head or subscription record announces a ledger before it is created. A ledger that is created while it is
announced stays named until it is deleted. One that is created later (by a process that was frozen, or by a delayed
request) may stay as an orphan, because no record knows it. A doomed ledger counts as not announced: the janitor may
have looked for it just before it was created.
"""

from __future__ import annotations

from typing import Final

from tallybook.metadata.ledger.model import LedgerMetadata
from tallybook.metadata.memory import MemoryMetadata
from tallybook.metadata.stream_use import CURSOR, HEADS, STREAM
from tallybook.stream.catalog import subscription_record as subscription
from tallybook.stream.catalog.head_codec import decode_chapter, decode_head
from tallybook.stream.names import CHAPTERS, SUBSCRIPTIONS

from .oracle import Oracle

KEYS: Final = (STREAM, CURSOR)
"""Custom metadata keys: every ledger of a stream or subscription has one of them."""


class StreamLedgers:
    """Checks the records of the metadata store whenever a ledger is created."""

    def __init__(self, shared: MemoryMetadata, oracle: Oracle) -> None:
        self._shared = shared
        self._oracle = oracle
        self._announced: set[int] = set()
        """Existing ledgers that were announced when they were created."""

    def changed(self, ledger_id: int, before: LedgerMetadata | None, after: LedgerMetadata | None) -> None:
        """Take note of one change of a ledger's metadata."""
        if after is None:
            self._announced.discard(ledger_id)
        elif before is None and any(key in after.custom for key in KEYS):
            if ledger_id in self._named(with_doomed=False):
                self._announced.add(ledger_id)
            else:
                self._oracle.mark("streams: a ledger is made after its writer stopped waiting")

    def unnamed(self) -> list[int]:
        """Ledgers that were announced when they were created and that no record names now."""
        named = self._named()
        return [ledger_id for ledger_id in self._announced if ledger_id not in named]

    def doomed(self) -> list[int]:
        """Existing ledgers that a head lists for deletion."""
        heads = [decode_head(name, value) for name, value in self._records(HEADS)]
        return [ledger_id for head in heads for ledger_id in head.doomed if ledger_id in self._oracle.ledgers]

    def _named(self, *, with_doomed: bool = True) -> set[int]:
        found: set[int] = set()
        for name, value in self._records(HEADS):
            head = decode_head(name, value)
            found |= {segment.ledger_id for segment in head.segments} | set(head.doomed if with_doomed else ())
            found |= set() if head.making is None else {head.making}
        for name, value in self._records(CHAPTERS):
            found |= {segment.ledger_id for segment in decode_chapter(name, value)}
        for name, value in self._records(SUBSCRIPTIONS):
            kept = subscription.decode(name, value)
            found |= set(subscription.ledgers_of(kept)).difference(() if with_doomed else kept.doomed)
        return found

    def _records(self, prefix: str) -> list[tuple[str, bytes]]:
        return [(name, record.value) for name, record in self._shared.records.items() if name.startswith(prefix)]
