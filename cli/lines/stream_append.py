"""Appends input lines to a stream, one record per line.

However it ends (end of input, an error, Ctrl-C, another writer), ``StreamFeeder`` knows how many records are confirmed
and the position of the last one.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from typing import Final, NamedTuple

from tallybook.core.errors import Busy, InvalidArgument, TallybookError
from tallybook.runtime.clock import Clock
from tallybook.stream import PendingRecord, Position, StreamWriter
from tallybook.stream.writer.pending import settled_record

from ..progress import ProgressSink
from .feed import WINDOW_BYTES, LineFeeder

OnConfirmed = Callable[[Sequence[Position]], Awaitable[None]]
"""Called with the positions of confirmed records, in order."""

_LEAVE_SECONDS: Final = 5.0


class Piece(NamedTuple):
    """A group of records in flight, and the sizes of their lines."""

    records: list[PendingRecord]
    sizes: list[int]


class StreamFeeder(LineFeeder[Piece]):
    """Appends lines to one stream.

    Args:
        writer: the stream's writer.
        progress: gets the confirmed records.
        key_separator: separates key and payload in a line; a line without it has no key. Empty: no keys.
        on_confirmed: called with the positions of confirmed records.
    """

    def __init__(
        self,
        writer: StreamWriter,
        clock: Clock,
        progress: ProgressSink,
        *,
        key_separator: bytes = b"",
        on_confirmed: OnConfirmed | None = None,
        window_bytes: int = WINDOW_BYTES,
    ) -> None:
        super().__init__(clock, progress, window_bytes)
        self._writer = writer
        # Confirmed records are always a prefix of the input, so that a user can resume after it.
        writer.end_at_refusal()
        self._key_separator = key_separator
        self._on_confirmed_records = on_confirmed
        self._entries = self._size_bytes = 0
        self.last_position: Position | None = None
        """The position of the last confirmed record of this feeder."""

    @property
    def entries(self) -> int:
        """Confirmed records."""
        return self._entries

    @property
    def size_bytes(self) -> int:
        """Bytes of their lines."""
        return self._size_bytes

    async def append_one(self, line: bytes, if_position: Position | None) -> None:
        """Append a record if the last one of the stream has this position; ``None``: if the stream has no record.

        Raises:
            As ``StreamWriter.append``.
        """
        key, payload = self._parts(line)
        position = await self._writer.append(payload, key=key, if_position=if_position)
        await self._on_confirmed(Piece([settled_record(position)], [len(line)]))

    async def _send(self, lines: list[bytes]) -> None:
        piece = Piece([], [])
        try:
            for line in lines:
                key, payload = self._parts(line)
                try:
                    record = self._writer.append_nowait(payload, key=key)
                except Busy:
                    self._push_piece(piece)
                    piece = Piece([], [])
                    record = await self._send_when_free(payload, key)
                piece.records.append(record)
                piece.sizes.append(len(line))
        finally:
            self._push_piece(piece)

    async def _send_when_free(self, payload: bytes, key: bytes | None) -> PendingRecord:
        """Send a record when the client's byte budget has space for it: confirmations free some."""
        while self._window:
            await self._oldest()
            try:
                return self._writer.append_nowait(payload, key=key)
            except Busy:
                continue
        return settled_record(await self._writer.append(payload, key=key))

    def _parts(self, line: bytes) -> tuple[bytes | None, bytes]:
        if not self._key_separator or self._key_separator not in line:
            return None, line
        key, _, payload = line.partition(self._key_separator)
        return key, payload

    def _push_piece(self, piece: Piece) -> None:
        if piece.records:
            self._push(piece, sum(piece.sizes))

    async def _confirmed(self, sent: Piece) -> None:
        # Records are confirmed in order.
        await sent.records[-1]

    async def _on_confirmed(self, sent: Piece) -> None:
        self.last_position = await sent.records[-1]
        self._entries += len(sent.records)
        self._size_bytes += sum(sent.sizes)
        if self._on_confirmed_records is not None:
            await self._on_confirmed_records([await record for record in sent.records])

    async def _drain_briefly(self) -> None:
        await super()._drain_briefly()
        if self._window:
            # The first records of a group that failed, or takes too long, may be confirmed.
            piece, _ = self._window.popleft()
            confirmed = await _confirmed_part(piece)
            if confirmed:
                await self._on_confirmed(Piece(piece.records[:confirmed], piece.sizes[:confirmed]))


async def _confirmed_part(piece: Piece) -> int:
    for count, record in enumerate(piece.records):
        if not record.done:
            return count
        try:
            await record
        except TallybookError:
            return count
    return len(piece.records)


async def only_line(source: AsyncGenerator[list[bytes], None]) -> bytes:
    """The only line of an input.

    Raises:
        InvalidArgument: the input has no line, or more than one.
    """
    found: list[bytes] = []
    async with aclosing(source):
        async for lines in source:
            found += lines
            if len(found) > 1:
                break
    if len(found) != 1:
        raise InvalidArgument(f"--if-position needs exactly one line of input, got {'none' if not found else 'more'}")
    return found[0]


async def release_stream_writer(writer: StreamWriter) -> None:
    """Release a stream after a failure: close the writer if that is quick, so that the next writer need not wait."""
    try:
        async with asyncio.timeout(_LEAVE_SECONDS):
            await writer.close()
    except (TimeoutError, TallybookError):
        # The earlier failure is the one to report. The next writer recovers the stream.
        writer.abandon()
