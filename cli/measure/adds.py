"""An append load that measures rate and latency in the same way as BookKeeper's load program.

*Closed loop*: at most ``window`` entries are unconfirmed, over all ledgers; each confirmation allows the next append.
The latency of an entry starts at its append. *Open loop*: entries are scheduled at a fixed rate; the latency of an
entry starts at its scheduled time, so that a stall counts for every entry that should have been sent meanwhile. Both
use ``append_nowait``; a closed loop may use ``append_many`` instead, with one call at a time for each ledger.

Every entry is measured. Confirmations of one ledger come in order, one batch at a time, so starts and ends are two
plain lists, joined after the run; during the run an entry costs a clock reading and one list item.
"""

from __future__ import annotations

import asyncio
import gc
import time
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import cycle, islice
from typing import Final

from tallybook.client.client import Client
from tallybook.client.writer.appends import AppendGroup
from tallybook.client.writer.handle import LedgerWriter
from tallybook.core.errors import Busy, InvalidArgument, TallybookError
from tallybook.core.limits import MAX_ENTRY_BYTES
from tallybook.runtime.rng import SeededRng

from .latency import Latencies
from .pacing import Pacer

BURST: Final = 64
"""Appends in one turn of the event loop: enough to make the turn cheap, few enough not to delay other work."""

BUSY_SECONDS: Final = 0.001
"""Pause after the client has raised Busy."""

PROGRESS_SECONDS: Final = 60.0
"""Time-out without any confirmation or failure. The writer fails long before."""

OVERRUN: Final = 3.0
"""An open loop is given up after this many times its scheduled duration."""

MIN_PAUSE_NS: Final = 200_000
"""The shortest sleep of the sender in an open loop. It counts as latency, but each takes 25 µs of a processor that the
bookies need, too: with one per entry, it was a third of what the program uses at 12,000 entries per second."""

_NS_PER_S: Final = 1_000_000_000


@dataclass(frozen=True, slots=True)
class AddPlan:
    """The parameters of the load.

    Args:
        window: unconfirmed entries at most, over all ledgers.
        rate: entries per second of an open loop; 0: closed loop.
        warm_up_seconds: load before the measurement; not counted.
        append_many: a closed loop of calls of ``append_many``, each with the share of a ledger of the window.
    """

    entry_bytes: int
    ledgers: int
    window: int
    seconds: float
    rate: float = 0.0
    warm_up_seconds: float = 5.0
    ensemble: int = 3
    write_quorum: int = 3
    ack_quorum: int = 2
    append_many: bool = False

    def check(self) -> None:
        """Check the parameters.

        Raises:
            InvalidArgument: a number is out of range.
        """
        if not 0 <= self.entry_bytes <= MAX_ENTRY_BYTES:
            raise InvalidArgument(f"entries must have 0 .. {MAX_ENTRY_BYTES} bytes, not {self.entry_bytes}")
        if self.ledgers < 1 or self.window < 1:
            raise InvalidArgument("at least one ledger and a window of one entry are needed")
        if self.seconds <= 0 or self.rate < 0 or self.warm_up_seconds < 0:
            raise InvalidArgument("seconds must be positive, rate and warm-up not negative")
        if self.append_many and (self.rate or self.window < self.ledgers):
            raise InvalidArgument("append_many needs a closed loop, and a window of at least an entry for each ledger")


@dataclass(frozen=True, slots=True)
class AddResult:
    """The result of a load. ``failure`` is the error that ended it early."""

    entries: int
    errors: int
    seconds: float
    entry_bytes: int
    latencies: Latencies
    failure: TallybookError | None = None

    def as_record(self) -> dict[str, float]:
        """The figures for output. Scripts depend on the names."""
        rate = self.entries / self.seconds if self.seconds else 0.0
        return {
            "errors": self.errors,
            "entries_per_s": round(rate, 1),
            "mb_per_s": round(rate * self.entry_bytes / 1e6, 3),
            **self.latencies.as_record(),
        }


@dataclass(frozen=True, slots=True)
class TimedAdds:
    """The scheduled time (``time.monotonic_ns``) and the latency of every entry of a load.

    An entry that was due and not sent when the load ended has the time that it had waited until then.
    """

    planned_ns: array[int]
    latencies_ns: array[int]


