"""What was handed to the journal and is not durable yet, and who hears of it.

A journal makes records durable in the order in which it got them. So the records of each are
simply numbered, and "everything up to number n is durable" is all that anybody needs to know: an
add is acked when its record is; a fence, and an identical resend, wait for the last record
of their ledger, whoever wrote it. All records of a ledger go to the same journal (journals.py).

Once halted (the journal failed, or the bookie gives up), nothing becomes durable any more,
whatever the device still says: who waits is told so, and no add is ever acked.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from tallybook.core.answers import AddAnswer
from tallybook.core.errors import OK_CODE, DiskFailed, error_from_wire, is_defect
from tallybook.core.ids import NO_IDENTITY
from tallybook.runtime.clock import Clock
from tallybook.runtime.histogram import Histogram

from .admission import Admission
from .journal.group_commit import Commit
from .journal.records import Record
from .journals import journal_of
from .ledger_state import Ledger
from .port import AddCallback
from .traced_add import TracedAdd

DURABLE_WAIT_SECONDS: Final = 60.0
"""Longest wait for the journal; a device that takes longer has failed."""


class RecordSink(Protocol):
    """The part of the journal that takes records."""

    last_commit: Commit | None
    """The block that became durable last: of whom ``on_durable`` is called, it is theirs."""

    def append(self, record: Record, on_durable: Callable[[], None]) -> None:
        """Queue ``record``; ``on_durable`` is called on the event loop, in order of appending."""


class PendingAdd:
    """A batch on its way through the bookie: whom to answer, and what it occupies."""

    __slots__ = (
        "deferred", "entry_count", "first", "identity", "ledger_id", "on_answer", "recovery", "repair", "since", "size",
        "told", "trace",
    )  # fmt: skip

    def __init__(
        self,
        ledger_id: int,
        first: int,
        entry_count: int,
        size: int,
        since: float,
        on_answer: AddCallback,
        recovery: bool,
        deferred: bool = False,
        repair: bool = False,
        identity: bytes = NO_IDENTITY,
    ) -> None:
        self.ledger_id = ledger_id
        self.first = first
        self.entry_count = entry_count
        self.size = size
        self.since = since
        """When it was taken."""
        self.on_answer = on_answer
        self.recovery = recovery
        self.deferred = deferred
        self.repair = repair
        """Whether a repair gives it back: it came without a key, and is in the lane of recoveries."""
        self.identity = identity
        """Of the ledger that the client means; empty: it does not state one."""
        self.told = False
        """Whether it was acked before it was durable."""
        self.trace: TracedAdd | None = None
        """Where somebody has it traced."""


class _Lane:
    """The records of one journal.

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
        """The journal says so of the oldest record that is not."""
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
        """Nothing of this becomes durable any more. The adds that are not, and the futures of those who wait."""
        self.halted = True
        adds = [add for add in self.pending if add is not None]
        waiters = [waiter for those in self.waiting.values() for waiter in those]
        self.pending.clear()
        self.waiting.clear()
        return adds, waiters


class Commits:
    """Hands each record to the journal of its ledger, numbers it, and tells those who wait for it.

    Args:
        journals: in the order that ``journal_of`` counts in.
        admission: gets back what an add occupied.
        clock: for how long adds took.
        on_append: called after each record.
        on_defect: ends the node; called with the reason when the journal raises what it never should.
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
        """Of each add that was taken, the time until it was durable or had failed."""
        self._lanes = tuple(_Lane(journal, self.answer) for journal in journals)
        self._admission = admission
        self._on_append = on_append
        self._on_defect = on_defect
        self._refused_code = OK_CODE
        self._halted_code = OK_CODE

    @property
    def last_record(self) -> int:
        """How many records were handed over."""
        return sum(lane.last_record for lane in self._lanes)

    @property
    def durable_record(self) -> int:
        """How many of them are durable."""
        return sum(lane.durable_record for lane in self._lanes)

    def _lane_of(self, ledger_id: int) -> _Lane:
        lanes = self._lanes
        return lanes[0] if len(lanes) == 1 else lanes[journal_of(ledger_id, len(lanes))]

    def append(self, record: Record, ledger: Ledger, add: PendingAdd | None = None) -> None:
        """Hand one record over; ``add`` is answered when it is durable.

        Raises:
            BookieUnavailable, DiskFailed: the bookie stops, or has failed. Nothing was handed over.
        """
        if self._refused_code:
            raise error_from_wire(self._refused_code, "the bookie has stopped")
        # Before the journal has it: a record without its place here would shift the ack of every later one.
        lane = self._lane_of(ledger.ledger_id)
        lane.pending.append(add)
        if add is not None and add.trace is not None:
            add.trace.to_journal()
        try:
            lane.journal.append(record, lane.next_is_durable)
        except Exception as error:
            lane.pending.pop()
            if is_defect(error):
                # Whether the record is queued is not known, so nothing may be acked any more.
                self._on_defect(f"the journal failed on a record of ledger {ledger.ledger_id}: {error!r}")
            raise
        lane.last_record = ledger.last_record = lane.last_record + 1
        self._on_append()

    def holds(self, add: PendingAdd) -> bool:
        """Whether ``add`` was handed over and is not answered yet. Slow."""
        return any(pending is add for lane in self._lanes for pending in lane.pending)

    async def durable(self, ledger: Ledger) -> None:
        """Wait until everything that was handed over about ``ledger`` so far is durable.

        Raises:
            DiskFailed: the bookie has stopped, or the device does not answer in time.
        """
        if self._halted_code:
            raise error_from_wire(self._halted_code, "the bookie has stopped")
        lane, number = self._lane_of(ledger.ledger_id), ledger.last_record
        if number <= lane.durable_record:
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        lane.waiting.setdefault(number, []).append(waiter)
        try:
            async with asyncio.timeout(DURABLE_WAIT_SECONDS):
                await waiter
        except TimeoutError as error:
            raise DiskFailed(f"the journal took longer than {DURABLE_WAIT_SECONDS} seconds") from error

    def answer(self, add: PendingAdd, code: int = OK_CODE, retry_after_ms: int = 0) -> None:
        """The end of one add: give back what it occupied, and tell its fate, unless that was told early."""
        seconds = self._clock.monotonic() - add.since
        self._admission.release(add.size, add.recovery, seconds)
        self.add_seconds.observe(seconds)
        if add.trace is not None:
            add.trace.over(code, self._lane_of(add.ledger_id).journal.last_commit)
        if not add.told:
            add.on_answer(AddAnswer(add.ledger_id, add.first, add.entry_count, code, retry_after_ms))

    def tell_early(self, add: PendingAdd) -> None:
        """Ack, in the next turn, an add that is not durable yet: its writer will ask for that by a force."""
        add.told = True
        answer = AddAnswer(add.ledger_id, add.first, add.entry_count)
        asyncio.get_running_loop().call_soon(add.on_answer, answer)

    def close(self, code: int) -> None:
        """Refuse further records with ``code``; those handed over become durable and are answered."""
        self._refused_code = self._refused_code or code

    def halt(self, code: int) -> None:
        """Nothing is acked from now on: who waits hears ``code``."""
        if self._halted_code:
            return
        self.close(code)
        self._halted_code = code
        # First all of them, and then those who hear of it: whoever does may look at any.
        halted = [lane.halt() for lane in self._lanes]
        for adds, _ in halted:
            for add in adds:
                self.answer(add, code)
        for _, waiters in halted:
            for waiter in waiters:
                if not waiter.done():
                    waiter.set_exception(error_from_wire(code, "the bookie has stopped"))
