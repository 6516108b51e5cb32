"""Records on their way: one group per envelope, one light awaitable per record."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Generator, Sequence
from typing import Final

from tallybook.client.writer.pending import Together
from tallybook.core.errors import Outcome, TallybookError
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
        "_borders",
        "_pieces",
        "before",
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
        "told",
        "whole",
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
        self.before: Marks = START
        """Where the stream stands before it, likewise."""
        self.marks: Marks = START
        """Where the stream stands after it, likewise."""
        self.segment, self.entry = 0, -1
        """Where it is, likewise."""
        self.tag = tag
        self.whole = False
        """Whether its records are a set, and have to be in one entry."""
        self.told = False
        """Whether its error was asked for."""
        self._borders: Sequence[int] = ()
        self._pieces: Sequence[RecordGroup] = ()

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

    def cut_into(self, borders: Sequence[int], pieces: Sequence[RecordGroup]) -> None:
        """Its records are in other groups from here on, which begin at these slots, where callers that wait look."""
        self._borders, self._pieces = borders, pieces
        self.columns, self.payload = Columns(self.columns.default_time), b""
        self.complete()

    def home_of(self, slot: int) -> tuple[RecordGroup, int]:
        """The group that the record of a slot is in by now, and its slot there."""
        if not self._pieces:
            return self, slot
        at = bisect_right(self._borders, slot) - 1
        return self._pieces[at].home_of(slot - self._borders[at])


class PendingRecord:
    """One append on its way. Await it for the record's position, once it is confirmed.

    It may be awaited any number of times, or never: the record is written all the same.
    """

    __slots__ = ("_group", "_slot")

    def __init__(self, group: RecordGroup, slot: int) -> None:
        self._group = group
        self._slot = slot

    def __await__(self) -> Generator[object, None, Position]:
        while not (group := self._home()).done:
            yield from group.wait().__await__()
        return self.outcome()

    def _home(self) -> RecordGroup:
        self._group, self._slot = self._group.home_of(self._slot)
        return self._group

    @property
    def done(self) -> bool:
        """Whether the append is settled, either way."""
        return self._home().done

    @property
    def refused(self) -> bool:
        """Whether it has failed, so that nothing of it is there where its writer goes on."""
        return self._home().error is not None

    async def settled(self) -> None:
        """Return once the append is settled; ``outcome`` tells how."""
        while not (group := self._home()).done:
            await group.wait()

    def outcome(self) -> Position:
        """The record's position, once the append is settled; for whoever cannot await it.

        Raises:
            StreamClosed, StreamFenced, ...: it has failed.
        """
        group = self._home()
        if group.error is not None:
            group.told = True
            raise group.error.with_traceback(None)
        return Position(group.segment, group.entry, self._slot, group.tag)


def settled_record(position: Position) -> PendingRecord:
    """A record that was appended, and confirmed, before."""
    group = RecordGroup(0, position.tag)
    group.segment, group.entry, group.done = position.segment, position.entry, True
    return PendingRecord(group, position.slot)


async def positions_of(records: Sequence[PendingRecord]) -> list[Position]:
    """The positions of records, once all are settled.

    Raises:
        TallybookError: what failed first; its outcome is unknown, unless nothing of any of them was done.
    """
    positions: list[Position] = []
    failed: TallybookError | None = None
    undone = True
    for each in records:
        try:
            positions.append(await each)
        except TallybookError as error:
            failed = failed or error
            undone = undone and error.outcome is Outcome.NOT_DONE
    if failed is None:
        return positions
    raise failed if undone and not positions else failed.told_as(Outcome.UNKNOWN)
