"""Lag of subscriptions: how far each is behind the end of its stream, in records, bytes and time."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from tallybook.client.client import Client
from tallybook.core.batch import BatchHeader
from tallybook.core.errors import DamagedFile, NoSuchStream, NoSuchSubscription, TallybookError, is_defect
from tallybook.core.ids import NO_ENTRY
from tallybook.metadata.records.listing import record_names
from tallybook.metadata.store import MetadataStore
from tallybook.runtime.clock import Clock
from tallybook.runtime.logging import logger

from ..catalog.catalog import StreamCatalog
from ..catalog.head import Head, StreamSegment
from ..catalog.subscription_record import Cursor
from ..info import LagSweep, SubscriptionKey, SubscriptionLag
from ..names import SUBSCRIPTIONS
from ..reader.seek import Seeker
from .store import SubscriptionRecords

MAX_SUBSCRIPTIONS: Final = 500
"""Subscriptions that one sweep measures; also the number of series of each lag metric."""
MAX_CONCURRENCY: Final = 8
"""Streams that are measured concurrently."""
SWEEP_SECONDS: Final = 60.0
"""Timeout of a sweep; subscriptions that were not reached count as unmeasured."""

_log = logger("stream.lag")


class LagMeter:
    """Measures the lag of subscriptions. Reads metadata and bookies; changes nothing."""

    def __init__(
        self,
        store: MetadataStore,
        catalog: StreamCatalog,
        subscriptions: SubscriptionRecords,
        seeker: Seeker,
        client: Client,
        clock: Clock,
    ) -> None:
        self._store = store
        self._catalog = catalog
        self._subscriptions = subscriptions
        self._seeker = seeker
        self._client = client
        self._clock = clock

    async def end_of(self, head: Head) -> int:
        """The number after the last record that readers see.

        Raises:
            As ``Seeker.last``.
        """
        last = await self._seeker.last(head) if head.open_segments else None
        return head.settled_marks.next_sequence if last is None else last[1] + 1

    async def measure(self, head: Head, cursor: Cursor, end: int | None = None) -> SubscriptionLag:
        """The lag of a cursor.

        Args:
            end: the result of ``end_of``, if known.

        Raises:
            As ``Seeker.begin_at`` and ``LedgerReader.read_batch``.
        """
        begins = max(await self._seeker.begin_at(head, cursor.start), head.truncation, key=lambda each: each.place)
        records = (await self.end_of(head) if end is None else end) - begins.sequence
        if records <= 0:
            return SubscriptionLag(0, 0, 0.0)
        size_bytes, oldest = 0, None
        async for segment in self._catalog.segments_from(head, begins.segment):
            last_entry, length = await self._size_of(segment)
            entry = begins.entry if segment.number == begins.segment else 0
            if entry > last_entry:
                continue
            if oldest is None:
                oldest = await self._batch(segment, entry)
                length -= oldest.ledger_length - oldest.payload_bytes
            size_bytes += length
        age_s = 0.0 if oldest is None else (self._clock.wall_us() - oldest.written_at_us) / 1_000_000
        return SubscriptionLag(records, max(0, size_bytes), max(0.0, age_s))

    async def _size_of(self, segment: StreamSegment) -> tuple[int, int]:
        """The last confirmed entry of a segment, and its payload bytes up to there."""
        if segment.end is not None:
            return segment.end.last_entry, segment.end.payload_bytes
        last_entry = await self._seeker.last_entry(segment)
        if last_entry == NO_ENTRY:
            return NO_ENTRY, 0
        return last_entry, (await self._batch(segment, last_entry)).ledger_length

    async def _batch(self, segment: StreamSegment, entry: int) -> BatchHeader:
        reader = await self._client.open_ledger(segment.ledger_id, recover=False)
        return (await reader.read_batch(entry))[0]

    async def sweep(self) -> LagSweep:
        """Measure the subscriptions of all streams, at most ``MAX_SUBSCRIPTIONS``.

        Raises:
            MetadataUnavailable: they cannot be listed.
        """
        names: dict[str, list[str]] = {}
        count = 0
        async for record in record_names(self._store, SUBSCRIPTIONS):
            stream_id, _, name = record.removeprefix(SUBSCRIPTIONS).partition("/")
            count += 1
            if count <= MAX_SUBSCRIPTIONS:
                names.setdefault(stream_id, []).append(name)
        lags: dict[SubscriptionKey, SubscriptionLag] = {}
        turns, until = asyncio.Semaphore(MAX_CONCURRENCY), self._clock.monotonic() + SWEEP_SECONDS

        async def measure_stream(stream_id: str, wanted: Sequence[str]) -> int:
            async with turns:
                return await self._measure_stream(stream_id, wanted, until, lags)

        unmeasured = await asyncio.gather(*(measure_stream(*each) for each in names.items()))
        return LagSweep(lags, sum(unmeasured) + max(0, count - MAX_SUBSCRIPTIONS))

    async def _measure_stream(
        self, stream_id: str, names: Sequence[str], until: float, lags: dict[SubscriptionKey, SubscriptionLag]
    ) -> int:
        """Measure subscriptions of one stream; return how many could not be measured."""
        left = len(names)
        reason = ""
        try:
            async with asyncio.timeout(max(0.0, until - self._clock.monotonic())):
                head = await self._catalog.read(stream_id)
                end = await self.end_of(head)
                for name in names:
                    try:
                        found = await self._subscriptions.read(stream_id, name)
                        cursor = await self._subscriptions.cursor(found, fence=False)
                        lags[head.namespace, head.name, name] = await self.measure(head, cursor, end)
                    except DamagedFile as error:
                        reason = error.message
                        continue
                    except NoSuchSubscription:
                        pass  # deleted since it was listed
                    left -= 1
        except NoSuchStream:
            return 0
        except TimeoutError:
            reason = f"not done within {SWEEP_SECONDS:g} s"
        except TallybookError as error:
            if is_defect(error):
                raise
            reason = error.message
        if reason:
            _log.info("lag is not known", stream_id=stream_id, subscription_count=left, error=reason)
        return left
