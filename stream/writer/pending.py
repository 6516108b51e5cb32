"""Records on their way: one group per envelope, one light awaitable per record."""

from __future__ import annotations

from collections.abc import Generator
from typing import Final

from tallybook.client.writer.pending import Together
from tallybook.core.limits import BATCH_TABLE_ROW_BYTES

from ..envelope import HEADER_BYTES, RECORD_OVERHEAD_BYTES, START, Columns, Kind, Marks
from ..position import Position

ENVELOPE_OVERHEAD_BYTES: Final = HEADER_BYTES + BATCH_TABLE_ROW_BYTES
"""What an envelope takes of a batch beside its body."""

ROOM_BYTES: Final = RECORD_OVERHEAD_BYTES + ENVELOPE_OVERHEAD_BYTES
"""What a record takes of the client's budget beside payload, key and id: it may be alone in its envelope."""


class RecordGroup(Together):
    """The records of one envelope, from the first append to the confirmation; or a mark, which has none.

    Args:
        default_time: timestamp of records that are given none, in milliseconds since the epoch.
        tag: of the stream; see ``Position``.
        since: monotonic second of its first record.
    """

    __slots__ = (
        "bytes",
        "columns",
        "count",
        "entry",
        "held_bytes",
        "kind",
        "marks",
        "payload",
        "segment",
        "since",
        "tag",
    )

    def __init__(self, default_time: int, tag: str, kind: Kind = Kind.RECORDS, since: float = 0.0) -> None:
        super().__init__()
        self.since = since
        self.kind = kind
        self.columns = Columns(default_time)
        self.count = 0
        self.bytes = HEADER_BYTES
        """What the envelope has at the most."""
        self.held_bytes = ENVELOPE_OVERHEAD_BYTES if kind is not Kind.RECORDS else 0
        """What it counts for in the client's budget."""
        self.payload = b""
        """The envelope, once it was sent."""
        self.marks: Marks = START
        """Where the stream stands after it, likewise."""
        self.segment, self.entry = 0, -1
        """Where it is, likewise."""
        self.tag = tag

    def add(
        self, payload: bytes, size: int, time: int | None, key: bytes | None, dedup_id: bytes | None, txid: int | None
    ) -> PendingRecord:
        """One more record.

        Args:
            size: bytes of payload, key and id.
        """
        pending = PendingRecord(self, self.count)
        self.count += 1
        self.bytes += size + RECORD_OVERHEAD_BYTES
        self.held_bytes += size + ROOM_BYTES
        self.columns.add(payload, time, key, dedup_id, txid)
        return pending


class PendingRecord:
    """One append on its way. Await it for the record's position, once it is confirmed.

    It may be awaited any number of times, or never: the record is written all the same.
    """

    __slots__ = ("_group", "_slot")

    def __init__(self, group: RecordGroup, slot: int) -> None:
        self._group = group
        self._slot = slot

    def __await__(self) -> Generator[object, None, Position]:
        group = self._group
        if not group.done:
            yield from group.wait().__await__()
        return self.outcome()

    @property
    def done(self) -> bool:
        """Whether the append is settled, either way."""
        return self._group.done

    async def settled(self) -> None:
        """Return once the append is settled; ``outcome`` tells how."""
        await self._group.wait()

    def outcome(self) -> Position:
        """The record's position, once the append is settled; for whoever cannot await it.

        Raises:
            StreamClosed, StreamFenced, ...: it has failed.
        """
        group = self._group
        if group.error is not None:
            raise group.error.with_traceback(None)
        return Position(group.segment, group.entry, self._slot, group.tag)


def settled_record(position: Position) -> PendingRecord:
    """A record that was appended, and confirmed, before."""
    group = RecordGroup(0, position.tag)
    group.segment, group.entry, group.done = position.segment, position.entry, True
    return PendingRecord(group, position.slot)
