"""Appends gather here until their batch is sealed.

Batching follows back-pressure, not a timer: while hardly any batch is unconfirmed the groups
leave at the end of the event loop's turn; the more are, the fuller a group has to be before it
leaves, and when the limit is reached appends only gather.
"""

from __future__ import annotations

from collections import deque

from tallybook.core.batch import encoded_bytes
from tallybook.core.limits import BATCH_TABLE_ROW_BYTES, MAX_BATCH_ENTRIES
from tallybook.core.quorum import Quorum

from .pending import AppendGroup, PendingAppend


class Accumulator:
    """Groups of appends, in entry order; only the last one is still open."""

    def __init__(self, quorum: Quorum, max_batch_bytes: int, *, digest: bool) -> None:
        self._quorum = quorum
        self._overhead = encoded_bytes(0, 0, digest=digest)
        self.limit(max_batch_bytes)
        self._groups: deque[AppendGroup] = deque()
        self._open = self._fresh(0)

    @property
    def next_entry_id(self) -> int:
        """The id the next append gets."""
        return self._open.last_entry_id + 1

    def __bool__(self) -> bool:
        return bool(self._groups) or self._open.entry_count > 0

    def limit(self, max_batch_bytes: int) -> None:
        """Let groups that are still gathering grow to a batch of this size, and no further."""
        self._room = max_batch_bytes - self._overhead

    def add(self, payload: bytes) -> PendingAppend:
        """Gather one entry and give it its id."""
        group = self._open
        size = group.held_bytes + len(payload) + BATCH_TABLE_ROW_BYTES
        if (size > self._room or len(group.payloads) >= self._most) and group.payloads:
            self._groups.append(group)
            group = self._open = self._fresh(group.last_entry_id + 1)
        return group.add(payload)

    def worth_sending(self, share: float) -> bool:
        """Whether a full group waits, or the open one has gathered ``share`` of a batch."""
        return bool(self._groups) or self._open.held_bytes >= share * self._room

    def take(self) -> AppendGroup | None:
        """The next group to seal; its boundaries are final from here on."""
        if self._groups:
            return self._groups.popleft()
        group = self._open
        if not group.payloads:
            return None
        self._open = self._fresh(group.last_entry_id + 1)
        return group

    def take_all(self) -> list[AppendGroup]:
        """Everything that gathered, for failing it."""
        groups = []
        while (group := self.take()) is not None:
            groups.append(group)
        return groups

    def _fresh(self, first_entry_id: int) -> AppendGroup:
        # A batch never crosses a stripe: its entries share one write set.
        self._most = min(MAX_BATCH_ENTRIES, self._quorum.stripe_end(first_entry_id) - first_entry_id + 1)
        return AppendGroup(first_entry_id)
