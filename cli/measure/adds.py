"""A load of appends, measured as the peer's load program measures its own.

*Closed loop*: at most ``window`` entries are unconfirmed, over all ledgers; each confirmation
makes room for the next append. The latency of an entry runs from its append. *Open loop*: entries
are planned at a fixed rate, whatever the system does; the latency of an entry runs from the moment
it was planned for, so that a stall counts for every entry that should have been sent meanwhile.

Every entry counts: its start is taken before its append, its end when its confirmation is told.
Confirmations of one ledger come in order and a batch at a time, so starts and ends are two plain
lists, joined after the run; during it an entry costs a clock reading and one list item.
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
from tallybook.client.writer.handle import LedgerWriter
from tallybook.client.writer.pending import AppendGroup
from tallybook.core.errors import Busy, InvalidArgument, TallybookError
from tallybook.core.limits import MAX_ENTRY_BYTES
from tallybook.runtime.rng import SeededRng

from .latency import Latencies
from .pacing import Pacer

BURST: Final = 64
"""Appends in one turn of the event loop: enough to make the turn cheap, few enough to let it serve others."""

BUSY_SECONDS: Final = 0.001
"""Pause after the client said that it is busy."""

NEWS_SECONDS: Final = 60.0
"""How long no entry at all may be settled. The writer gives up long before."""

OVERRUN: Final = 3.0
"""An open loop that takes so many times its planned time is given up."""

SHORTEST_PAUSE_NS: Final = 100_000
"""In an open loop the sender sleeps at least so long. It counts as latency, as it should."""

_NS_PER_S: Final = 1_000_000_000


@dataclass(frozen=True, slots=True)
class AddPlan:
    """What to append.

    Args:
        window: entries that may be unconfirmed, over all ledgers.
        rate: entries a second in an open loop; 0 for a closed one.
        warm_up_seconds: load before the measurement; not counted.
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

    def check(self) -> None:
        """Refuse what cannot be run.

        Raises:
            InvalidArgument: a number lies outside its domain.
        """
        if not 0 <= self.entry_bytes <= MAX_ENTRY_BYTES:
            raise InvalidArgument(f"entries of {self.entry_bytes} bytes: 0 .. {MAX_ENTRY_BYTES} is possible")
        if self.ledgers < 1 or self.window < 1:
            raise InvalidArgument("at least one ledger and a window of one entry are needed")
        if self.seconds <= 0 or self.rate < 0 or self.warm_up_seconds < 0:
            raise InvalidArgument("seconds must be positive, rate and warm-up not negative")


@dataclass(frozen=True, slots=True)
class AddResult:
    """What came of it. ``failure`` is the error that ended the load early."""

    entries: int
    errors: int
    seconds: float
    entry_bytes: int
    latencies: Latencies
    failure: TallybookError | None = None

    def as_record(self) -> dict[str, float]:
        """The figures, by the names that scripts rely on."""
        rate = self.entries / self.seconds if self.seconds else 0.0
        return {
            "errors": self.errors,
            "entries_per_s": round(rate, 1),
            "mb_per_s": round(rate * self.entry_bytes / 1e6, 3),
            "p50_ms": round(self.latencies.p50_ms, 3),
            "p99_ms": round(self.latencies.p99_ms, 3),
            "p999_ms": round(self.latencies.p999_ms, 3),
        }


@dataclass(frozen=True, slots=True)
class TimedAdds:
    """Every entry of a load, by when it was planned: nanoseconds of ``time.monotonic_ns``, which is the machine's."""

    planned_ns: array[int]
    latencies_ns: array[int]


async def measure_adds(client: Client, plan: AddPlan) -> AddResult:
    """Create ledgers, put the load on them, remove them, and say what was measured.

    Raises:
        InvalidArgument: the plan cannot be run.
        TallybookError: the load could not begin, or failed in its warm-up.
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
        with _seldom_collecting():
            return await _Load(writers, payload, plan).run(plan.seconds)
    finally:
        await _remove(client, writers)


async def adds_until(client: Client, plan: AddPlan, over: asyncio.Event, begun: Callable[[], None]) -> TimedAdds:
    """Put an open loop on new ledgers until ``over``; say of every entry when it was planned, and how long it took.

    The ledgers stay: to delete them is work for bookies, which somebody may be measuring.

    Args:
        plan: ``seconds`` is the longest that it goes on.
        begun: called after the warm-up.

    Raises:
        InvalidArgument: the plan cannot be run.
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
        with _seldom_collecting():
            begun()
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
def _seldom_collecting() -> Iterator[None]:
    """What any busy client does well to do: collect garbage less often, and spare what will stay anyway."""
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

    __slots__ = ("append", "ends", "group", "starts")

    def __init__(self, writer: LedgerWriter) -> None:
        self.append = writer.append_nowait
        self.group: AppendGroup | None = None
        self.starts = array("q")
        self.ends: list[tuple[int, int]] = []
        """Entries of a confirmed batch, and when it was confirmed."""


