"""Where streams are found, and how their heads are changed: names, heads and chapters in the metadata store."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from functools import partial
from typing import Final

from tallybook.core.errors import DamagedFile, MetadataConflict, NoSuchStream, StreamExists
from tallybook.metadata.ledger_use import HEADS, head_record
from tallybook.metadata.record_format import check_format
from tallybook.metadata.record_json import NOT_UNDERSTOOD
from tallybook.metadata.record_update import RecordUpdater
from tallybook.metadata.store import MetadataStore
from tallybook.metadata.transactions import names

from .delivery_record import deliveries_of, staging_sinks
from .head import Chapter, Head, Segment, fold, folded, forget_former, give_up_renaming, named, rename
from .head_codec import decode_chapter, decode_head, encode_chapter, encode_head
from .names import CHAPTERS, NAMES, chapter_record, name_record

FORMAT: Final = 1

_NUMBER: Final = re.compile("0|[1-9][0-9]{0,18}")


class Catalog:
    """The streams of a cluster.

    Args:
        store: where their records are.
        updater: changes them.
    """

    def __init__(self, store: MetadataStore, updater: RecordUpdater) -> None:
        self._store = store
        self._updater = updater

    # -- finding -----------------------------------------------------------------------------------------------------

    async def find(self, namespace: str, name: str) -> Head:
        """The head of the stream of that name, as it is now.

        Raises:
            NoSuchStream: there is none, or it is being deleted.
            MetadataUnavailable: the store does not answer.
            DamagedFile, NewerFormat: a record cannot be understood.
        """
        stream_id = await self.id_of(namespace, name)
        if stream_id is None:
            raise NoSuchStream(f"there is no stream {name!r} in namespace {namespace!r}")
        return await self.read(stream_id, name)

    async def id_of(self, namespace: str, name: str) -> str | None:
        """The id that a name leads to.

        Raises:
            MetadataUnavailable, DamagedFile: as ``find``.
        """
        record = name_record(namespace, name)
        found = await self._store.read_record(record, linearizable=True)
        return None if found is None else decode_name(record, found.value)

    async def read(self, stream_id: str, name: str = "") -> Head:
        """The head of a stream, as it is now.

        Raises:
            As ``find``.
        """
        head = await self.peek(stream_id)
        if head is None or head.deleting:
            raise NoSuchStream(f"the stream {name or stream_id} was deleted")
        return head

    async def peek(self, stream_id: str) -> Head | None:
        """Like ``read``, but also of one that is being deleted; ``None`` if nothing is left of it.

        Raises:
            MetadataUnavailable, DamagedFile: as ``find``.
        """
        record = head_record(stream_id)
        found = await self._store.read_record(record, linearizable=True)
        return None if found is None else decode_head(record, found.value)

    async def check_store(self, stream_id: str) -> None:
        """Ask the store anything about a stream, to tell its absence from a trouble of this stream alone.

        Raises:
            MetadataUnavailable: it does not answer.
        """
        await self._store.read_record(head_record(stream_id))

    async def ids(self) -> AsyncIterator[str]:
        """Ids of all streams, also of those that have no name, or are being deleted.

        Raises:
            MetadataUnavailable: there may be more than the store tells.
        """
        async for record in names(self._store, HEADS):
            yield record.rpartition("/")[2]

    async def list(self, namespace: str, prefix: str = "", after: str = "") -> AsyncIterator[str]:
        """Names of streams that begin with ``prefix`` and come after ``after``, in order.

        Raises:
            MetadataUnavailable: there may be more than the store tells.
        """
        folder = f"{NAMES}{namespace}/"
        async for record in names(self._store, folder + prefix, folder + after if after else ""):
            yield record.removeprefix(folder)

    async def chapter(self, stream_id: str, chapter: Chapter) -> tuple[Segment, ...]:
        """The segments of a chapter.

        Raises:
            MetadataConflict: it is gone since the head was read: it was truncated, or the stream deleted.
            MetadataUnavailable, DamagedFile: as ``find``.
        """
        record = chapter_record(stream_id, chapter.number)
        found = await self._store.read_record(record, linearizable=True)
        if found is None:
            raise MetadataConflict(f"{record} is gone")
        return tuple(each for each in decode_chapter(record, found.value) if each.number >= chapter.first_segment)

    async def chapter_numbers(self, stream_id: str) -> tuple[int, ...]:
        """Numbers of all chapters that there are records of, whether or not the head still names them.

        A record that is named otherwise is no chapter of ours, and is left alone.

        Raises:
            MetadataUnavailable: there may be more than the store tells.
        """
        folder = f"{CHAPTERS}{stream_id}/"
        numbers = [record.removeprefix(folder) async for record in names(self._store, folder)]
        return tuple(int(number) for number in numbers if _NUMBER.fullmatch(number))

    async def segments_from(self, head: Head, number: int) -> AsyncGenerator[Segment, None]:
        """The segments that are listed from this number on, in order.

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

    async def segment_from(self, head: Head, number: int) -> Segment | None:
        """The first of them; ``None`` if there is none.

        Raises:
            As ``chapter``.
        """
        async with aclosing(self.segments_from(head, number)) as found:
            return await anext(found, None)

    # -- changing ----------------------------------------------------------------------------------------------------

    async def create(self, head: Head) -> Head:
        """Make a stream.

        Raises:
            StreamExists: there is one of that name.
            MetadataConflict, MetadataUnavailable, MetadataOutcomeUnknown: the store does not settle it.
        """
        if await self.id_of(head.namespace, head.name) is not None:
            raise StreamExists(f"there is a stream {head.name!r} in namespace {head.namespace!r} already")
        # The head first: a name must lead somewhere. A head without a name is nobody's, and the keeper removes it.
        await self._updater.update(head_record(head.stream_id), lambda found: found or encode_head(head))

        try:
            await self.name(head.stream_id, head.namespace, head.name)
        except StreamExists:
            await self.forget(head.stream_id)
            raise
        return await self.change(head.stream_id, named)

    async def name(self, stream_id: str, namespace: str, name: str) -> None:
        """Let a name lead to a stream.

        Raises:
            StreamExists: it leads to another one.
            MetadataConflict, MetadataUnavailable, MetadataOutcomeUnknown, DamagedFile: it may not lead there.
        """
        record = name_record(namespace, name)

        def leads_there(found: bytes | None) -> bytes:
            if found is not None and decode_name(record, found) != stream_id:
                raise StreamExists(f"there is a stream {name!r} in namespace {namespace!r} already")
            return encode_name(stream_id)

        await self._updater.update(record, leads_there)

    async def change(self, stream_id: str, transition: Callable[[Head], Head]) -> Head:
        """Apply a transition to a head, until it holds.

        Raises:
            NoSuchStream: the stream was deleted.
            MetadataConflict, MetadataUnavailable, MetadataOutcomeUnknown, DamagedFile: the store does not settle it.
            Whatever ``transition`` raises.
        """
        gone = NoSuchStream(f"the stream of id {stream_id} was deleted")
        record = head_record(stream_id)
        return await self._updater.change(record, transition, decode=decode_head, encode=encode_head, absent=gone)

    async def fold(self, head: Head) -> Head:
        """Put the oldest segments into a chapter, where the head has no room for more.

        Raises:
            As ``change``.
        """
        segments = fold(head)
        if not segments:
            return head
        # The number of its first segment names a chapter: made again, it has the same segments.
        number = segments[0].number
        written = encode_chapter(segments)
        await self._updater.update(chapter_record(head.stream_id, number), lambda _found: written)
        return await self.change(head.stream_id, lambda found: folded(found, number, segments))

    async def finish_renaming(self, head: Head) -> Head:
        """Carry on with a change of name, by whoever it was begun; the head, with none under way.

        Raises:
            StreamExists: the name leads to another stream; the one that it had is kept.
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
        """Let its name lead to a stream that has lost it.

        Raises:
            StreamExists: the name leads to another stream.
            As ``change``.
        """
        await self.name(head.stream_id, head.namespace, head.name)
        return await self._settled(head.stream_id, head.namespace, head.name, named, leads=True)

    async def _settled(
        self, stream_id: str, namespace: str, name: str, transition: Callable[[Head], Head], *, leads: bool
    ) -> Head:
        """Apply a transition behind a change of what a name leads to; take that back, where it was made too late.

        Somebody else may have given the stream another name meanwhile, or have deleted it.

        Args:
            leads: what was made of the name: whether it leads to the stream.

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
        """Let a name lead nowhere, if it leads to this stream.

        Raises:
            MetadataConflict, MetadataUnavailable, MetadataOutcomeUnknown, DamagedFile: it may still do.
        """
        record = name_record(namespace, name)
        await self._updater.delete(record, lambda found: decode_name(record, found) == stream_id)

    async def forget(self, stream_id: str) -> None:
        """Remove the head of a stream: the last that there is of it.

        Raises:
            MetadataConflict, MetadataUnavailable, MetadataOutcomeUnknown: it may still be there.
        """
        await self._updater.delete(head_record(stream_id))

    async def forget_chapter(self, stream_id: str, number: int) -> None:
        """Remove the record of a chapter.

        Raises:
            As ``forget``.
        """
        await self._updater.delete(chapter_record(stream_id, number))

    async def forget_deliveries(self, stream_id: str) -> None:
        """Remove the records of batches that were on their way into a stream.

        Raises:
            As ``forget``.
        """
        for prefix in (deliveries_of(stream_id), staging_sinks(stream_id)):
            for name in [name async for name in names(self._store, prefix)]:
                await self._updater.delete(name)


def encode_name(stream_id: str) -> bytes:
    """What the record of a name holds."""
    return json.dumps({"format": FORMAT, "id": stream_id}, separators=(",", ":")).encode()


def decode_name(record: str, value: bytes) -> str:
    """The id that a name leads to.

    Raises:
        DamagedFile, NewerFormat: the record cannot be understood.
    """
    stream_id: object = None
    try:
        found = json.loads(value)
        check_format(record, found, FORMAT)
        stream_id = found["id"]
        sound = found["format"] == FORMAT and isinstance(stream_id, str) and len(stream_id) == 32
    except NOT_UNDERSTOOD:
        sound = False
    if not sound:
        raise DamagedFile(f"the record {record} cannot be understood")
    return str(stream_id)