async def measure_adds(client: Client, plan: AddPlan) -> AddResult:
    """Create ledgers, run the load on them, and delete them.

    Raises:
        InvalidArgument: the plan is invalid.
        TallybookError: the load could not start, or failed during the warm-up.
    """
    plan.check()
    writers = [
        await client.create_ledger(ensemble=plan.ensemble, write_quorum=plan.write_quorum, ack_quorum=plan.ack_quorum)
        for _ in range(plan.ledgers)
    ]
    payload = SeededRng(1).token(plan.entry_bytes)
    try:
        if plan.warm_up_seconds:
            warm_up = await _Load(writers, payload, plan).run(plan.warm_up_seconds)
            if warm_up.failure is not None:
                raise warm_up.failure
        with _infrequent_gc():
            return await _Load(writers, payload, plan).run(plan.seconds)
    finally:
        await _remove(client, writers)


async def adds_until(
    client: Client, plan: AddPlan, over: asyncio.Event, begun: Callable[[Sequence[LedgerWriter]], None]
) -> TimedAdds:
    """Run an open loop on new ledgers until ``over``.

    The ledgers are not deleted, because deletions would be work for the bookies that are being measured.

    Args:
        plan: ``seconds`` is the maximum duration.
        begun: called with the writers of the ledgers, after the warm-up.

    Raises:
        InvalidArgument: the plan is invalid.
        TallybookError: an append failed.
    """
    plan.check()
    writers = [
        await client.create_ledger(ensemble=plan.ensemble, write_quorum=plan.write_quorum, ack_quorum=plan.ack_quorum)
        for _ in range(plan.ledgers)
    ]
    payload = SeededRng(1).token(plan.entry_bytes)
    try:
        await _Load(writers, payload, plan).run(plan.warm_up_seconds)
        with _infrequent_gc():
            begun(writers)
            load = _Load(writers, payload, plan, over)
            result = await load.run(plan.seconds)
            if result.failure is not None:
                raise result.failure
            return load.timed()
    finally:
        for writer in writers:
            if not writer.ended:
                await writer.close()


@contextmanager
def _infrequent_gc() -> Iterator[None]:
    """Run Python's garbage collector less often, and without the existing objects, as a busy client should."""
    thresholds = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)
        gc.unfreeze()


async def _remove(client: Client, writers: Sequence[LedgerWriter]) -> None:
    for writer in writers:
        if not writer.ended:
            await writer.close()
        await client.delete_ledger(writer.id)


class _Lane:
    """One ledger of the load."""

    __slots__ = ("append", "append_many", "ends", "group", "starts")

    def __init__(self, writer: LedgerWriter) -> None:
        self.append = writer.append_nowait
        self.append_many = writer.append_many
        self.group: AppendGroup | None = None
        self.starts = array("q")
        self.ends: list[tuple[int, int]] = []
        """Entries of a confirmed batch, and when it was confirmed."""


