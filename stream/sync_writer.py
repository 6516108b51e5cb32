"""The writing handle of the blocking streams: the asyncio one, to which appends of other threads cross over.

    any thread:   append_nowait -> room in the client's budget -> PendingRecord -> HandOver
    the loop:     HandOver -> StreamWriter.append_admitted -> envelopes, as ever

What depends on the records before, an id that was appended lately or the order of transaction ids, is settled on the
loop, where all appends have one order.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from types import TracebackType
from typing import Any, Final, Self

from tallybook.client.crossing import Appends, Crossing, Line
from tallybook.core.errors import Outcome, StreamClosed, TallybookError
from tallybook.core.limits import MIB
from tallybook.runtime.lifetime import end_block

from .position import Position
from .record import ANYTHING, Anything, Outgoing, Payload, size_of
from .writer import handle, pending

_PIECE_RECORDS: Final = 1_000
_PIECE_BYTES: Final = MIB
"""What ``append_many`` takes at a time of records that come from an iterator."""


class PendingRecord(Crossing[Position]):
    """One append on its way: what ``StreamWriter.append_nowait`` gives. Ask it for its ``result``, the position.

    The record is written whether or not anybody asks. What fails is raised as by ``StreamWriter.append``.
    """

    __slots__ = ()


class _Line(Line):
    """The way of one stream's appends to the loop."""

    def __init__(self, engine: handle.StreamWriter, appends: Appends) -> None:
        super().__init__(appends)
        self._engine = engine

    def send(self, appends: Sequence[Crossing[Any]]) -> None:
        """Have the handle take records over."""
        admitted = self._engine.append_admitted
        for append in appends:
            try:
                append.state = admitted(append.item, append.room)
            except TallybookError as error:
                append.state = error
            append.item = None