class _Load:
    """One run of the load, over ledgers with nothing unconfirmed."""

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
        self._failure: TallybookError | None = None
        self._waiter: asyncio.Future[None] | None = None

    async def run(self, seconds: float) -> AddResult:
        """Put the load on for ``seconds``, then wait for the last confirmation."""
        start = time.monotonic_ns()
        end = start + int(seconds * _NS_PER_S)
        try:
            if self._plan.rate:
                await self._open_loop(start, int(seconds * self._plan.rate))
            else:
                await self._closed_loop(end)
        except TallybookError as error:
            self._failure = error
        while self._unconfirmed:
            await self._news()
        elapsed = (time.monotonic_ns() - start) / _NS_PER_S
        samples = self._samples()
        return AddResult(
            entries=len(samples),
            errors=self._errors,
            seconds=elapsed,
            entry_bytes=self._plan.entry_bytes,
            latencies=Latencies.of_nanoseconds(samples),
            failure=self._failure,
        )

    async def _closed_loop(self, end: int) -> None:
        while time.monotonic_ns() < end and self._failure is None:
            room = self._plan.window - self._unconfirmed
            if room <= 0:
                await self._news()
            elif self._append(min(room, BURST)) < min(room, BURST):
                await asyncio.sleep(BUSY_SECONDS)
            elif room > BURST:
                await asyncio.sleep(0)

    async def _open_loop(self, start: int, count: int) -> None:
        """Send ``count`` planned entries; those that the system keeps from being sent far too long are errors."""
        gap = _NS_PER_S / self._plan.rate
        give_up = start + int(count * gap * OVERRUN)
        sent = 0
        with Pacer() as pacer:
            while sent < count and self._failure is None and not self._over.is_set():
                now = time.monotonic_ns()
                if now > give_up:
                    self._errors += count - sent
                    return
                due = min(count, int((now - start) / gap) + 1) - sent
                room = self._plan.window - self._unconfirmed
                wanted = min(due, room, BURST)
                appended = self._append(wanted, start + sent * gap, gap) if wanted > 0 else 0
                sent += appended
                if appended < wanted:
                    await asyncio.sleep(BUSY_SECONDS)
                elif room < due:
                    await self._news()
                elif appended < due:
                    await asyncio.sleep(0)
                else:
                    await pacer.until(max(int(start + sent * gap), now + SHORTEST_PAUSE_NS))

    def _append(self, count: int, planned_ns: float = 0.0, gap_ns: float = 0.0) -> int:
        """Append ``count`` entries, fewer if the client is busy; say how many.

        With a gap they are planned for ``planned_ns``, ``planned_ns + gap_ns`` and so on, else for now.
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
                    group.on_complete(partial(self._settled, lane))
        except Busy:
            pass  # the client's own bound came before the window: the caller pauses
        finally:
            self._unconfirmed += appended
        return appended

    def _settled(self, lane: _Lane, group: AppendGroup) -> None:
        count = group.entry_count
        self._unconfirmed -= count
        if group.error is None:
            lane.ends.append((count, time.monotonic_ns()))
        else:
            self._errors += count
            self._failure = self._failure or group.error
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def _news(self) -> None:
        """Return when some batch was settled."""
        self._waiter = asyncio.get_running_loop().create_future()
        async with asyncio.timeout(NEWS_SECONDS):
            await self._waiter

    def timed(self) -> TimedAdds:
        """Every confirmed entry, once the load has run."""
        planned = array("q")
        for lane in self._lanes:
            planned.extend(lane.starts[: sum(count for count, _ in lane.ends)])
        return TimedAdds(planned, self._samples())

    def _samples(self) -> array[int]:
        """The latency of every confirmed entry, in nanoseconds."""
        samples = array("q")
        for lane in self._lanes:
            position = 0
            for count, ended in lane.ends:
                samples.extend([ended - began for began in lane.starts[position : position + count]])
                position += count
        return samples
