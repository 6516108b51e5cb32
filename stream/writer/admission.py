"""The checks of a record before it is gathered: size, order, quota, deduplication and the byte budget."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from tallybook.client.budget import ByteBudget
from tallybook.core.errors import (
    Busy,
    EntryTooLarge,
    InvalidArgument,
    Outcome,
    RequestTimeout,
    StreamClosed,
    TallybookError,
)
from tallybook.runtime.concurrency.handle_lifetime import Lifetime

from ..records.dedup import DedupWindow
from ..records.envelope import HEADER_BYTES, MAX_RECORDS, RECORD_OVERHEAD_BYTES
from ..records.record import MAX_RECORD_BYTES, Outgoing, size_of
from .pending import PendingRecord
from .segments import WriterSegments

APPEND_SECONDS: Final = 30.0
"""How long an append waits for budget, or a conditional append for earlier ones."""


class RecordAdmission:
    """Admits records to the flow of one writer.

    Args:
        window: the deduplication window.
        budget: the client's byte budget.
        lifetime: of the writer: its end cancels waits for budget.
    """

    def __init__(
        self, segments: WriterSegments, window: DedupWindow[PendingRecord], budget: ByteBudget, lifetime: Lifetime
    ) -> None:
        self._segments, self._flow = segments, segments.flow
        self._window = window
        self._budget = budget
        self._lifetime = lifetime
        self._one_share = asyncio.Lock()

    @property
    def _name(self) -> str:
        return f"stream {self._segments.head.name}"

    def refusal(self, outcome: Outcome = Outcome.NOT_DONE) -> TallybookError:
        """The error of a record that comes after the end of the writer, or while it closes."""
        ended = self._flow.error or self._flow.closing or StreamClosed(f"the writer of {self._name} is closed")
        return ended.with_outcome(outcome)

    # -- checks ------------------------------------------------------------------------------------------------------

    @property
    def max_record_bytes(self) -> int:
        """The largest record that fits an entry now."""
        return min(self._flow.max_entry_bytes - HEADER_BYTES - RECORD_OVERHEAD_BYTES, MAX_RECORD_BYTES)

    def admissible(self, record: Outgoing) -> int:
        """The size of a record, if it can be appended now.

        Raises:
            As ``StreamWriter.append_nowait``, but not for what only new records must pass.
        """
        if self._flow.closing is not None or self._flow.error is not None:
            raise self.refusal()
        size = size_of(record)
        if size > self.max_record_bytes:
            raise EntryTooLarge(f"a record of {size} bytes does not fit an entry of {self._flow.max_entry_bytes}")
        return size

    def check_fits_together(self, sizes: Sequence[int]) -> None:
        """Check that records of these sizes fit in one entry.

        Raises:
            EntryTooLarge: they do not.
        """
        total = sum(sizes) + len(sizes) * RECORD_OVERHEAD_BYTES
        if total > self._flow.max_entry_bytes - HEADER_BYTES or len(sizes) > MAX_RECORDS:
            raise EntryTooLarge(f"a set of {len(sizes)} records and {total} bytes does not fit one entry")

    def known(self, dedup_id: bytes | None, sequence: int | None = None) -> PendingRecord | None:
        """The earlier append with this deduplication id, if it is in the window and did not fail.

        Args:
            sequence: number that the record would get; by default, the next one.
        """
        if dedup_id is None:
            return None
        found = self._window.find(dedup_id, self._flow.next_sequence if sequence is None else sequence)
        return None if found is None or found.refused else found

    def check_new(self, record: Outgoing) -> None:
        """Check a record that is not a duplicate; raises ``QuotaExceeded``, ``OutOfOrder``, or ``Busy`` for its id."""
        self._flow.check_quota()
        self._flow.check_order(record.txid)
        if record.dedup_id is not None:
            self._window.check_space((record.dedup_id,), self._flow.next_sequence)

    def check_all(self, records: Sequence[Outgoing], *, as_set: bool) -> list[PendingRecord]:
        """Check records that are appended together; return the pending appends of a set that was appended before.

        Raises:
            InvalidArgument: only some records of the set were appended before, or it contains an id twice.
            As ``check_new``.
        """
        known = self._known_set(records) if as_set else []
        if not known and any(self.known(each.dedup_id) is None for each in records):
            self._flow.check_quota()
        self._check_orders(records)
        ids = [record.dedup_id for record in records if record.dedup_id is not None]
        self._window.check_space(ids, self._flow.next_sequence)
        return known

    def _known_set(self, records: Sequence[Outgoing]) -> list[PendingRecord]:
        ids = [record.dedup_id for record in records if record.dedup_id is not None]
        if len(ids) != len(set(ids)):
            raise InvalidArgument("the set contains a deduplication id twice")
        known = [found for record in records if (found := self.known(record.dedup_id)) is not None]
        if known and len(known) < len(records):
            raise InvalidArgument("some records of the set were appended before, and others were not, or have no id")
        return known

    def _check_orders(self, records: Sequence[Outgoing]) -> None:
        if all(record.txid is None for record in records):
            return
        highest: int | None = None
        sequence = self._flow.next_sequence
        for record in records:
            # Earlier records of this call may push its id out of the window; then it is appended again.
            if self.known(record.dedup_id, sequence) is not None:
                continue
            sequence += 1
            if record.txid is not None:
                self._flow.check_order(record.txid, after=highest)
                highest = record.txid

    # -- budget ------------------------------------------------------------------------------------------------------

    def take_now(self, size: int) -> None:
        """Take budget, without waiting; raises ``Busy``."""
        if not self._budget.try_take(size):
            raise Busy(f"{self._name}: {self._budget.limit_bytes} bytes are pending", retry_after_ms=1)

    async def take(self, size: int, outcome: Outcome) -> None:
        """Take budget, and wait for it.

        Raises:
            RequestTimeout: it stayed used up.
            As ``refusal``: the writer has ended meanwhile.
        """
        try:
            async with asyncio.timeout(APPEND_SECONDS):
                with self._lifetime.use(outcome):
                    await self._budget.take(size)
        except TimeoutError:
            raise RequestTimeout(f"{self._name}: max_pending_bytes stayed in use", outcome=outcome) from None
        if self._flow.closing is not None or self._flow.error is not None:
            self._budget.give(size)
            raise self.refusal(outcome)

    async def take_share(self, size: int) -> None:
        """Take budget within this stream's fair share: otherwise a slow stream would take all of it over time."""
        if not self._one_share.locked() and self._flow.has_fair_share(size) and self._budget.try_take(size):
            return
        try:
            # In order: otherwise small appends would starve a large one.
            async with asyncio.timeout(APPEND_SECONDS):
                with self._lifetime.use(Outcome.NOT_DONE):
                    async with self._one_share:
                        await self._flow.wait_for_fair_share(size)
                        await self.take(size, Outcome.NOT_DONE)
        except TimeoutError:
            raise RequestTimeout(f"{self._name}: too many bytes are pending", outcome=Outcome.NOT_DONE) from None

    # -- append ------------------------------------------------------------------------------------------------------

    def gather(self, record: Outgoing, size: int, *, same: bool = False) -> PendingRecord:
        """Append an admitted record, for which budget was taken; see ``RecordFlow.gather``."""
        payload, time_ms, key, dedup_id, txid = record
        payload = payload if isinstance(payload, bytes) else bytes(payload)
        sequence = self._flow.next_sequence
        pending = self._flow.gather(payload, size, time_ms, key, dedup_id, txid, same=same)
        if dedup_id is not None:
            self._window.add(dedup_id, sequence, pending)
        return pending
