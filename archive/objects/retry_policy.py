"""Retry policy and rate limits of an object store.

- A request without an answer is retried after a pause that doubles, with jitter, until a deadline. Callers make sure
  that a repeated request is harmless: keys are unique, so it writes the same object.
- When the store asks for fewer requests (``ArchiveBusy``), the limit becomes half of the actual rate, and grows by a
  step each second, like congestion control. Before the first such answer there is no limit.
- Bytes pass at a fixed rate, if one is set.

One ``RetryPolicy`` serves all requests to one store, including parts of uploads.
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
from tallybook.runtime.concurrency.backoff import Backoff
from tallybook.runtime.metrics.usage import BusyTimer, Meter
from tallybook.runtime.rng import Rng
from tallybook.runtime.tracing.port import current_span

T = TypeVar("T")

MIN_BYTES_PER_SECOND: Final = MIB
"""Assumed minimum throughput: every deadline is extended by the time that its bytes take at this rate."""

_SECOND: Final = 1.0

_MOMENT: Final = 0.1
"""Seconds."""


@dataclass(frozen=True, slots=True)
class RetrySettings:
    """Limits. Durations in seconds."""

    first_pause: float = 0.1
    longest_pause: float = 10.0
    give_up_after: float = 60.0
    """From the first try of a request; requests with much data get more time."""
    bytes_per_second: int = 0
    """Reads and writes together; 0 is no limit."""
    slowest_rate: float = 1.0
    """Minimum of the limit, in requests per second."""
    rate_step: float = 5.0
    """Growth of the limit per second, in requests per second."""
    unlimited_from: float = 2_000.0
    """Requests per second from which the limit is removed."""


class RequestRate:
    """Limit of requests per second: halves when the store is busy, and grows step by step."""

    def __init__(self, clock: Clock, settings: RetrySettings) -> None:
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
        """Requests per second; infinite: no limit."""
        return self._limit

    async def turn(self) -> None:
        """Wait until one more request is permitted."""
        now = self._clock.monotonic()
        self._grow(now)
        at = max(now, self._next_at)
        if not math.isinf(self._limit):
            self._next_at = at + 1 / self._limit
        if at > now:
            await self._clock.sleep(at - now)
        self._count(self._clock.monotonic())

    def slow_down(self, begun_at: float) -> None:
        """Lower the limit because a request made at ``begun_at`` was answered with busy.

        Requests made before the last lowering do not lower it again.
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
    """Limit of bytes per second. Unused capacity expires quickly, so no burst follows an idle time."""

    def __init__(self, clock: Clock, bytes_per_second: int) -> None:
        self._clock = clock
        self._bytes_per_second = bytes_per_second
        self._free_at = 0.0

    async def take(self, size: int) -> None:
        """Wait until earlier bytes have passed at the rate and ``size`` bytes may pass."""
        if not self._bytes_per_second:
            return
        now = self._clock.monotonic()
        # Compensate a short delay: otherwise every late wake-up would lower the rate.
        begin = max(now - _MOMENT, self._free_at)
        self._free_at = begin + size / self._bytes_per_second
        if begin > now:
            await self._clock.sleep(begin - now)


class RetryPolicy:
    """Sends requests to one store with retries and rate limits.

    Args:
        rng: for jitter.
    """

    def __init__(self, clock: Clock, rng: Rng, settings: RetrySettings | None = None) -> None:
        self._clock = clock
        self._rng = rng
        self._settings = settings or RetrySettings()
        self._counted: Counter[str] = Counter()
        self.meter = Meter(clock)
        """Latency of tries, without waits and pauses."""
        self.waits = BusyTimer(clock)
        """Time in which requests wait for the rate limit."""
        self.rate = RequestRate(clock, self._settings)
        self.bytes = ByteRate(clock, self._settings.bytes_per_second)

    @property
    def stats(self) -> Mapping[str, int]:
        """Counts of tries, ``<kind>_ok``, ``_busy``, ``_failed`` and ``_refused``; ``bytes_read`` and ``_written``."""
        return self._counted

    def count_bytes(self, way: str, size: int) -> None:
        """Count transferred bytes. ``way`` is "read" or "written"."""
        self._counted[f"bytes_{way}"] += size

    async def once(self, kind: str, call: Callable[[], Awaitable[T]]) -> T:
        """Send a request that must not be repeated.

        Raises:
            TallybookError: any error of the request.
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
        """Send a repeatable request, until it succeeds, is refused, or the deadline passes.

        Args:
            kind: for the counters.
            size: bytes of the request or the answer.

        Raises:
            ArchiveUnavailable: the last failure; its outcome is unknown if that of any try was.
            TallybookError: any other error of the request, immediately.
        """
        deadline = self._clock.monotonic() + self._settings.give_up_after + size / MIN_BYTES_PER_SECOND
        backoff, unknown = self._backoff(deadline), False
        while True:
            try:
                return await self._before(deadline, kind, call)
            except ArchiveUnavailable as error:
                unknown = unknown or error.outcome is Outcome.UNKNOWN
                span = current_span()
                if span is not None:
                    span.event("try failed", error=type(error).__name__)
                if not await backoff.pause():
                    if not unknown:
                        raise
                    raise ArchiveUnavailable(error.message, outcome=Outcome.UNKNOWN) from error

    def _backoff(self, deadline: float) -> Backoff:
        first_s, longest_s = self._settings.first_pause, self._settings.longest_pause
        return Backoff(self._clock, self._rng, first_s=first_s, longest_s=longest_s, deadline=deadline)

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
            # Cancelled, which ``once`` does not count; nothing was tried if it was still waiting for the limit.
            self._counted[f"{kind}_failed"] += begun
            message = f"{kind}: no answer within {self._settings.give_up_after} s or what its bytes take"
            raise ArchiveUnavailable(message, outcome=Outcome.UNKNOWN) from error
