"""Planted bugs in streams and subscriptions."""

# A wrong function has the arguments of the correct one, and does not use all of them.
# ruff: noqa: ARG001

from __future__ import annotations

from functools import partial
from typing import Any, Final

from tallybook.core.ids import NO_ENTRY
from tallybook.stream import StreamStore, StreamWriter, SubscriptionReader
from tallybook.stream.catalog import head
from tallybook.stream.catalog.head import SegmentEnd
from tallybook.stream.reader.segment_end import RecoveredEnd, envelope_at, last_record
from tallybook.stream.records.dedup import DedupWindow
from tallybook.stream.retention.janitor import StreamJanitor, expired
from tallybook.stream.subscription.store import SubscriptionRecords
from tallybook.stream.writer import opening, takeover
from tallybook.stream.writer.flow import RecordFlow

from .bug import Bug


def _unfenced(_right: Any) -> Any:
    async def recovered_end(client: Any, segment: Any, before: Any, tag: str, now_ms: int) -> RecoveredEnd:
        reader = await client.open_ledger(segment.ledger_id, recover=False)
        last = reader.last_add_confirmed
        if last == NO_ENTRY:
            return RecoveredEnd(SegmentEnd(NO_ENTRY, before, 0, now_ms), None, None)
        envelope = await envelope_at(reader, segment.number, last, tag)
        end = SegmentEnd(last, envelope.marks, reader.metadata.length, now_ms)
        return RecoveredEnd(end, envelope.kind, await last_record(reader, segment.number, last, tag, envelope))

    return recovered_end


def _any_owner(_right: Any) -> Any:
    def owned(found: Any, owner: Any) -> None:
        """Accept any owner."""

    return owned


def _no_ids(_right: Any) -> Any:
    async def window(head: Any, limit: Any, _reader_from: Any) -> DedupWindow[Any]:
        return DedupWindow(head.policy.dedup_records, limit)

    return window


def _set_split(right: Any) -> Any:
    def gather(self: RecordFlow, *arguments: Any, same: bool = False) -> Any:
        pending = right(self, *arguments, same=same)
        if same:
            self.close_group()
        return pending

    return gather


def _deleted_first(right: Any) -> Any:
    async def truncate(self: StreamStore, name: str, *, before: Any) -> Any:
        found = await self._find(name)
        for segment in found.segments[:-1]:
            if segment.number < getattr(before, "segment", 0):
                await self._client.delete_ledger(segment.ledger_id, force=True)
        await self._clock.sleep(0.5)
        return await right(self, name, before=before)

    return truncate


def _expired_first(right: Any) -> Any:
    async def keep(self: StreamJanitor, stream_id: str, *arguments: Any, **named: Any) -> Any:
        found = await self._catalog.peek(stream_id)
        wanted = None if found is None or found.deleting else expired(found, self._clock.wall_us() // 1000)
        if found is not None and wanted is not None:
            for segment in found.segments:
                if segment.number < wanted.segment:
                    await self._client.delete_ledger(segment.ledger_id, force=True)
            await self._clock.sleep(0.5)
        return await right(self, stream_id, *arguments, **named)

    return keep


def _confirmed_early(right: Any) -> Any:
    async def store_once(self: SubscriptionReader, wanted: Any) -> None:
        self._stored = wanted
        self._moved.set()
        await right(self, wanted)

    return store_once


def _cursor_unfenced(right: Any) -> Any:
    async def cursor(self: SubscriptionRecords, found: Any, *, fence: bool) -> Any:
        return await right(self, found, fence=False)

    return cursor


def _numbers_skip(right: Any) -> Any:
    def init(self: RecordFlow, marks: Any, *arguments: Any, **named: Any) -> None:
        skipped = marks._replace(next_sequence=marks.next_sequence + 1) if marks.next_sequence else marks
        right(self, skipped, *arguments, **named)

    return init


def _condition_immediately(_right: Any) -> Any:
    async def all_before(self: StreamWriter, expected: Any) -> None:
        """Do not wait."""

    return all_before


def _not_drained(_right: Any) -> Any:
    async def drained(self: RecordFlow) -> bool:
        return True

    return drained


def _sent_again(_right: Any) -> Any:
    def recovered(self: RecordFlow, number: int, last_entry: int) -> None:
        """Ignore what the recovery found in the segment."""

    return recovered


def _forgotten(_right: Any) -> Any:
    async def delete_doomed(self: StreamJanitor, found: Any, _failed: Any) -> Any:
        if not found.doomed:
            return found
        return await self._catalog.change(found.stream_id, partial(head.forget_doomed, ledger_ids=found.doomed))

    return delete_doomed


STREAM_BUGS: Final[dict[str, Bug]] = {
    "older writer not fenced": Bug(
        "a stream takeover does not fence the segments of the previous writer",
        "S1 S3 S4 S7",
        [(takeover, "recovered_end", _unfenced)],
        of_streams=True,
    ),
    "any owner may add segments": Bug(
        "a writer that no longer owns the stream can change its head",
        "S1 S3 S4 S7",
        [(head, "_owned", _any_owner)],
        of_streams=True,
    ),
    "ids forgotten at a takeover": Bug(
        "a writer that takes over does not read the dedup ids of the last records",
        "S2",
        [(opening, "read_window", _no_ids)],
        of_streams=True,
    ),
    "set in several entries": Bug(
        "each record of a set becomes an entry of its own",
        "S5",
        [(RecordFlow, "gather", _set_split)],
        of_streams=True,
    ),
    "deleted before it is truncated": Bug(
        "segments are deleted before the truncation is in the head",
        "S1",
        [(StreamStore, "truncate", _deleted_first), (StreamJanitor, "_maintain", _expired_first)],
        of_streams=True,
    ),
    "advance told before it is stored": Bug(
        "an advance is confirmed to the subscriber before it is stored",
        "S9",
        [(SubscriptionReader, "_store_once", _confirmed_early)],
        of_streams=True,
    ),
    "cursor ledger not fenced": Bug(
        "a subscription takeover reads the cursor ledger without fencing it",
        "S9",
        [(SubscriptionRecords, "cursor", _cursor_unfenced)],
        of_streams=True,
    ),
    "numbers off by one": Bug(
        "a writer that takes over skips one sequence number",
        "S1 S7",
        [(RecordFlow, "__init__", _numbers_skip)],
        of_streams=True,
    ),
    "condition looked at too early": Bug(
        "a condition is checked before the outcome of earlier appends is known",
        "S6",
        [(StreamWriter, "_all_before", _condition_immediately)],
        of_streams=True,
    ),
    "next segment before the last is settled": Bug(
        "a writer continues in the next segment while appends to the last one are in flight",
        "S1 S3 S7",
        [(RecordFlow, "drained", _not_drained)],
        of_streams=True,
    ),
    "sent again though it is there": Bug(
        "a writer whose segment failed sends records again that are already in it",
        "S1 S2 S3 S7",
        [(RecordFlow, "recovered", _sent_again)],
        of_streams=True,
    ),
    "doomed ledgers forgotten": Bug(
        "the janitor removes doomed ledgers from the head without deleting them",
        "S10",
        [(StreamJanitor, "_delete_doomed", _forgotten)],
        of_streams=True,
    ),
}
