"""How an object store is asked: not too fast, not too often, and not for ever.

- A request that failed for want of an answer is made again after a pause that doubles, with jitter, until a
  deadline. Whoever asks sees to it that a second time does no harm: keys are unique, so it is the same object.
- When the store asks for fewer requests (``ArchiveBusy``), the rate halves, from what it really was, and creeps
  back a step each second: what congestion control does. Until the first such answer there is no limit.
- Bytes pass at a fixed rate, if there is one.

One ``Patience`` serves everything that goes to one store, parts of uploads included.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Final, TypeVar

from tallybook.core.errors import ArchiveBusy, ArchiveUnavailable, Outcome, TallybookError
from tallybook.core.limits import MIB
from tallybook.runtime.clock import Clock
from tallybook.runtime.meter import Meter, UnderWay
from tallybook.runtime.rng import Rng
from tallybook.runtime.tracing import current_span

T = TypeVar("T")

MIN_BYTES_PER_SECOND: Final = MIB
"""Slower than this nothing is expected to pass: every deadline is longer by what its bytes take at this rate."""

_SECOND: Final = 1.0

_MOMENT: Final = 0.1
"""Seconds."""


@dataclass(frozen=True, slots=True)
class PatienceSettings:
    """Bounds. Durations in seconds."""

    first_pause: float = 0.1
    longest_pause: float = 10.0
    give_up_after: float = 60.0
    """From the first try of a request; a request that carries much has longer."""
    bytes_per_second: int = 0
    """Read and written, together; 0 is no limit."""
    slowest_rate: float = 1.0
    """Requests per second below which the rate does not fall."""
    rate_step: float = 5.0
    """Requests per second that the rate gains each second."""
    unlimited_from: float = 2_000.0
    """Requests per second from which there is no limit any more."""


class RequestRate:
    """Requests per second: halves when the store is busy, and recovers step by step."""

    def __init__(self, clock: Clock, settings: PatienceSettings) -> None:
        self._clock = clock
        self._settings = settings
        self._limit = math.inf
        self._next_at = 0.0
        self._slowed_at = -math.inf
        self._grown_at = 0.0
        self._second = 0.0
        self._in_second = 0
        self._in_second_before = 0

    @property
    def limit(self) -> float:
        """Requests per second; infinite where there is no limit."""
        return self._limit

    async def turn(self) -> None:
        """Wait until one more request may be made."""
        now = self._clock.monotonic()
        self._grow(now)
        at = max(now, self._next_at)
        if not math.isinf(self._limit):
            self._next_at = at + 1 / self._limit
        if at > now:
            await self._clock.sleep(at - now)
        self._count(self._clock.monotonic())

    def slow_down(self, begun_at: float) -> None:
        """The store was busy for a request that was made at ``begun_at``.

        What was made before the last slowing down says nothing about the rate since.
        """
        if begun_at <= self._slowed_at:
            return
        now = self._clock.monotonic()
        self._count(now, requests=0)
        lately = max(self._in_second, self._in_second_before, 1)
        self._limit = max(self._settings.slowest_rate, min(self._limit, lately) / 2)
        self._slowed_at = self._grown_at = now
        self._next_at = max(self._next_at, now + 1 / self._limit)

    def _grow(self, now: float) -> None:
        if math.isinf(self._limit):
            return
        seconds = math.floor(now - self._grown_at)
        self._limit += seconds * self._settings.rate_step
        self._grown_at += seconds
        if self._limit >= self._settings.unlimited_from:
            self._limit = math.inf

    def _count(self, now: float, requests: int = 1) -> None:
        if now - self._second >= _SECOND:
            adjoining = now - self._second < 2 * _SECOND
            self._in_second_before = self._in_second if adjoining else 0
            self._second, self._in_second = now, 0
        self._in_second += requests


class ByteRate:
    """Bytes per second. What is not used within a moment is lost, so no burst follows a silence."""

    def __init__(self, clock: Clock, bytes_per_second: int) -> None:
        self._clock = clock
        self._bytes_per_second = bytes_per_second
        self._free_at = 0.0

    async def take(self, size: int) -> None:
        """Wait until those that came before have passed at the rate; then ``size`` bytes may."""
        if not self._bytes_per_second:
            return
        now = self._clock.monotonic()
        # Being late by a moment is made up for: else every late wake-up would lower the rate.
        begin = max(now - _MOMENT, self._free_at)
        self._free_at = begin + size / self._bytes_per_second
        if begin > now:
            await self._clock.sleep(begin - now)


class Patience:
    """Makes requests to one store.

    Args:
        rng: for jitter.
    """

    def __init__(self, clock: Clock, rng: Rng, settings: PatienceSettings | None = None) -> None:
        self._clock = clock
        self._rng = rng
        self._settings = settings or PatienceSettings()
        self._counted: Counter[str] = Counter()
        self.meter = Meter(clock)
        """Of tries of requests; their turn, and pauses between them, are not part of it."""
        self.waits = UnderWay(clock)
        """Requests that wait for their turn, since the store wanted fewer of them."""
        self.rate = RequestRate(clock, self._settings)
        self.bytes = ByteRate(clock, self._settings.bytes_per_second)

    @property
    def stats(self) -> Mapping[str, int]:
        """Counts of tries, ``<kind>_ok``, ``_busy``, ``_failed`` and ``_refused``; ``bytes_read`` and ``_written``."""
        return self._counted

    def count_bytes(self, way: str, size: int) -> None:
        """Remember that bytes have passed. ``way`` is read or written."""
        self._counted[f"bytes_{way}"] += size

    async def once(self, kind: str, call: Callable[[], Awaitable[T]]) -> T:
        """Make a request that must not be made twice.

        Raises:
            TallybookError: what the request raised.
        """
        with self.waits:
            await self.rate.turn()
        begun_at = self._clock.monotonic()
        try:
            with self.meter.timing():
                result = await call()
        except ArchiveBusy:
            self._counted[f"{kind}_busy"] += 1
            self.rate.slow_down(begun_at)
            raise
        except ArchiveUnavailable:
            self._counted[f"{kind}_failed"] += 1
            raise
        except TallybookError:
            self._counted[f"{kind}_refused"] += 1
            raise
        self._counted[f"{kind}_ok"] += 1
        return result

    async def ask(self, kind: str, call: Callable[[], Awaitable[T]], *, size: int = 0) -> T:
        """Make a request that may be made again, until it succeeds, is refused, or the time is up.

        Args:
            kind: for the counts.
            size: bytes that it carries, either way.

        Raises:
            ArchiveUnavailable: the last failure; its outcome is unknown if that of any try was.
            TallybookError: what else the request raised, at once.
        """
        deadline = self._clock.monotonic() + self._settings.give_up_after + size / MIN_BYTES_PER_SECOND
        pause, unknown = self._settings.first_pause, False
        while True:
            try:
                return await self._before(deadline, kind, call)
            except ArchiveUnavailable as error:
                unknown = unknown or error.outcome is Outcome.UNKNOWN
                span = current_span()
                if span is not None:
                    span.event("try failed", error=type(error).__name__)
                wait = pause * (0.5 + self._rng.random() / 2)
                if self._clock.monotonic() + wait >= deadline:
                    if not unknown:
                        raise
                    raise ArchiveUnavailable(error.message, outcome=Outcome.UNKNOWN) from error
            await self._clock.sleep(wait)
            pause = min(2 * pause, self._settings.longest_pause)

    async def _before(self, deadline: float, kind: str, call: Callable[[], Awaitable[T]]) -> T:
        begun = False

        async def tried() -> T:
            nonlocal begun
            begun = True
            return await call()

        try:
            async with asyncio.timeout(deadline - self._clock.monotonic()):
                return await self.once(kind, tried)
        except TimeoutError as error:
            # It was cancelled, which ``once`` does not count; and nothing was tried if it was not its turn yet.
            self._counted[f"{kind}_failed"] += begun
            message = f"{kind}: no answer within {self._settings.give_up_after} s or what its bytes take"
            raise ArchiveUnavailable(message, outcome=Outcome.UNKNOWN) from error
