"""Bugs planted on purpose in streams and subscriptions: see ``bugs``."""

# A wrong function has the arguments of the right one, and does not look at all of them.
# ruff: noqa: ARG001

from __future__ import annotations

from functools import partial
from typing import Any, Final

from tallybook.core.errors import Outcome, PositionMismatch
from tallybook.core.ids import NO_ENTRY
from tallybook.stream import StreamStore, StreamWriter, SubscriptionReader, head, streams
from tallybook.stream.dedup import DedupWindow
from tallybook.stream.head import SegmentEnd
from tallybook.stream.keeping import Keeper, expired
from tallybook.stream.subscription.shelf import Shelf
from tallybook.stream.writer import opening
from tallybook.stream.writer.ending import FoundEnd, envelope_at, last_record
from tallybook.stream.writer.flow import Flow

from .bug import Bug


def _unfenced(_right: Any) -> Any:
    async def recovered_end(client: Any, segment: Any, before: Any, tag: str, now_ms: int) -> FoundEnd:
        reader = await client.open_ledger(segment.ledger_id, recover=False)
        last = reader.last_add_confirmed
        if last == NO_ENTRY:
            return FoundEnd(SegmentEnd(NO_ENTRY, before, 0, now_ms), None, None)
        envelope = await envelope_at(reader, segment.number, last, tag)
        end = SegmentEnd(last, envelope.marks, reader.metadata.length, now_ms)
        return FoundEnd(end, envelope.kind, await last_record(reader, segment.number, last, tag, envelope))

    return recovered_end


def _any_owner(_right: Any) -> Any:
    def owned(found: Any, owner: Any) -> None:
        """Whoever it is may go on."""

    return owned


def _no_ids(_right: Any) -> Any:
    async def window(head: Any, room: Any, _reader_from: Any) -> DedupWindow[Any]:
        return DedupWindow(head.policy.dedup_records, room)

    return window


def _set_split(right: Any) -> Any:
    def gather(self: Any, *arguments: Any, same: bool = False) -> Any:
        pending = right(self, *arguments, same=same)
        if same:
            self.close_group()
        return pending

    return gather


def _deleted_first(right: Any) -> Any:
    async def truncate(self: Any, name: str, *, before: Any) -> Any:
        found = await self._find(name)
        for segment in found.segments[:-1]:
            if segment.number < getattr(before, "segment", 0):
                await self._client.delete_ledger(segment.ledger_id, force=True)
        await self._clock.sleep(0.5)
        return await right(self, name, before=before)

    return truncate


def _expired_first(right: Any) -> Any:
    async def keep(self: Any, stream_id: str, *arguments: Any, **named: Any) -> Any:
        found = await self._catalog.peek(stream_id)
        wanted = None if found is None or found.deleting else expired(found, self._clock.wall_us() // 1000)
        if wanted is not None:
            for segment in found.segments:
                if segment.number < wanted.segment:
                    await self._client.delete_ledger(segment.ledger_id, force=True)
            await self._clock.sleep(0.5)
        return await right(self, stream_id, *arguments, **named)

    return keep


def _told_early(right: Any) -> Any:
    async def store_once(self: Any, wanted: Any) -> None:
        self._stored = wanted
        self._moved.set()
        await right(self, wanted)

    return store_once


def _cursor_unfenced(right: Any) -> Any:
    async def cursor(self: Any, found: Any, *, fence: bool) -> Any:
        return await right(self, found, fence=False)

    return cursor


def _numbers_skip(right: Any) -> Any:
    def init(self: Any, marks: Any, *arguments: Any, **named: Any) -> None:
        skipped = marks._replace(next_sequence=marks.next_sequence + 1) if marks.next_sequence else marks
        right(self, skipped, *arguments, **named)

    return init


def _condition_at_once(_right: Any) -> Any:
    async def append_if(self: Any, record: Any, wanted: Any) -> Any:
        size = self._admissible(record)
        if self.last_position != wanted:
            raise PositionMismatch("the last record is another one")
        return await (await self._taken(record, size, Outcome.NOT_DONE))

    return append_if


def _not_drained(_right: Any) -> Any:
    async def drained(self: Any) -> bool:
        return True

    return drained


def _sent_again(_right: Any) -> Any:
    def recovered(self: Any, number: int, last_entry: int) -> None:
        """Nothing of what was sent is believed to be there."""

    return recovered


def _forgotten(_right: Any) -> Any:
    async def delete_doomed(self: Any, found: Any, _failed: Any) -> Any:
        if not found.doomed:
            return found
        return await self._catalog.change(found.stream_id, partial(head.forget_doomed, ledger_ids=found.doomed))

    return delete_doomed


STREAM_BUGS: Final[dict[str, Bug]] = {
    "older writer not fenced": Bug(
        "who takes a stream over does not fence the segments of the one before",
        "S1 S3 S4 S7",
        [(opening, "recovered_end", _unfenced)],
        of_streams=True,
    ),
    "any owner may add segments": Bug(
        "a head is changed by a writer that does not own the stream any more",
        "S1 S3 S4 S7",
        [(head, "_owned", _any_owner)],
        of_streams=True,
    ),
    "ids forgotten at a takeover": Bug(
        "a writer that takes over does not learn the ids of the last records",
        "S2",
        [(streams, "read_window", _no_ids)],
        of_streams=True,
    ),
    "set in several entries": Bug(
        "each record of a set is an entry of its own",
        "S5",
        [(Flow, "gather", _set_split)],
        of_streams=True,
    ),
    "deleted before it is truncated": Bug(
        "segments are deleted before the head says that they were given up",
        "S1",
        [(StreamStore, "truncate", _deleted_first), (Keeper, "_keep", _expired_first)],
        of_streams=True,
    ),
    "advance told before it is stored": Bug(
        "a subscriber is told that an advance is stored before it is",
        "S9",
        [(SubscriptionReader, "_store_once", _told_early)],
        of_streams=True,
    ),
    "cursor ledger not fenced": Bug(
        "who takes a subscription over believes what readers of its ledger see",
        "S9",
        [(Shelf, "cursor", _cursor_unfenced)],
        of_streams=True,
    ),
    "numbers off by one": Bug(
        "a writer that takes over leaves out one number",
        "S1 S7",
        [(Flow, "__init__", _numbers_skip)],
        of_streams=True,
    ),
    "condition looked at too early": Bug(
        "a condition is compared before earlier appends are settled",
        "S6",
        [(StreamWriter, "_append_if", _condition_at_once)],
        of_streams=True,
    ),
    "next segment before the last is settled": Bug(
        "a writer goes on in the next segment while appends to the last one are under way",
        "S1 S3 S7",
        [(Flow, "drained", _not_drained)],
        of_streams=True,
    ),
    "sent again though it is there": Bug(
        "a writer whose segment has failed sends again what was found in it",
        "S1 S2 S3 S7",
        [(Flow, "recovered", _sent_again)],
        of_streams=True,
    ),
    "doomed ledgers forgotten": Bug(
        "the keeper strikes ledgers off the head without deleting them",
        "S10",
        [(Keeper, "_delete_doomed", _forgotten)],
        of_streams=True,
    ),
}
