"""Retries and rate limits of an object store: the policy, and a store that applies it to another one.

- A request without an answer is retried after a pause that doubles, with jitter, until a deadline. Callers make sure
  that a repeated request is harmless: keys are unique, so it writes the same object.
- When the store asks for fewer requests (``ArchiveBusy``), the limit becomes half of the actual rate, and grows by a
  step each second, like congestion control. Before the first such answer there is no limit.
- Bytes pass at a fixed rate, if one is set.

One ``RetryPolicy`` serves all requests to one store. ``open.open_store`` wraps every store in a ``RetryingStore``. The
wrapped store retries the parts of an upload itself, because it still has their bytes; ``RateLimitedUpload`` only limits
their rate and counts them.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol, TypeVar

from tallybook.core.buffers import Buffer
from tallybook.core.errors import ArchiveBusy, ArchiveUnavailable, Outcome, TallybookError
from tallybook.core.limits import MIB
from tallybook.runtime.clock import Clock
from tallybook.runtime.concurrency.backoff import Backoff
from tallybook.runtime.metrics.catalog import MetricKind
from tallybook.runtime.metrics.part_metrics import PartMetrics
from tallybook.runtime.metrics.usage import BusyTimer, Meter
from tallybook.runtime.rng import Rng
from tallybook.runtime.tracing.catalog import SpanInfo
from tallybook.runtime.tracing.port import SpanKind, current_span, part

from .port import ObjectInfo, ObjectStore, UnfinishedUpload, Upload

T = TypeVar("T")

ANSWERS: Final = ("ok", "busy", "failed", "refused")
"""Outcomes of one try of a request. After ``busy``, and usually after ``failed``, it is retried."""

MIN_BYTES_PER_SECOND: Final = MIB
"""Assumed minimum throughput: every deadline is extended by the time that its bytes take at this rate."""

OBJECT_READ: Final = SpanInfo(
    "objects.read",
    "client",
    "Ranges read from the object store, including all attempts.",
    ("store", "object", "offset", "ranges", "bytes", "cancelled"),
    ("try failed",),
)

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
        return dict(self._counted)  # scrapes may come from another thread

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
            message = f"{kind}: no answer within {self._settings.give_up_after} s (longer for many bytes)"
            raise ArchiveUnavailable(message, outcome=Outcome.UNKNOWN) from error


class RateLimitedUpload:
    """An ``Upload`` with a byte rate limit."""

    def __init__(self, upload: Upload, retries: RetryPolicy) -> None:
        self._upload = upload
        self._retries = retries

    async def write(self, data: Buffer) -> None:
        """Wait for the rate limit, then write."""
        size = memoryview(data).nbytes
        await self._retries.bytes.take(size)
        await self._upload.write(data)
        self._retries.count_bytes("written", size)

    async def finish(self) -> None:
        """Make the object appear."""
        await self._retries.once("finish", self._upload.finish)

    async def abort(self) -> None:
        """Abort the upload."""
        await self._upload.abort()


class RetryingStore:
    """An ``ObjectStore`` that retries requests to another one until the deadline.

    Args:
        retries: the retry policy, shared with the store below if that sends several requests per call.
    """

    def __init__(self, store: ObjectStore, retries: RetryPolicy) -> None:
        self._store = store
        self._retries = retries

    @property
    def url(self) -> str:
        """URL of the store below."""
        return self._store.url

    @property
    def retries(self) -> RetryPolicy:
        """The retry policy of all requests."""
        return self._retries

    async def put(self, key: str, data: Buffer) -> None:
        """Write a small object, with retries: no other client writes this key."""
        size = memoryview(data).nbytes
        await self.retries.bytes.take(size)
        await self.retries.ask("put", lambda: self._store.put(key, data), size=size)
        self.retries.count_bytes("written", size)

    def upload(self, key: str) -> RateLimitedUpload:
        """Begin a large object."""
        return RateLimitedUpload(self._store.upload(key), self.retries)

    async def read(self, key: str, offset: int, size: int) -> bytes:
        """Read a range of an object."""
        with part(OBJECT_READ.name, SpanKind.CLIENT) as span:
            if span is not None:
                span.set(store=self.url, object=key, ranges=1, offset=offset, bytes=size)
            await self.retries.bytes.take(size)
            data = await self.retries.ask("read", lambda: self._store.read(key, offset, size), size=size)
        self.retries.count_bytes("read", size)
        return data

    async def read_many(self, key: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """Read ranges of an object; retries all of them if one fails."""
        size = sum(size for _, size in ranges)
        with part(OBJECT_READ.name, SpanKind.CLIENT) as span:
            if span is not None and ranges:
                span.set(store=self.url, object=key, ranges=len(ranges), offset=ranges[0][0], bytes=size)
            await self.retries.bytes.take(size)
            parts = await self.retries.ask("read", lambda: self._store.read_many(key, ranges), size=size)
        self.retries.count_bytes("read", size)
        return parts

    async def info(self, key: str) -> ObjectInfo:
        """Size and age."""
        return await self.retries.ask("info", lambda: self._store.info(key))

    async def list(self, prefix: str = "", after: str = "") -> AsyncIterator[Sequence[ObjectInfo]]:
        """Pages; a listing that fails continues after the last key returned."""
        pages = _Listing(self._store, prefix, after)
        while page := await self.retries.ask("list", pages.next):
            yield page

    async def delete(self, key: str) -> None:
        """Remove an object."""
        await self.retries.ask("delete", lambda: self._store.delete(key))

    async def unfinished_uploads(self) -> Sequence[UnfinishedUpload]:
        """List unfinished uploads."""
        return await self.retries.ask("uploads", self._store.unfinished_uploads)

    async def abort_upload(self, upload: UnfinishedUpload) -> None:
        """Remove the parts of an upload."""
        await self.retries.ask("abort", lambda: self._store.abort_upload(upload))

    async def close(self) -> None:
        """Close the store below."""
        await self._store.close()


class StoreWithRetries(ObjectStore, Protocol):
    """An object store with a retry policy."""

    @property
    def retries(self) -> RetryPolicy:
        """The retry policy, with its counters."""


class _Listing:
    """State of a listing."""

    def __init__(self, store: ObjectStore, prefix: str, after: str) -> None:
        self._store = store
        self._prefix = prefix
        self._after = after
        self._pages: AsyncIterator[Sequence[ObjectInfo]] | None = None

    async def next(self) -> Sequence[ObjectInfo]:
        """The next non-empty page; empty at the end."""
        if self._pages is None:
            self._pages = self._store.list(self._prefix, self._after)
        pages, self._pages = self._pages, None  # a failed iterator is not used again
        async for page in pages:
            if page:
                self._after, self._pages = page[-1].key, pages
                return page
        return ()


METRICS: Final = (
    PartMetrics[RetryPolicy]()
    .each(
        MetricKind.COUNTER,
        "tries_{}",
        "tallybook_archive_tries_total",
        "Tries of requests to the object store, by outcome; the end of an upload counts as one more.",
        "answer",
        ANSWERS,
        lambda policy, answer: sum(count for kind, count in policy.stats.items() if kind.endswith(f"_{answer}")),
    )
    .meter(
        "archive",
        "tallybook_archive_request",
        "Tries of requests to the object store",
        lambda policy: policy.meter,
    )
    .counter(
        "archive_wait_seconds",
        "tallybook_archive_wait_seconds_total",
        "Seconds in which any request waited because the store asked for fewer requests.",
        lambda policy: policy.waits.seconds,
    )
    .counter(
        "bytes_read",
        "tallybook_archive_read_bytes_total",
        "Bytes read from the object store.",
        lambda policy: policy.stats.get("bytes_read", 0),
    )
    .counter(
        "bytes_written",
        "tallybook_archive_written_bytes_total",
        "Bytes written to it.",
        lambda policy: policy.stats.get("bytes_written", 0),
    )
    .gauge(
        "request_rate_limit",
        "tallybook_archive_request_rate_limit",
        "Limit of requests per second, set when the store asked for fewer; +Inf: no limit.",
        lambda policy: policy.rate.limit,
    )
)
