"""The blocking writing handle of streams: passes appends of other threads to the asyncio handle.

    any thread:   append_nowait -> bytes of the client's budget -> PendingRecord -> ThreadHandOff
    the loop:     ThreadHandOff -> StreamWriter.append_admitted -> envelopes, as with asyncio

Checks that depend on earlier records (deduplication, order of transaction ids) run on the loop, where all appends have
one order.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from tallybook.client.blocking.thread_handoff import AppendHandOff, AppendingHandle, AppendRoute, ThreadAppend
from tallybook.core.errors import Outcome, StreamClosed, TallybookError
from tallybook.core.limits import MIB

from ..position import Position
from ..records.record import Outgoing, Payload, size_of
from ..writer import handle, pending

_PIECE_RECORDS: Final = 1_000
_PIECE_BYTES: Final = MIB
"""Records, and bytes, that ``append_many`` takes from an iterator at a time."""


class PendingRecord(ThreadAppend[Position]):
    """A pending append, returned by ``StreamWriter.append_nowait``. Its ``result`` is the record's position.

    The record is written even if the result is never asked for. ``result`` raises the errors of
    ``StreamWriter.append``.
    """

    __slots__ = ()


class _StreamRoute(AppendRoute):
    """Passes the appends of one stream to the loop."""

    def __init__(self, engine: handle.StreamWriter, appends: AppendHandOff) -> None:
        super().__init__(engine, appends)
        self._engine = engine

    def send(self, appends: Sequence[ThreadAppend[Any]]) -> None:
        """Give records to the asyncio handle."""
        admitted = self._engine.append_admitted
        for append in appends:
            try:
                append.state = admitted(append.item, append.cost_bytes)
            except TallybookError as error:
                append.state = error
            append.item = None


class StreamWriterBase(AppendingHandle):
    """The only writer of a stream. Several threads may share it; the records of each thread keep their order.

    Appends are confirmed in order, and each is stored at most once. When bookies fail, the writer recovers its segment
    and continues in another one, so nothing is written twice. If a bookie takes smaller entries than before, a record
    that is too large for it fails with ``EntryTooLarge``; later records are written. When another writer takes the
    stream, this one ends: unconfirmed appends fail with ``StreamFenced``, outcome unknown. After
    the client's close every call raises ``HandleClosed``. Ctrl-C does not cancel an append once the budget was taken.

    Records just sent with ``append_nowait`` may not be counted in ``next_sequence`` yet. While a record with a higher
    transaction id is still in flight, ``result`` raises ``OutOfOrder`` instead of ``append_nowait``.
    """

    def __init__(self, engine: handle.StreamWriter, appends: AppendHandOff) -> None:
        super().__init__(_StreamRoute(engine, appends))
        self._engine = engine

    def _append_nowait(
        self,
        payload: Payload,
        *,
        timestamp_ms: int | None,
        key: bytes | None,
        dedup_id: bytes | str | None,
        txid: int | None,
    ) -> PendingRecord:
        if isinstance(payload, bytearray | memoryview):
            # Copied: the caller may reuse the buffer as soon as this returns.
            payload = bytes(payload)
        record = Outgoing.of(payload, timestamp_ms, key, dedup_id, txid)
        try:
            size = self._engine.take_budget(record)
        except StreamClosed:
            self._loop.check_open()
            raise
        found = PendingRecord(self._route, record, size)
        # Refused only if the client is closed, so the budget need not be given back.
        self._route.hand_over.put(found)
        return found

    def _append_many(self, records: Iterable[Payload | Outgoing]) -> list[Position]:
        """Append records in order; return their positions once all are durable on an ack quorum.

        Records of an iterator are taken in pieces; other threads may append between them.

        Raises:
            As ``append``; some of the records may then have been written.
        """
        if isinstance(records, Sequence):
            return self._run(self._engine.append_many, records)
        sent: list[pending.PendingRecord] = []
        for piece in _pieces(records):
            sent += self._run(self._engine.send_many, piece, Outcome.UNKNOWN if sent else Outcome.NOT_DONE)
        return self._run(pending.positions_of, sent)

    def _end_stream(self) -> None:
        """Deprecated name of ``seal``, for one release."""
        warnings.warn("end_stream is now called seal", DeprecationWarning, stacklevel=3)
        self._run(self._engine.seal)


def _pieces(records: Iterable[Payload | Outgoing]) -> Iterator[list[Payload | Outgoing]]:
    """Cut records into pieces; at least one, perhaps empty."""
    piece: list[Payload | Outgoing] = []
    held_bytes = 0
    for record in records:
        piece.append(record)
        held_bytes += size_of(record if isinstance(record, Outgoing) else Outgoing(record))
        if len(piece) == _PIECE_RECORDS or held_bytes >= _PIECE_BYTES:
            yield piece
            piece, held_bytes = [], 0
    yield piece
