"""Records that the journal has and that are not durable yet, and the adds and tasks that wait for them.

A journal makes records durable in the order of appending. So records are numbered, and "everything up to number n is
durable" suffices: an add is acked when its record is durable; a fence, and an identical resend, wait for the last
record of their ledger. All records of a ledger go to the same journal (journals.py).

After a halt (the journal failed, or the bookie gives up), nothing counts as durable any more, even if the device says
so: waiting tasks get an error, and no add is acked.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from tallybook.core.add_kind import AddKind
from tallybook.core.answers import AddAnswer, AddCallback
from tallybook.core.error_codes import error_from_wire
from tallybook.core.errors import OK_CODE, DiskFailed, is_defect
from tallybook.core.ids import NO_IDENTITY
from tallybook.runtime.clock import Clock
from tallybook.runtime.metrics.histogram import Histogram
from tallybook.runtime.metrics.part_metrics import PartMetrics

from ..journal.format import JournalRecord
from ..journal.group_commit import Commit
from ..journal.journals import journal_of
from ..ledgers.state import Ledger
from .admission import Admission
from .traced_add import TracedAdd

DURABLE_WAIT_SECONDS: Final = 60.0
"""Longest wait for the journal; a device that takes longer has failed."""


class RecordSink(Protocol):
    """The part of the journal that takes records."""

    last_commit: Commit | None
    """The block that became durable last; while ``on_durable`` is called, the block of that record."""

    def append(self, record: JournalRecord, on_durable: Callable[[], None]) -> None:
        """Queue ``record``; ``on_durable`` is called on the event loop, in order of appending."""


class PendingAdd:
    """A batch on its way through the bookie: its callback, and the space it occupies."""

    __slots__ = (
        "acked_early",
        "deferred",
        "entry_count",
        "first",
        "identity",
        "ledger_id",
        "on_answer",
        "recovery",
        "repair",
        "since",
        "size",
        "trace",
    )  # fmt: skip

    def __init__(
        self,
        ledger_id: int,
        first: int,
        entry_count: int,
        size: int,
        since: float,
        on_answer: AddCallback,
        kind: AddKind,
        identity: bytes = NO_IDENTITY,
    ) -> None:
        self.ledger_id = ledger_id
        self.first = first
        self.entry_count = entry_count
        self.size = size
        self.since = since
        """When the add was taken."""
        self.on_answer = on_answer
        self.recovery = kind.from_recovery
        """Whether it is in the lane of recoveries: a recovery or repair add."""
        self.deferred = kind is AddKind.DEFERRED
        self.repair = kind is AddKind.REPAIR
        """Whether it came from re-replication, without a key."""
        self.identity = identity
        """Identity of the ledger that the client means; empty if it does not state one."""
        self.acked_early = False
        """Whether it was acked before it was durable."""
        self.trace: TracedAdd | None = None
        """Spans, if the add is traced."""


class _JournalQueue:
    """The records of one journal that are not durable yet.

    Args:
        answer: called with each add that is durable.
    """

    def __init__(self, journal: RecordSink, answer: Callable[[PendingAdd], None]) -> None:
        self.journal = journal
        self._answer = answer
        self.pending: deque[PendingAdd | None] = deque()
        self.waiting: dict[int, list[asyncio.Future[None]]] = {}
        self.last_record = 0
        self.durable_record = 0
        self.halted = False

    def next_is_durable(self) -> None:
        """Called by the journal when the oldest pending record is durable."""
        if self.halted:
            return
        add = self.pending.popleft()
        self.durable_record += 1
        if add is not None:
            self._answer(add)
        if self.waiting:
            for waiter in self.waiting.pop(self.durable_record, ()):
                if not waiter.done():
                    waiter.set_result(None)

    def halt(self) -> tuple[list[PendingAdd], list[asyncio.Future[None]]]:
        """Stop. Returns the adds that are not durable, and the futures of waiting tasks."""
        self.halted = True
        adds = [add for add in self.pending if add is not None]
        waiters = [waiter for those in self.waiting.values() for waiter in those]
        self.pending.clear()
        self.waiting.clear()
        return adds, waiters


class PendingAcks:
    """Passes each record to the journal of its ledger, numbers it, and answers when it is durable.

    Args:
        journals: in the order of ``journal_of``.
        admission: told when an add is answered and its space is free.
        clock: measures the latency of adds.
        on_append: called after each record.
        on_defect: ends the process; called with the reason when the journal raises an unexpected error.
    """

    def __init__(
        self,
        journals: Sequence[RecordSink],
        admission: Admission,
        on_append: Callable[[], None],
        on_defect: Callable[[str], None],
        clock: Clock,
    ) -> None:
        self._clock = clock
        self.add_seconds = Histogram()
        """Time from taking each add until it was durable or had failed."""
        self._queues = tuple(_JournalQueue(journal, self.answer) for journal in journals)
        self._admission = admission
        self._on_append = on_append
        self._on_defect = on_defect
        self._refused_code = OK_CODE
        self._halted_code = OK_CODE

    @property
    def last_record(self) -> int:
        """Number of records appended."""
        return sum(queue.last_record for queue in self._queues)

    @property
    def durable_record(self) -> int:
        """Number of records that are durable."""
        return sum(queue.durable_record for queue in self._queues)

    def _queue_of(self, ledger_id: int) -> _JournalQueue:
        queues = self._queues
        return queues[0] if len(queues) == 1 else queues[journal_of(ledger_id, len(queues))]

    def append(self, record: JournalRecord, ledger: Ledger, add: PendingAdd | None = None) -> None:
        """Append one record; ``add`` is answered when it is durable.

        Raises:
            BookieUnavailable, DiskFailed: the bookie is stopping, or has failed. Nothing was appended.
        """
        if self._refused_code:
            raise error_from_wire(self._refused_code, "the bookie has stopped")
        # Before the journal has the record: a record without an item here would shift the ack of every later one.
        queue = self._queue_of(ledger.ledger_id)
        queue.pending.append(add)
        if add is not None and add.trace is not None:
            add.trace.to_journal()
        try:
            queue.journal.append(record, queue.next_is_durable)
        except Exception as error:
            queue.pending.pop()
            if is_defect(error):
                # The record may or may not be queued, so nothing may be acked any more.
                self._on_defect(f"the journal failed on a record of ledger {ledger.ledger_id}: {error!r}")
            raise
        queue.last_record = ledger.last_record = queue.last_record + 1
        self._on_append()

    def holds(self, add: PendingAdd) -> bool:
        """Whether ``add`` was appended and is not answered yet. Slow."""
        return any(pending is add for queue in self._queues for pending in queue.pending)

    async def durable(self, ledger: Ledger) -> None:
        """Wait until every record of ``ledger`` that was appended so far is durable.

        Raises:
            DiskFailed: the bookie has stopped, or the device does not respond in time.
        """
        if self._halted_code:
            raise error_from_wire(self._halted_code, "the bookie has stopped")
        queue, number = self._queue_of(ledger.ledger_id), ledger.last_record
        if number <= queue.durable_record:
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        queue.waiting.setdefault(number, []).append(waiter)
        try:
            async with asyncio.timeout(DURABLE_WAIT_SECONDS):
                await waiter
        except TimeoutError as error:
            raise DiskFailed(f"the journal took longer than {DURABLE_WAIT_SECONDS} seconds") from error

    def answer(self, add: PendingAdd, code: int = OK_CODE, retry_after_ms: int = 0) -> None:
        """Finish one add: free the space it occupied, and answer it, unless it was acked early."""
        seconds = self._clock.monotonic() - add.since
        self._admission.release(add.size, seconds, recovery=add.recovery)
        if not add.repair:  # a repair waits for its turn
            self.add_seconds.observe(seconds)
        if add.trace is not None:
            add.trace.over(code, self._queue_of(add.ledger_id).journal.last_commit)
        if not add.acked_early:
            add.on_answer(AddAnswer(add.ledger_id, add.first, add.entry_count, code, retry_after_ms))

    def ack_early(self, add: PendingAdd) -> None:
        """Ack an add that is not durable yet, in the next turn: its writer makes it durable by ``force``."""
        add.acked_early = True
        answer = AddAnswer(add.ledger_id, add.first, add.entry_count)
        asyncio.get_running_loop().call_soon(add.on_answer, answer)

    def close(self, code: int) -> None:
        """Refuse further records with ``code``; those already appended become durable and are answered."""
        self._refused_code = self._refused_code or code

    def halt(self, code: int) -> None:
        """Stop all acks; everything that waits gets ``code``."""
        if self._halted_code:
            return
        self.close(code)
        self._halted_code = code
        # Halt all queues before any callback runs: a callback may look at any of them.
        halted = [queue.halt() for queue in self._queues]
        for adds, _ in halted:
            for add in adds:
                self.answer(add, code)
        for _, waiters in halted:
            for waiter in waiters:
                if not waiter.done():
                    waiter.set_exception(error_from_wire(code, "the bookie has stopped"))


METRICS: Final = (
    PartMetrics[PendingAcks]()
    .histogram(
        "add_seconds",
        "tallybook_bookie_add_seconds",
        "Latency of each batch that was taken, except those of repairs, until it was durable or had failed.",
        lambda commits: commits.add_seconds,
    )
    .counter(
        "records_total",
        "tallybook_journal_records_total",
        "Records handed to the journal.",
        lambda commits: commits.last_record,
    )
    .counter(
        "records_durable_total",
        "tallybook_journal_records_durable_total",
        "Records durable.",
        lambda commits: commits.durable_record,
    )
)
