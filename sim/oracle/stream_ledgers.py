"""Which ledgers belong to streams and subscriptions, and which of them nobody names (S10).

A ledger is announced in a head, or in the record of a subscription, before it is made. If it is made while it is
announced there, it is named ever after, until it is deleted. One that is made later, by a process that has slept, or
by a request that was on its way for long, may stay: nobody knows of it. That it is still among the doomed ones does
not help it, for it may have been looked for a moment before, and not been there.
"""

from __future__ import annotations

from typing import Final

from tallybook.metadata.ledger_use import CURSOR, HEADS, STREAM
from tallybook.metadata.memory import MemoryMetadata
from tallybook.metadata.model import LedgerMetadata
from tallybook.stream.head_codec import decode_chapter, decode_head
from tallybook.stream.names import CHAPTERS, SUBSCRIPTIONS
from tallybook.stream.subscription import record as subscription

from .god import God

KEYS: Final = (STREAM, CURSOR)
"""One of them is among the custom metadata of every such ledger."""


class StreamLedgers:
    """Looks at the records of the store whenever a ledger is made."""

    def __init__(self, shared: MemoryMetadata, god: God) -> None:
        self._shared = shared
        self._god = god
        self._announced: set[int] = set()
        """Of those that are there, the ones that were announced when they were made."""

    def changed(self, ledger_id: int, before: LedgerMetadata | None, after: LedgerMetadata | None) -> None:
        """The metadata of a ledger have changed."""
        if after is None:
            self._announced.discard(ledger_id)
        elif before is None and any(key in after.custom for key in KEYS):
            if ledger_id in self._named(with_doomed=False):
                self._announced.add(ledger_id)
            else:
                self._god.mark("streams: a ledger is made when nobody waits for it any more")

    def nobodys(self) -> list[int]:
        """Ledgers that were announced when they were made, and that nobody names."""
        named = self._named()
        return [ledger_id for ledger_id in self._announced if ledger_id not in named]

    def doomed(self) -> list[int]:
        """Ledgers that are to be deleted."""
        heads = [decode_head(name, value) for name, value in self._records(HEADS)]
        return [ledger_id for head in heads for ledger_id in head.doomed if ledger_id in self._god.ledgers]

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
