"""The catalog of streams: reads and changes names, heads and chapters in the metadata store."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing, suppress
from functools import partial
from typing import Final

from tallybook.core.errors import DamagedFile, MetadataConflict, NoSuchStream, StreamExists
from tallybook.metadata.records.format import load_json
from tallybook.metadata.records.listing import record_names
from tallybook.metadata.records.update import RecordUpdater
from tallybook.metadata.store import MetadataStore
from tallybook.metadata.stream_use import HEADS, head_record

from ..names import CHAPTERS, NAMES, chapter_record, name_record
from .delivery_record import deliveries_of, staging_sinks
from .head import (
    Chapter,
    Head,
    StreamSegment,
    begin_rename,
    fold,
    folded,
    forget_former,
    give_up_renaming,
    named,
    rename,
)
from .head_codec import decode_chapter, decode_head, encode_chapter, encode_head

FORMAT: Final = 1

_NUMBER: Final = re.compile("0|[1-9][0-9]{0,18}")


class StreamCatalog:
    """The streams of a cluster.

    Args:
        store: has their records.
        updater: changes records by compare-and-set.
    """

    def __init__(self, store: MetadataStore, updater: RecordUpdater) -> None:
        self._store = store
        self._updater = updater

    # -- finding -----------------------------------------------------------------------------------------------------

    async def find(self, namespace: str, name: str) -> Head:
        """The current head of the stream with this name.

        Raises:
            NoSuchStream: there is none, or it is being deleted.
            MetadataUnavailable: the store does not answer.
            DamagedFile, NewerFormat: a record cannot be decoded.
        """
        stream_id = await self.id_of(namespace, name)
        if stream_id is None:
            raise NoSuchStream(f"there is no stream {name!r} in namespace {namespace!r}")
        return await self.read(stream_id, name)

    async def id_of(self, namespace: str, name: str) -> str | None:
        """The stream id that a name refers to.

        Raises:
            MetadataUnavailable, DamagedFile: as ``find``.
        """
        record = name_record(namespace, name)
        found = await self._store.read_record(record, linearizable=True)
        return None if found is None else decode_name(record, found.value)

    async def read(self, stream_id: str, name: str = "") -> Head:
        """The current head of a stream.

        Raises:
            As ``find``.
        """
        head = await self.peek(stream_id)
        if head is None or head.deleting:
            raise NoSuchStream(f"the stream {name or stream_id} was deleted")
        return head

    async def peek(self, stream_id: str) -> Head | None:
        """Like ``read``, but also for a stream that is being deleted; ``None`` if it is gone.

        Raises:
            MetadataUnavailable, DamagedFile: as ``find``.
        """
        record = head_record(stream_id)
        found = await self._store.read_record(record, linearizable=True)
        return None if found is None else decode_head(record, found.value)

    async def check_store(self, stream_id: str) -> None:
        """Read any record from the store, to distinguish an outage of the store from an error of one stream.

        Raises:
            MetadataUnavailable: it does not answer.
        """
        await self._store.read_record(head_record(stream_id))

    async def ids(self) -> AsyncIterator[str]:
        """Ids of all streams, also of those without a name, or being deleted.

        Raises:
            MetadataUnavailable: the store does not answer; the listing is incomplete.
        """
        async for record in record_names(self._store, HEADS):
            yield record.rpartition("/")[2]

    async def list(self, namespace: str, prefix: str = "", after: str = "") -> AsyncIterator[str]:
        """Names of streams that begin with ``prefix`` and come after ``after``, in order.

        Raises:
            MetadataUnavailable: the store does not answer; the listing is incomplete.
        """
        folder = f"{NAMES}{namespace}/"
        async for record in record_names(self._store, folder + prefix, folder + after if after else ""):
            yield record.removeprefix(folder)

    async def chapter(self, stream_id: str, chapter: Chapter) -> tuple[StreamSegment, ...]:
        """The segments of a chapter.

        Raises:
            MetadataConflict: the chapter is gone since the head was read: truncated, or the stream was deleted.
            MetadataUnavailable, DamagedFile: as ``find``.
        """
        record = chapter_record(stream_id, chapter.number)
        found = await self._store.read_record(record, linearizable=True)
        if found is None:
            raise MetadataConflict(f"the record {record} was deleted")
        return tuple(each for each in decode_chapter(record, found.value) if each.number >= chapter.first_segment)

    async def chapter_numbers(self, stream_id: str) -> tuple[int, ...]:
        """Numbers of all chapter records of a stream, even if the head no longer names them.

        Records with other names are ignored.

        Raises:
            MetadataUnavailable: the store does not answer; the listing is incomplete.
        """
        folder = f"{CHAPTERS}{stream_id}/"
        numbers = [record.removeprefix(folder) async for record in record_names(self._store, folder)]
        return tuple(int(number) for number in numbers if _NUMBER.fullmatch(number))

    async def segments_from(self, head: Head, number: int) -> AsyncGenerator[StreamSegment, None]:
        """The segments from this number on, in order.

        Raises:
            As ``chapter``.
        """
        for chapter in head.chapters:
            if chapter.last_segment >= number:
                for segment in await self.chapter(head.stream_id, chapter):
                    if segment.number >= number:
                        yield segment
        for segment in head.segments:
            if segment.number >= number:
                yield segment

    async def segment_from(self, head: Head, number: int) -> StreamSegment | None:
        """The first segment from this number on; ``None`` if there is none.

        Raises:
            As ``chapter``.
        """
        async with aclosing(self.segments_from(head, number)) as found:
            return await anext(found, None)

    # -- changing ----------------------------------------------------------------------------------------------------

    async def create(self, head: Head) -> Head:
        """Create a stream.

        Raises:
            StreamExists: there is a stream with this name.
            MetadataConflict, MetadataUnavailable, MetadataOutcomeUnknown: the change failed, or its outcome is unknown.
        """
        if await self.id_of(head.namespace, head.name) is not None:
            raise StreamExists(f"stream {head.name!r} already exists in namespace {head.namespace!r}")
        # The head first, so that a name never refers to nothing. The janitor removes a head without a name.
        await self._updater.update(head_record(head.stream_id), lambda found: found or encode_head(head))

        try:
            await self.name(head.stream_id, head.namespace, head.name)
        except StreamExists:
            await self.forget(head.stream_id)
            raise
        return await self.change(head.stream_id, named)

    async def name(self, stream_id: str, namespace: str, name: str) -> None:
        """Make a name refer to a stream.

        Raises:
            StreamExists: the name refers to another stream.
            MetadataConflict, MetadataUnavailable, MetadataOutcomeUnknown, DamagedFile: the change failed, or its
                outcome is unknown.
        """
        record = name_record(namespace, name)

        def leads_there(found: bytes | None) -> bytes:
            if found is not None and decode_name(record, found) != stream_id:
                raise StreamExists(f"stream {name!r} already exists in namespace {namespace!r}")
            return encode_name(stream_id)

        await self._updater.update(record, leads_there)

    async def change(self, stream_id: str, transition: Callable[[Head], Head]) -> Head:
        """Apply a transition to a head by compare-and-set, retrying on conflict.

        Raises:
            NoSuchStream: the stream was deleted.
            MetadataConflict, MetadataUnavailable, MetadataOutcomeUnknown, DamagedFile: the change failed, or its
                outcome is unknown.
            Errors of ``transition``.
        """
        gone = NoSuchStream(f"the stream of id {stream_id} was deleted")
        record = head_record(stream_id)
        return await self._updater.change(record, transition, decode=decode_head, encode=encode_head, absent=gone)

    async def fold(self, head: Head) -> Head:
        """Move the oldest segments into a chapter, if the head has no space for more.

        Raises:
            As ``change``.
        """
        segments = fold(head)
        if not segments:
            return head
        # A chapter is named by the number of its first segment, so that a repeated attempt writes the same record.
        number = segments[0].number
        written = encode_chapter(segments)
        await self._updater.update(chapter_record(head.stream_id, number), lambda _found: written)
        return await self.change(head.stream_id, lambda found: folded(found, number, segments))

    async def rename(self, head: Head, name: str) -> Head:
        """Rename a stream.

        Raises:
            As ``StreamStore.rename``.
        """
        with suppress(StreamExists):
            # An interrupted earlier rename.
            await self.finish_renaming(head)
        return await self.finish_renaming(await self.change(head.stream_id, partial(begin_rename, name=name)))

    async def finish_renaming(self, head: Head) -> Head:
        """Finish a rename that any process began; return the head without a pending rename.

        Raises:
            StreamExists: the new name refers to another stream; the old name is kept.
            As ``change``.
        """
        stream_id, namespace, wanted = head.stream_id, head.namespace, head.renaming
        if wanted is not None:
            try:
                await self.name(stream_id, namespace, wanted)
            except StreamExists:
                await self.change(stream_id, partial(give_up_renaming, name=wanted))
                raise
            head = await self._settled(stream_id, namespace, wanted, partial(rename, name=wanted), leads=True)
        former = head.former
        if former is None:
            return head
        await self.unname(stream_id, namespace, former)
        return await self._settled(stream_id, namespace, former, partial(forget_former, name=former), leads=False)

    async def name_again(self, head: Head) -> Head:
        """Restore the name record of a stream that has lost it.

        Raises:
            StreamExists: the name refers to another stream.
            As ``change``.
        """
        await self.name(head.stream_id, head.namespace, head.name)
        return await self._settled(head.stream_id, head.namespace, head.name, named, leads=True)

    async def _settled(
        self, stream_id: str, namespace: str, name: str, transition: Callable[[Head], Head], *, leads: bool
    ) -> Head:
        """Apply a transition after a change of a name record; undo the record if the stream has changed meanwhile.

        Another process may have renamed or deleted the stream.

        Args:
            leads: whether the name record now refers to the stream.

        Raises:
            As ``change`` and ``name``.
        """
        while True:
            try:
                head = await self.change(stream_id, transition)
            except NoSuchStream:
                await self.unname(stream_id, namespace, name)
                raise
            names_now = () if head.deleting else (head.name, head.renaming)
            if leads and name not in {*names_now, head.former}:
                await self.unname(stream_id, namespace, name)
            elif not leads and name in names_now:
                await self.name(stream_id, namespace, name)
            else:
                return head
            leads = not leads

    async def unname(self, stream_id: str, namespace: str, name: str) -> None:
        """Delete a name record, if it refers to this stream.

        Raises:
            MetadataConflict, MetadataUnavailable, MetadataOutcomeUnknown, DamagedFile: it may still exist.
        """
        record = name_record(namespace, name)
        await self._updater.delete(record, lambda found: decode_name(record, found) == stream_id)

    async def forget(self, stream_id: str) -> None:
        """Delete the head of a stream, its last record.

        Raises:
            MetadataConflict, MetadataUnavailable, MetadataOutcomeUnknown: it may still exist.
        """
        await self._updater.delete(head_record(stream_id))

    async def forget_chapter(self, stream_id: str, number: int) -> None:
        """Delete the record of a chapter.

        Raises:
            As ``forget``.
        """
        await self._updater.delete(chapter_record(stream_id, number))

    async def forget_deliveries(self, stream_id: str) -> None:
        """Delete the delivery records of a stream.

        Raises:
            As ``forget``.
        """
        for prefix in (deliveries_of(stream_id), staging_sinks(stream_id)):
            for name in [name async for name in record_names(self._store, prefix)]:
                await self._updater.delete(name)


def encode_name(stream_id: str) -> bytes:
    """The value of a name record."""
    return json.dumps({"format": FORMAT, "id": stream_id}, separators=(",", ":")).encode()


def decode_name(record: str, value: bytes) -> str:
    """The stream id in a name record.

    Raises:
        DamagedFile, NewerFormat: the record cannot be decoded.
    """
    stream_id = load_json(record, value, FORMAT, oldest=FORMAT).get("id")
    if not isinstance(stream_id, str) or len(stream_id) != 32:
        raise DamagedFile(f"the record {record} has no id of a stream: {stream_id!r}")
    return stream_id
