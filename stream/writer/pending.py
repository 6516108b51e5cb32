"""Pending records: one group per envelope, one light awaitable per record."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Generator, Sequence
from typing import Final

from tallybook.client.writer.appends import SharedOutcome
from tallybook.core.errors import Outcome, TallybookError
from tallybook.core.limits import BATCH_TABLE_ROW_BYTES

from ..position import Position
from ..records.compression import Compression
from ..records.envelope import (
    HEADER_BYTES,
    RECORD_OVERHEAD_BYTES,
    START,
    Envelope,
    EnvelopeKind,
    RecordColumns,
    StreamMarks,
    encode_mark,
    encode_records,
)

ENVELOPE_OVERHEAD_BYTES: Final = HEADER_BYTES + BATCH_TABLE_ROW_BYTES
"""Size of an envelope in a batch besides its body."""

COST_BYTES: Final = RECORD_OVERHEAD_BYTES + ENVELOPE_OVERHEAD_BYTES
"""Budget of a record besides payload, key and id: it may be alone in its envelope."""


class RecordGroup(SharedOutcome):
    """The records of one envelope, from the first append to the confirmation; or a mark, which has none.

    Args:
        default_time: timestamp of records without one, in milliseconds since the epoch.
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
        "reported",
        "segment",
        "since",
        "tag",
        "whole",
    )

    def __init__(
        self, default_time: int, tag: str, kind: EnvelopeKind = EnvelopeKind.RECORDS, since: float = 0.0
    ) -> None:
        super().__init__()
        self.since = since
        self.kind = kind
        self.columns = RecordColumns(default_time)
        self.count = 0
        self.bytes = HEADER_BYTES
        """Upper bound of the envelope's size."""
        self.held_bytes = ENVELOPE_OVERHEAD_BYTES if kind is not EnvelopeKind.RECORDS else 0
        """Bytes that it holds of the client's budget."""
        self.payload = b""
        """The encoded envelope, once sent."""
        self.before: StreamMarks = START
        """The stream's marks before it, once sent."""
        self.marks: StreamMarks = START
        """The stream's marks after it, once sent."""
        self.segment, self.entry = 0, -1
        """Its place, once sent."""
        self.tag = tag
        self.whole = False
        """Whether its records are a set, which must be in one entry."""
        self.reported = False
        """Whether its error was returned to a caller."""
        self._borders: Sequence[int] = ()
        self._pieces: Sequence[RecordGroup] = ()

    def add(
        self, payload: bytes, size: int, time: int | None, key: bytes | None, dedup_id: bytes | None, txid: int | None
    ) -> PendingRecord:
        """Add a record.

        Args:
            size: bytes of payload, key and id.
        """
        pending = PendingRecord(self, self.count)
        self.count += 1
        self.bytes += size + RECORD_OVERHEAD_BYTES
        self.held_bytes += size + COST_BYTES
        self.columns.add(payload, time, key, dedup_id, txid)
        return pending

    def keep_together(self) -> None:
        """Make its records a set, which must be in one entry."""
        self.whole = True

    def encode(self, before: StreamMarks, compression: Compression) -> None:
        """Encode the envelope, unless it is encoded for these marks already.

        Args:
            before: the stream's marks before it.
        """
        if self.payload and self.before != before:
            # It was taken back, and an earlier group was refused meanwhile.
            self._to_columns()
        if self.payload:
            return
        self.before = before
        if self.kind is EnvelopeKind.RECORDS:
            self.payload = encode_records(self.columns, before, compression)
            self.marks = self.columns.marks_after(before)
        else:
            self.payload = encode_mark(self.kind, before, self.columns.default_time)
            self.marks = before
        # From here on the encoded envelope is held instead of the columns.
        self.columns = RecordColumns(self.columns.default_time)

    def _to_columns(self) -> None:
        """Keep its records as columns, so that it can be split or renumbered."""
        if self.payload and self.kind is EnvelopeKind.RECORDS:
            self.columns = RecordColumns.of(Envelope(self.payload, 0, 0, self.tag))
        self.payload = b""

    def place(self, segment: int, entry: int) -> None:
        """It was sent, and has this place."""
        self.segment, self.entry = segment, entry

    def take_back(self) -> None:
        """Its segment has failed without it."""
        self.segment = 0

    def release(self, error: TallybookError | None = None) -> None:
        """Complete, or fail, its records, and drop the envelope: awaiters and deduplication need only its place."""
        self.payload = b""
        self.complete(error)

    def report(self) -> None:
        """Its error is returned to a caller."""
        self.reported = True

    def split(self, max_bytes: int) -> list[RecordGroup]:
        """Move its records to at least two groups with envelopes of at most ``max_bytes``, or one record each.

        It was gathered for the entry limit at that time. When it is sent, the limit may be lower: a bookie with a lower
        limit has come back, has joined the ensemble, or has only now reported its limit. It must have several records,
        and not be a set. Awaiters follow the records.
        """
        self._to_columns()
        sizes = self.columns.sizes()
        borders = _borders(sizes, max_bytes - HEADER_BYTES)
        if len(borders) == 1:
            # By size it should have fit, but it was refused: halve it.
            borders = [0, len(sizes) // 2]
        pieces = []
        for begin, end in zip(borders, [*borders[1:], len(sizes)], strict=True):
            piece = RecordGroup(self.columns.default_time, self.tag, since=self.since)
            piece.columns = self.columns.between(begin, end)
            piece.count, total = end - begin, sum(sizes[begin:end])
            piece.bytes += total + piece.count * RECORD_OVERHEAD_BYTES
            piece.held_bytes = total + piece.count * COST_BYTES
            pieces.append(piece)
        self._borders, self._pieces = borders, pieces
        self.columns = RecordColumns(self.columns.default_time)
        self.complete()
        return pieces

    def home_of(self, slot: int) -> tuple[RecordGroup, int]:
        """The current group and slot of the record that had this slot."""
        if not self._pieces:
            return self, slot
        at = bisect_right(self._borders, slot) - 1
        return self._pieces[at].home_of(slot - self._borders[at])


def _borders(sizes: Sequence[int], space: int) -> list[int]:
    """The index of the first record of each piece of a group."""
    borders, used = [0], 0
    for at, size in enumerate(sizes):
        if at > borders[-1] and used + size + RECORD_OVERHEAD_BYTES > space:
            borders.append(at)
            used = 0
        used += size + RECORD_OVERHEAD_BYTES
    return borders


class PendingRecord:
    """A pending append. Await it for the record's position, once it is confirmed.

    It may be awaited any number of times, or never: the record is written in any case.
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
        """Whether the append has completed or failed."""
        return self._home().done

    @property
    def refused(self) -> bool:
        """Whether it has failed."""
        return self._home().error is not None

    async def settled(self) -> None:
        """Wait until the append has completed or failed; see ``outcome``."""
        while not (group := self._home()).done:
            await group.wait()

    def outcome(self) -> Position:
        """The position of a completed append, without awaiting it.

        Raises:
            StreamClosed, StreamFenced, ...: the append has failed.
        """
        group = self._home()
        if group.error is not None:
            group.report()
            raise group.error.with_traceback(None)
        return Position(group.segment, group.entry, self._slot, group.tag)


def settled_record(position: Position) -> PendingRecord:
    """A completed append of a record that was confirmed before."""
    group = RecordGroup(0, position.tag)
    group.place(position.segment, position.entry)
    group.complete()
    return PendingRecord(group, position.slot)


async def positions_of(records: Sequence[PendingRecord]) -> list[Position]:
    """The positions of records, once all have completed.

    Raises:
        TallybookError: the first failure; its outcome is unknown, unless none of the records was written.
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
    raise failed if undone and not positions else failed.with_outcome(Outcome.UNKNOWN)
