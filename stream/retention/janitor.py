"""Keeping streams: what was truncated, or is too old, is deleted; so is what a deletion, or a creation, left half done.

Where old records are to be deleted, what a killed writer left open is ended: see ``abandoned``.

Everything here may be cut off anywhere, and done by several at once. A change of the head comes first, and names what
is to be deleted; so nothing is deleted that a reader is still led to, and what was not deleted yet is found again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Final

from tallybook.client.client import Client
from tallybook.core.errors import (
    MetadataConflict,
    MetadataUnavailable,
    NoSuchStream,
    NoSuchSubscription,
    StreamExists,
    TallybookError,
    is_defect,
)
from tallybook.metadata.store import MetadataStore, Record
from tallybook.metadata.transactions import names
from tallybook.runtime.clock import Clock
from tallybook.runtime.logging import logger

from .abandoned import AbandonedStreams
from .catalog import Catalog
from .deleting import delete_ledgers
from .deliveries import forget_all
from .envelope import Marks
from .head import (
    Chapter,
    Head,
    Segment,
    Truncation,
    begin_delete,
    drop_chapter,
    forget_doomed,
    shorten_chapter,
    truncate,
)
from .sessions import LEASE_SECONDS, SESSIONS
from .subscription.shelf import Shelf

UNNAMED_MS: Final = 3_600_000
"""Age at which a stream that no name leads to was made by somebody who did not get any further."""

_log = logger("stream.keeper")


class Keeper:
    """Keeps the streams of a cluster."""

    def __init__(self, store: MetadataStore, catalog: Catalog, shelf: Shelf, client: Client, clock: Clock) -> None:
        self._store = store
        self._sessions: dict[str, tuple[Record, float]] = {}
        """Records of sessions, each with the monotonic time at which it was first seen like that."""
        self._catalog = catalog
        self._shelf = shelf
        self._client = client
        self._clock = clock
        self._abandoned = AbandonedStreams(catalog, client, clock)

    async def keep_all(self) -> int:
        """Look after every stream once; how many could not be looked after.

        Raises:
            MetadataUnavailable: the store does not answer; streams are left for the next round.
        """
        failed, seen = set[str](), set[str]()
        await self._forget_sessions()
        sessions = frozenset(name.removeprefix(SESSIONS) for name in self._sessions)
        abandoned: dict[str, Head] = {}
        async for stream_id in self._catalog.ids():
            seen.add(stream_id)
            try:
                await self._keep(stream_id, sessions, abandoned)
            except TallybookError as error:
                if is_defect(error):
                    raise
                if isinstance(error, MetadataUnavailable):
                    # Where it is the store, each of the other streams would take its own time-out.
                    await self._catalog.check_store(stream_id)
                failed.add(stream_id)
                _log.warning("a stream is looked after later", stream_id=stream_id, error=error.message)
        self._abandoned.forget_all_but(seen)
        # Retention counts from the end, so what ends now is too old in a later round at the earliest.
        return len(failed | await self._abandoned.end_all(abandoned.values()))

    async def _forget_sessions(self) -> None:
        """Remove the records of sessions that have stood still since the last look, for a lease at least."""
        now, standing = self._clock.monotonic(), {}
        for name in [name async for name in names(self._store, SESSIONS)]:
            found = await self._store.read_record(name)
            seen = self._sessions.get(name)
            if found is None:
                continue
            is_over = seen is not None and seen[0] == found and now - seen[1] >= LEASE_SECONDS
            if is_over and await self._forget_session(name, found):
                continue
            standing[name] = seen if seen is not None and seen[0] == found else (found, now)
        self._sessions = standing

    async def _forget_session(self, name: str, found: Record) -> bool:
        """Remove the record of one session; ``False`` if its process is there after all."""
        try:
            await self._store.delete_record(name, found.version)
        except MetadataConflict:
            return False
        return True

    async def _keep(self, stream_id: str, sessions: Collection[str], abandoned: dict[str, Head]) -> None:
        """Look after one stream.

        Args:
            sessions: of processes that were there at the beginning of this round.
            abandoned: where to note it if a writer that is gone has left it open.

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
        if head.policy.retention is not None and self._abandoned.is_due(head, sessions):
            abandoned[stream_id] = head
        wanted = await self._expired(head, now_ms)
        if wanted is not None:
            head = await self._catalog.change(stream_id, lambda found: truncate(found, wanted))
        await self.tidy(head)

    async def _without_name(self, head: Head) -> Head:
        """One that was never named was made by somebody who got no further. Any other has lost its name, and gets it
        back, unless that leads to another stream by now.
        """
        if not head.named:
            return await self._catalog.change(head.stream_id, begin_delete)
        try:
            return await self._catalog.name_again(head)
        except StreamExists:
            _log.warning("a stream has no name", stream_id=head.stream_id, stream=head.name)
        return head

    async def _expired(self, head: Head, now_ms: int) -> Truncation | None:
        """Where a stream begins once what is too old is given up; ``None`` if nothing is."""
        begin = expired(head, now_ms)
        listed_until = head.truncation.segment if begin is None else begin.segment
        chapter = next((each for each in head.chapters if each.last_segment >= listed_until), None)
        if head.policy.retention is None or chapter is None:
            return begin
        # Part of it may be too old.
        segments = await self._catalog.chapter(head.stream_id, chapter)
        return expired(replace(head, chapters=(), segments=segments), now_ms) or begin

    async def tidy(self, head: Head) -> Head:
        """Delete what was truncated.

        Raises:
            MetadataUnavailable, MetadataConflict, MetadataOutcomeUnknown, DamagedFile: not all of it is deleted.
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
        """Delete a stream with all that is in it.

        Raises:
            NoSuchStream: there is none.
            As ``tidy``.
        """
        stream_id = await self._catalog.id_of(namespace, name)
        if stream_id is None:
            raise NoSuchStream(f"there is no stream {name!r} in namespace {namespace!r}")
        head = await self._catalog.peek(stream_id)
        if head is None:
            # All of it is gone but for the name.
            await self._catalog.unname(stream_id, namespace, name)
            return
        deleting = await self._catalog.change(stream_id, begin_delete)
        for segment in head.open_segments:
            await self._fence(segment.ledger_id)
        await self._finish_deletion(deleting)

    async def _fence(self, ledger_id: int) -> None:
        """Let its writer know at once. Who cannot be reached finds out when bookies have dropped the ledger."""
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
            # Somebody else has done it meanwhile.
            return

    async def _delete_all(self, head: Head) -> None:
        failed: list[TallybookError] = []
        for chapter in head.chapters:
            # One that is gone was seen to before, by whoever was cut off.
            segments: tuple[Segment, ...] = ()
            with suppress(MetadataConflict):
                segments = await self._catalog.chapter(head.stream_id, chapter)
            await delete_ledgers(self._client, [segment.ledger_id for segment in segments], failed)
            if not failed:
                await self._catalog.forget_chapter(head.stream_id, chapter.number)
        if failed:
            # The chapters say which ledgers are left.
            await self._delete_doomed(head, failed)
            raise failed[0]
        # Those that were given up before, by somebody who was cut off.
        for number in await self._catalog.chapter_numbers(head.stream_id):
            await self._catalog.forget_chapter(head.stream_id, number)
        await self._delete_doomed(head, failed)
        if failed:
            raise failed[0]
        async for subscription in self._shelf.names(head.stream_id):
            with suppress(NoSuchSubscription):
                await self._shelf.delete(head.stream_id, subscription)
        await forget_all(self._client, self._catalog, head.stream_id)
        # The name goes last but one: as long as it leads here, whoever meets it finds what is left to be done.
        for name in filter(None, (head.renaming, head.former, head.name)):
            await self._catalog.unname(head.stream_id, head.namespace, name)
        await self._catalog.forget(head.stream_id)

    async def _delete_doomed(self, head: Head, failed: list[TallybookError]) -> Head:
        gone = await delete_ledgers(self._client, head.doomed, failed)
        return await self._catalog.change(head.stream_id, lambda found: forget_doomed(found, gone)) if gone else head


def expired(head: Head, now_ms: int) -> Truncation | None:
    """Where a stream begins once what is older than its retention is given up; ``None`` if nothing is.

    What counts is when a segment ended, since no record in it is younger. The age is that of wall clocks, which may
    differ by as much as the machines' do.
    """
    if head.policy.retention is None:
        return None
    oldest_ms, gone = now_ms - head.policy.retention * 1000, None
    for last, ended_at_ms, marks in _ends(head):
        if ended_at_ms >= oldest_ms:
            # What comes behind it is younger, whatever the clock said when it ended.
            break
        gone = Truncation(last + 1, 0, 0, marks.next_sequence)
    return gone if gone is not None and gone.place > head.truncation.place else None


def _ends(head: Head) -> Iterator[tuple[int, int, Marks]]:
    """Of chapters and segments that have ended: the last segment, when it ended, and where that left the stream."""
    for chapter in head.chapters:
        yield chapter.last_segment, chapter.ended_at_ms, chapter.marks
    for segment in head.segments:
        if segment.end is None:
            return
        yield segment.number, segment.end.ended_at_ms, segment.end.marks