class _Load:
    """One run of the load, on ledgers without unconfirmed entries."""

    def __init__(
        self, writers: Sequence[LedgerWriter], payload: bytes, plan: AddPlan, over: asyncio.Event | None = None
    ) -> None:
        self._plan = plan
        self._over = over or asyncio.Event()
        self._payload = payload
        self._lanes = [_Lane(writer) for writer in writers]
        self._turn = cycle(self._lanes)
        self._unconfirmed = 0
        self._errors = 0
        self._unsent = array("q")
        """Scheduled times of the entries that were due and not sent when the load ended."""
        self._ended_ns = 0
        self._failure: TallybookError | None = None
        self._waiter: asyncio.Future[None] | None = None

    async def run(self, seconds: float) -> AddResult:
        """Run the load for ``seconds``, then wait for the last confirmation."""
        start = time.monotonic_ns()
        end = start + int(seconds * _NS_PER_S)
        try:
            if self._plan.rate:
                await self._open_loop(start, int(seconds * self._plan.rate))
            elif self._plan.append_many:
                await asyncio.gather(*(self._calls(lane, end) for lane in self._lanes))
            else:
                await self._closed_loop(end)
        except TallybookError as error:
            self._failure = error
        while self._unconfirmed:
            await self._progress()
        elapsed = (time.monotonic_ns() - start) / _NS_PER_S
        samples = self._samples()
        return AddResult(
            entries=len(samples) - len(self._unsent),
            errors=self._errors,
            seconds=elapsed,
            entry_bytes=self._plan.entry_bytes,
            latencies=Latencies.of_nanoseconds(samples),
            failure=self._failure,
        )

    async def _closed_loop(self, end: int) -> None:
        while time.monotonic_ns() < end and self._failure is None:
            free = self._plan.window - self._unconfirmed
            if free <= 0:
                await self._progress()
            elif self._append(min(free, BURST)) < min(free, BURST):
                await asyncio.sleep(BUSY_SECONDS)
            elif free > BURST:
                await asyncio.sleep(0)

    async def _calls(self, lane: _Lane, end: int) -> None:
        payloads = [self._payload] * (self._plan.window // len(self._lanes))
        while (began := time.monotonic_ns()) < end and self._failure is None:
            try:
                await lane.append_many(payloads)
            except TallybookError as error:
                self._errors += len(payloads)
                self._failure = error
                return
            lane.starts.extend([began] * len(payloads))
            lane.ends.append((len(payloads), time.monotonic_ns()))

    async def _open_loop(self, start: int, count: int) -> None:
        """Send ``count`` scheduled entries. Those that are not sent after ``OVERRUN`` times the duration are errors.

        Entries that are due and not sent in the end are late: without them a load that falls behind would look fast.
        """
        gap = _NS_PER_S / self._plan.rate
        give_up = start + int(count * gap * OVERRUN)
        sent = 0
        with Pacer() as pacer:
            while sent < count and self._failure is None and not self._over.is_set():
                now = time.monotonic_ns()
                if now > give_up:
                    self._errors += count - sent
                    break
                due = min(count, int((now - start) / gap) + 1) - sent
                free = self._plan.window - self._unconfirmed
                wanted = min(due, free, BURST)
                appended = self._append(wanted, start + sent * gap, gap) if wanted > 0 else 0
                sent += appended
                if appended < wanted:
                    await asyncio.sleep(BUSY_SECONDS)
                elif free < due:
                    await self._progress()
                elif appended < due:
                    await asyncio.sleep(0)
                else:
                    await pacer.until(max(int(start + sent * gap), now + MIN_PAUSE_NS))
        if self._failure is None:
            self._ended_ns = time.monotonic_ns()
            due = min(count, int((self._ended_ns - start) / gap) + 1)
            self._unsent.extend([int(start + number * gap) for number in range(sent, due)])

    def _append(self, count: int, planned_ns: float = 0.0, gap_ns: float = 0.0) -> int:
        """Append ``count`` entries, or fewer if the client is busy; returns how many.

        With a gap they are scheduled for ``planned_ns``, ``planned_ns + gap_ns`` and so on, else for now.
        """
        clock, payload = time.monotonic_ns, self._payload
        appended = 0
        try:
            for lane in islice(self._turn, count):
                began = int(planned_ns + appended * gap_ns) if gap_ns else clock()
                group = lane.append(payload).group
                lane.starts.append(began)
                appended += 1
                if group is not lane.group:
                    lane.group = group
                    group.on_complete(partial(self._on_complete, lane))
        except Busy:
            pass  # the client's byte budget is used up before the window: the caller pauses
        finally:
            self._unconfirmed += appended
        return appended

    def _on_complete(self, lane: _Lane, group: AppendGroup) -> None:
        count = group.entry_count
        self._unconfirmed -= count
        if group.error is None:
            lane.ends.append((count, time.monotonic_ns()))
        else:
            self._errors += count
            self._failure = self._failure or group.error
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def _progress(self) -> None:
        """Wait until a batch is confirmed or has failed."""
        self._waiter = asyncio.get_running_loop().create_future()
        async with asyncio.timeout(PROGRESS_SECONDS):
            await self._waiter

    def timed(self) -> TimedAdds:
        """Every confirmed entry and every late one, after the run."""
        planned = array("q")
        for lane in self._lanes:
            planned.extend(lane.starts[: sum(count for count, _ in lane.ends)])
        return TimedAdds(planned + self._unsent, self._samples())

    def _samples(self) -> array[int]:
        """The latency of every confirmed entry, in nanoseconds, and of those not sent the time that they waited."""
        samples = array("q")
        for lane in self._lanes:
            position = 0
            for count, ended in lane.ends:
                samples.extend([ended - began for began in lane.starts[position : position + count]])
                position += count
        samples.extend([self._ended_ns - planned for planned in self._unsent])
        return samples
