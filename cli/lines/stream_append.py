"""Feeding lines to a stream, one record a line.

However the feeding ends - end of input, an error, Ctrl-C, another writer - ``StreamFeeder`` says how many records are
confirmed, and which is the last of them.
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

from .feeding import WINDOW_BYTES, Feeding
from .progress import Watcher

Told = Callable[[Sequence[Position]], Awaitable[None]]
"""Told of records that are confirmed, in their order."""

_LEAVE_SECONDS: Final = 5.0


class Piece(NamedTuple):
    """Some lines on their way: the records they became, and their sizes."""

    records: list[PendingRecord]
    sizes: list[int]


class StreamFeeder(Feeding[Piece]):
    """Appends to one stream.

    Args:
        writer: of the stream.
        progress: told of what is confirmed.
        key_separator: what stands between a record's key and its payload; a line without it has no key.
        told: gets the positions.
    """

    def __init__(
        self,
        writer: StreamWriter,
        clock: Clock,
        progress: Watcher,
        *,
        key_separator: bytes = b"",
        told: Told | None = None,
        window_bytes: int = WINDOW_BYTES,
    ) -> None:
        super().__init__(clock, progress, window_bytes)
        self._writer = writer
        # What is confirmed is a beginning of the input, from whose end one can go on.
        writer.end_at_refusal()
        self._key_separator = key_separator
        self._told = told
        self._entries = self._size_bytes = 0
        self.last_position: Position | None = None
        """Of the last record of this feeder's that is confirmed."""

    @property
    def entries(self) -> int:
        """Confirmed records."""
        return self._entries

    @property
    def size_bytes(self) -> int:
        """Bytes of their lines."""
        return self._size_bytes

    async def append_one(self, line: bytes, if_position: Position | None) -> None:
        """Append a record only if the last one of the stream has this position; ``None``: only if there is none.

        Raises:
            As ``StreamWriter.append``.
        """
        key, payload = self._parts(line)
        position = await self._writer.append(payload, key=key, if_position=if_position)
        await self._settled(Piece([settled_record(position)], [len(line)]))

    async def _send(self, lines: list[bytes]) -> None:
        piece = Piece([], [])
        try:
            for line in lines:
                key, payload = self._parts(line)
                try:
                    record = self._writer.append_nowait(payload, key=key)
                except Busy:
                    self._gone(piece)
                    piece = Piece([], [])
                    record = await self._send_patiently(payload, key)
                piece.records.append(record)
                piece.sizes.append(len(line))
        finally:
            self._gone(piece)

    async def _send_patiently(self, payload: bytes, key: bytes | None) -> PendingRecord:
        """Send a record for which there is no room in the client's budget: what is confirmed gives some."""
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

    def _gone(self, piece: Piece) -> None:
        if piece.records:
            self._push(piece, sum(piece.sizes))

    async def _confirmed(self, sent: Piece) -> None:
        # They are confirmed in order.
        await sent.records[-1]

    async def _settled(self, sent: Piece) -> None:
        self.last_position = await sent.records[-1]
        self._entries += len(sent.records)
        self._size_bytes += sum(sent.sizes)
        if self._told is not None:
            await self._told([await record for record in sent.records])

    async def _settle_briefly(self) -> None:
        await super()._settle_briefly()
        if self._window:
            # Of what failed, or takes too long, the first part may be confirmed.
            piece, _ = self._window.popleft()
            confirmed = await _confirmed_part(piece)
            if confirmed:
                await self._settled(Piece(piece.records[:confirmed], piece.sizes[:confirmed]))


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
    """The one line of an input.

    Raises:
        InvalidArgument: it has none, or more.
    """
    found: list[bytes] = []
    async with aclosing(source):
        async for lines in source:
            found += lines
            if len(found) > 1:
                break
    if len(found) != 1:
        raise InvalidArgument(f"with a condition, one line is wanted, got {'none' if not found else 'more'}")
    return found[0]


async def let_go(writer: StreamWriter) -> None:
    """Let go of a stream after a failure: in order, where that is soon done, so that the next writer need not wait."""
    try:
        async with asyncio.timeout(_LEAVE_SECONDS):
            await writer.close()
    except (TimeoutError, TallybookError):
        # The failure before is the one to report; the next writer settles what was left.
        writer.abandon()