class StreamWriter:
    """The one writer of a stream. Several threads may share it: the records of each keep their order.

    Appends are confirmed in order, and each at most once. When bookies fail, the writer goes on in another segment by
    itself: what became of each append is settled by then, so nothing is written twice. Where a bookie of the ensemble
    takes less than before, a record that it does not take fails with ``EntryTooLarge``; those behind it are written.
    When another writer takes the stream, this one is over: whatever it had not confirmed fails with ``StreamFenced``,
    its outcome unknown.
    """

    def __init__(self, engine: handle.StreamWriter, appends: Appends) -> None:
        self._engine = engine
        self._line = _Line(engine, appends)

    @property
    def name(self) -> str:
        """The stream's name, as of the last change this writer saw."""
        return self._engine.name

    @property
    def stream_id(self) -> str:
        """The id of the stream."""
        return self._engine.stream_id

    @property
    def last_position(self) -> Position | None:
        """Of the last record that is confirmed; ``None`` if the stream has none."""
        return self._engine.last_position

    @property
    def max_record_bytes(self) -> int:
        """The largest record that is taken now: an ensemble change may bring bookies with other limits."""
        return self._engine.max_record_bytes

    @property
    def next_sequence(self) -> int:
        """The number that the next record gets. What ``append_nowait`` has just sent off may not be counted yet."""
        return self._engine.next_sequence

    @property
    def highest_txid(self) -> int:
        """The highest transaction id that was appended: the next one may not be below it."""
        return self._engine.highest_txid

    @property
    def ended(self) -> bool:
        """Whether nothing can be appended any more: closed, or taken by another writer."""
        return self._engine.ended

    # -- append ------------------------------------------------------------------------------------------------------

    def append_nowait(
        self,
        payload: Payload,
        *,
        timestamp_ms: int | None = None,
        key: bytes | None = None,
        dedup_id: bytes | str | None = None,
        txid: int | None = None,
    ) -> PendingRecord:
        """Send a record off, and return what to ask for its position.

        Args:
            timestamp_ms: when it happened, in milliseconds since the epoch; by default, now. It need not grow.
            key: what it is about.
            dedup_id: appended again soon after with the same id, it is there once, and keeps its position.
            txid: a number of the application's, which never falls.

        Raises:
            Busy: the client's byte budget is used up.
            EntryTooLarge, OutOfOrder, InvalidArgument: the record cannot be appended; the writer stays good. Where the
                record that it comes too late for is on its way still, ``result`` raises ``OutOfOrder`` instead.
            StreamClosed, StreamFenced, ...: the writer is closed or over; nothing was sent.
            HandleClosed: the client is closed.
        """
        if isinstance(payload, bytearray | memoryview):
            # The caller may use it again as soon as this returns.
            payload = bytes(payload)
        record = Outgoing.of(payload, timestamp_ms, key, dedup_id, txid)
        try:
            size = self._engine.take_room(record)
        except StreamClosed:
            self._line.loop.check_open()
            raise
        found = PendingRecord(self._line, record, size)
        # Refused only when the client is closed: nobody needs its budget any more.
        self._line.hand_over.put(found)
        return found

    def append(
        self,
        payload: Payload,
        *,
        timestamp_ms: int | None = None,
        key: bytes | None = None,
        dedup_id: bytes | str | None = None,
        txid: int | None = None,
        if_position: Position | str | Anything | None = ANYTHING,
    ) -> Position:
        """Append a record; return its position once it is durable on an ack quorum.

        Giving up, by Ctrl-C too, does not take the record back once it has found room.

        Args:
            if_position: the record is appended only if the last one of the stream has this position; ``None``: only if
                the stream has none. Other arguments: as ``append_nowait``.

        Raises:
            PositionMismatch: the last record is another one; nothing was appended.
            RequestTimeout: no room in the client's budget, or earlier appends stay unconfirmed; not sent.
            StreamFenced: another writer has the stream. The outcome tells whether the record was not sent, or may be
                there.
            As ``append_nowait``, but for ``Busy``.
        """
        append = partial(
            self._engine.append,
            payload,
            timestamp_ms=timestamp_ms,
            key=key,
            dedup_id=dedup_id,
            txid=txid,
            if_position=if_position,
        )
        return self._line.wait(append)

    def append_many(self, records: Iterable[Payload | Outgoing]) -> list[Position]:
        """Append records in order; return their positions once all are durable on an ack quorum.

        Of an iterator, which may be as long as it likes, some are taken at a time: others may append between them.

        Raises:
            As ``append``; some of the records may then be there.
        """
        if isinstance(records, Sequence):
            return self._line.wait(partial(self._engine.append_many, records))
        sent: list[pending.PendingRecord] = []
        for piece in _pieces(records):
            outcome = Outcome.UNKNOWN if sent else Outcome.NOT_DONE
            sent += self._line.wait(partial(self._engine.send_many, piece, outcome))
        return self._line.wait(partial(pending.positions_of, sent))

    def append_set(self, records: Sequence[Payload | Outgoing]) -> list[Position]:
        """Append records all together or not at all, also where the writer dies half-way; return their positions.

        A set in which an id is there already is not appended a second time: it is taken for the same one.

        Raises:
            EntryTooLarge: together they are larger than a record may be, or there are more than 8,192.
            As ``append``.
        """
        return self._line.wait(partial(self._engine.append_set, records))

    # -- the rest ----------------------------------------------------------------------------------------------------

    def flush(self) -> None:
        """Return once everything that was appended is durable on an ack quorum.

        Raises:
            RequestTimeout: it takes too long.
            EntryTooLarge: a record was refused, nobody has asked what became of it, and all others are durable.
            StreamFenced, ...: the writer is over; appends tell each what became of them.
            HandleClosed: the client is closed.
        """
        self._line.wait(self._engine.flush)

    def commit(self) -> None:
        """Like ``flush``, and readers see it at once, not only with the next record or after a silence.

        Raises:
            As ``flush``, but for ``EntryTooLarge``.
        """
        self._line.wait(self._engine.commit)

    def end_stream(self) -> None:
        """End the stream for ever, behind what was appended; readers come to an end there. The writer is closed then.

        Raises:
            As ``close``.
        """
        self._line.wait(self._engine.end_stream)

    def close(self) -> None:
        """Wait for what was appended, and let go of the stream; another writer need not fence it then.

        Closing twice does no more.

        Raises:
            RequestTimeout: appends are still pending after 90 seconds; close again.
            MetadataUnavailable, ...: the stream is not let go of; close again, or let the next writer take it.
            StreamFenced: another writer has taken it before.
            EntryTooLarge: as ``flush``; the stream is let go of.
            HandleClosed: the client is closed, and the stream left to the next writer.
        """
        self._line.wait(self._engine.close)

    def abandon(self) -> None:
        """Let go of everything at once. The stream stays as it is, for the next writer to settle."""
        if not self._line.loop.closed:  # or else the client has done it
            self._line.loop.call(self._abandon)

    def _abandon(self) -> None:
        self._line.hand_over.flush()
        self._engine.abandon()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        end_block(self, failed=kind is not None)


def _pieces(records: Iterable[Payload | Outgoing]) -> Iterator[list[Payload | Outgoing]]:
    """Some at a time, with one piece at the least."""
    piece: list[Payload | Outgoing] = []
    held_bytes = 0
    for record in records:
        piece.append(record)
        held_bytes += size_of(record if isinstance(record, Outgoing) else Outgoing(record))
        if len(piece) == _PIECE_RECORDS or held_bytes >= _PIECE_BYTES:
            yield piece
            piece, held_bytes = [], 0
    yield piece
