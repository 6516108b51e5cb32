"""The stream janitor: deletes truncated and expired segments, and finishes interrupted creations and deletions.

If a stream has a retention, it also seals the open segments of dead writers: see ``abandoned_writers``.

Every step may be interrupted, and run concurrently by several processes. The head is changed first, and lists the
ledgers to delete: so no reader is led to a deleted ledger, and ledgers that were not deleted yet are found again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import aclosing, suppress
from dataclasses import replace
from functools import partial
from typing import Final

from tallybook.client.client import Client
from tallybook.core.errors import (
    DamagedFile,
    MetadataConflict,
    MetadataUnavailable,
    NewerFormat,
    NoSuchStream,
    NoSuchSubscription,
    StreamExists,
    TallybookError,
    is_defect,
)
from tallybook.metadata.records.listing import record_names
from tallybook.metadata.store import MetadataRecord, MetadataStore
from tallybook.runtime.clock import Clock
from tallybook.runtime.logging import logger

from ..catalog.catalog import StreamCatalog
from ..catalog.head import (
    Chapter,
    Head,
    StreamSegment,
    Truncation,
    begin_delete,
    drop_chapter,
    forget_doomed,
    shorten_chapter,
    truncate,
)
from ..catalog.stored_bytes import StoredBytes, newest_first
from ..deliveries import forget_all
from ..namespaces import Namespaces
from ..records.envelope import StreamMarks
from ..sessions import LEASE_SECONDS, SESSIONS
from ..subscription.store import SubscriptionRecords
from ..writer.deletion import delete_ledgers
from .abandoned_writers import AbandonedStreams

UNNAMED_MS: Final = 3_600_000
"""Age at which a stream without a name counts as an interrupted creation."""

_log = logger("stream.keeper")


class StreamJanitor:
    """Runs passes over the streams of a cluster, and deletes streams."""

    def __init__(
        self,
        store: MetadataStore,
        catalog: StreamCatalog,
        namespaces: Namespaces,
        subscriptions: SubscriptionRecords,
        client: Client,
        clock: Clock,
    ) -> None:
        self._store = store
        self._sessions: dict[str, tuple[MetadataRecord, float]] = {}
        """Session records, each with the monotonic time at which it was first seen with this value."""
        self._catalog = catalog
        self._namespaces = namespaces
        self._quotas: set[str] = set()
        """Namespaces with a quota of stored bytes."""
        self._sizes = StoredBytes(catalog)
        self._stored: dict[str, tuple[str, int]] = {}
        """Namespace and stored bytes of each stream of such a namespace."""
        self._subscriptions = subscriptions
        self._client = client
        self._clock = clock
        self._abandoned = AbandonedStreams(catalog, client, clock)

    async def run_pass(self) -> int:
        """Run one pass over all streams; return for how many it failed.

        Raises:
            MetadataUnavailable: the store does not answer; the remaining streams wait for the next pass.
        """
        failed, seen = set[str](), set[str]()
        await self._forget_sessions()
        await self._find_quotas()
        sessions = frozenset(name.removeprefix(SESSIONS) for name in self._sessions)
        abandoned: dict[str, Head] = {}
        async for stream_id in self._catalog.ids():
            seen.add(stream_id)
            try:
                await self._maintain(stream_id, sessions, abandoned)
            except TallybookError as error:
                if is_defect(error):
                    raise
                if isinstance(error, MetadataUnavailable):
                    # If the store itself does not answer, each of the other streams would time out, too.
                    await self._catalog.check_store(stream_id)
                failed.add(stream_id)
                _log.warning("janitor failed for a stream", stream_id=stream_id, error=error.message)
        self._abandoned.forget_all_but(seen)
        await self._record_usage(seen)
        # Last: retention counts from the end of a segment, so a segment sealed now expires in a later pass.
        return len(failed | await self._abandoned.end_all(abandoned.values()))

    async def _forget_sessions(self) -> None:
        """Delete session records that have not changed for a lease."""
        now, standing = self._clock.monotonic(), {}
        for name in [name async for name in record_names(self._store, SESSIONS)]:
            found = await self._store.read_record(name)
            seen = self._sessions.get(name)
            if found is None:
                continue
            is_over = seen is not None and seen[0] == found and now - seen[1] >= LEASE_SECONDS
            if is_over and await self._forget_session(name, found):
                continue
            standing[name] = seen if seen is not None and seen[0] == found else (found, now)
        self._sessions = standing

    async def _forget_session(self, name: str, found: MetadataRecord) -> bool:
        """Delete one session record; ``False`` if its process is alive after all."""
        try:
            await self._store.delete_record(name, found.version)
        except MetadataConflict:
            return False
        return True

    async def _maintain(self, stream_id: str, sessions: Collection[str], abandoned: dict[str, Head]) -> None:
        """Finish interrupted changes of one stream, then apply its retention, by age and by size.

        Args:
            sessions: sessions that were alive at the beginning of this pass.
            abandoned: receives the stream if its writer is gone and has left a segment open.

        Raises:
            As ``tidy``.
        """
        head = await self._catalog.peek(stream_id)
        if head is None:
            return
        now_ms = self._clock.wall_us() // 1000
        if not head.deleting:
            with suppress(StreamExists):
                head = await self._catalog.finish_renaming(head)
            given_up = head.named or now_ms - head.created_at_ms > UNNAMED_MS
            if given_up and await self._catalog.id_of(head.namespace, head.name) != stream_id:
                head = await self._without_name(head)
        if head.deleting:
            await self._finish_deletion(head)
            return
        bounded = head.policy.retention is not None or head.policy.retention_bytes is not None
        if bounded and self._abandoned.is_due(head, sessions):
            abandoned[stream_id] = head
        begins = [
            each for each in (await self._expired(head, now_ms), await self._beyond_size(head)) if each is not None
        ]
        if begins:
            wanted = max(begins, key=lambda each: each.place)
            head = await self._catalog.change(stream_id, lambda found: truncate(found, wanted))
        head = await self.tidy(head)
        if head.namespace in self._quotas:
            self._stored[stream_id] = head.namespace, await self._sizes.of(head)

    async def _without_name(self, head: Head) -> Head:
        """Handle a stream without a name record: delete it if it never had one (an interrupted creation). Otherwise
        restore the record, unless the name refers to another stream by now.
        """
        if not head.named:
            return await self._catalog.change(head.stream_id, begin_delete)
        try:
            return await self._catalog.name_again(head)
        except StreamExists:
            _log.warning("a stream has no name", stream_id=head.stream_id, stream=head.name)
        return head

    async def _expired(self, head: Head, now_ms: int) -> Truncation | None:
        """The truncation that removes expired segments; ``None`` if there are none."""
        begin = expired(head, now_ms)
        listed_until = head.truncation.segment if begin is None else begin.segment
        chapter = next((each for each in head.chapters if each.last_segment >= listed_until), None)
        if head.policy.retention is None or chapter is None:
            return begin
        # Only part of the chapter may have expired.
        segments = await self._catalog.chapter(head.stream_id, chapter)
        return expired(replace(head, chapters=(), segments=segments), now_ms) or begin

    async def _beyond_size(self, head: Head) -> Truncation | None:
        """The truncation that removes segments beyond ``retention_bytes``; ``None`` if there are none.

        The segments that stay hold at least ``retention_bytes``, as in Kafka.
        """
        limit, kept_bytes = head.policy.retention_bytes, 0
        if limit is None:
            return None
        async with aclosing(newest_first(self._catalog, head)) as segments:
            async for segment in segments:
                if segment.end is None or kept_bytes < limit:
                    kept_bytes += 0 if segment.end is None else segment.end.payload_bytes
                    continue
                found = Truncation(segment.number + 1, 0, 0, segment.end.marks.next_sequence)
                return found if found.place > head.truncation.place else None
        return None

    async def _find_quotas(self) -> None:
        """Find the namespaces with a quota; one that cannot be read counts as without."""
        self._quotas = set()
        async for name in self._namespaces.list():
            try:
                if await self._namespaces.quota(name) is not None:
                    self._quotas.add(name)
            except (DamagedFile, NewerFormat) as error:
                _log.warning("quota is not known", namespace=name, error=error.message)

    async def _record_usage(self, stream_ids: Collection[str]) -> None:
        """Record the stored bytes of namespaces with a quota, for the writers of their streams.

        A stream that failed in this pass counts with its last known size.

        Raises:
            As ``Namespaces.set_usage``.
        """
        self._sizes.forget_all_but(stream_ids)
        self._stored = {each: found for each, found in self._stored.items() if each in stream_ids}
        for name in sorted(self._quotas):
            stored = sum(size for namespace, size in self._stored.values() if namespace == name)
            await self._namespaces.set_usage(name, stored)

    async def tidy(self, head: Head) -> Head:
        """Delete truncated segments.

        Raises:
            MetadataUnavailable, MetadataConflict, MetadataOutcomeUnknown, DamagedFile: not all are deleted.
        """
        failed: list[TallybookError] = []
        begin = head.truncation.segment
        for chapter in head.chapters:
            if chapter.first_segment < begin <= chapter.last_segment:
                head = await self._shorten(head, chapter, begin, failed)
            if chapter.last_segment < begin:
                ledger_ids = [each.ledger_id for each in await self._catalog.chapter(head.stream_id, chapter)]
                number = chapter.number

                def without(found: Head, number: int = number, gone: list[int] = ledger_ids) -> Head:
                    return drop_chapter(found, number, gone)

                head = await self._delete_doomed(await self._catalog.change(head.stream_id, without), failed)
                await self._catalog.forget_chapter(head.stream_id, number)
        head = await self._delete_doomed(head, failed)
        if failed:
            raise failed[0]
        return head

    async def _shorten(self, head: Head, chapter: Chapter, begin: int, failed: list[TallybookError]) -> Head:
        segments = await self._catalog.chapter(head.stream_id, chapter)
        gone = [each.ledger_id for each in segments if each.number < begin]
        first = next(each.number for each in segments if each.number >= begin)
        without = partial(shorten_chapter, number=chapter.number, first_segment=first, ledger_ids=gone)
        return await self._delete_doomed(await self._catalog.change(head.stream_id, without), failed)

    async def delete(self, namespace: str, name: str) -> None:
        """Delete a stream and its records.

        Raises:
            NoSuchStream: there is no stream with this name.
            As ``tidy``.
        """
        stream_id = await self._catalog.id_of(namespace, name)
        if stream_id is None:
            raise NoSuchStream(f"there is no stream {name!r} in namespace {namespace!r}")
        head = await self._catalog.peek(stream_id)
        if head is None:
            # Only the name record is left.
            await self._catalog.unname(stream_id, namespace, name)
            return
        deleting = await self._catalog.change(stream_id, begin_delete)
        for segment in head.open_segments:
            await self._fence(segment.ledger_id)
        await self._finish_deletion(deleting)

    async def _fence(self, ledger_id: int) -> None:
        """Fence a segment, so that its writer fails at once, and not only when bookies have dropped the ledger."""
        try:
            await self._client.recover_ledger(ledger_id)
        except TallybookError as error:
            if is_defect(error):
                raise
            _log.info("a segment is deleted without a fence", ledger_id=ledger_id, error=error.message)

    async def _finish_deletion(self, head: Head) -> None:
        try:
            await self._delete_all(head)
        except NoSuchStream:
            # Another process has finished it.
            return

    async def _delete_all(self, head: Head) -> None:
        failed: list[TallybookError] = []
        for chapter in head.chapters:
            # A missing chapter was deleted by an interrupted earlier attempt.
            segments: tuple[StreamSegment, ...] = ()
            with suppress(MetadataConflict):
                segments = await self._catalog.chapter(head.stream_id, chapter)
            await delete_ledgers(self._client, [segment.ledger_id for segment in segments], failed)
            if not failed:
                await self._catalog.forget_chapter(head.stream_id, chapter.number)
        if failed:
            # The remaining chapters list the remaining ledgers.
            await self._delete_doomed(head, failed)
            raise failed[0]
        # Chapters that an interrupted truncation has left.
        for number in await self._catalog.chapter_numbers(head.stream_id):
            await self._catalog.forget_chapter(head.stream_id, number)
        await self._delete_doomed(head, failed)
        if failed:
            raise failed[0]
        async for subscription in self._subscriptions.names(head.stream_id):
            with suppress(NoSuchSubscription):
                await self._subscriptions.delete(head.stream_id, subscription)
        await forget_all(self._client, self._catalog, head.stream_id)
        # The names go second to last: while they exist, a repeated deletion finds the stream.
        for name in filter(None, (head.renaming, head.former, head.name)):
            await self._catalog.unname(head.stream_id, head.namespace, name)
        await self._catalog.forget(head.stream_id)

    async def _delete_doomed(self, head: Head, failed: list[TallybookError]) -> Head:
        gone = await delete_ledgers(self._client, head.doomed, failed)
        return await self._catalog.change(head.stream_id, lambda found: forget_doomed(found, gone)) if gone else head


def expired(head: Head, now_ms: int) -> Truncation | None:
    """The truncation that removes segments older than the retention; ``None`` if there are none.

    The age of a segment counts from its end, since no record in it is younger. Ages are measured with wall clocks of
    several machines.
    """
    if head.policy.retention is None:
        return None
    oldest_ms, gone = now_ms - head.policy.retention * 1000, None
    for last, ended_at_ms, marks in _ends(head):
        if ended_at_ms >= oldest_ms:
            # Later segments are younger, even if their recorded times are earlier.
            break
        gone = Truncation(last + 1, 0, 0, marks.next_sequence)
    return gone if gone is not None and gone.place > head.truncation.place else None


def _ends(head: Head) -> Iterator[tuple[int, int, StreamMarks]]:
    """For each chapter and sealed segment: the last segment's number, its end time, and the stream's marks there."""
    for chapter in head.chapters:
        yield chapter.last_segment, chapter.ended_at_ms, chapter.marks
    for segment in head.segments:
        if segment.end is None:
            return
        yield segment.number, segment.end.ended_at_ms, segment.end.marks
