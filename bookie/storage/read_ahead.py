"""Reading ahead of those who go through a ledger in order, a catch-up reader above all.

Who asks for the entry behind the last one that it was given is a *stream*. For a stream that goes on, batches are read
before it asks, in pieces of about a MiB, a few at a time for all streams together; each time it goes on, twice as much,
up to a share of the budget. Who jumps begins a new stream, and nothing is read ahead for it. A piece that somebody
waits for is the next one to be read, before all that nobody has asked for yet.

A stream is known by the entry it will ask for next, not by who asks: nothing tells the bookie, and two readers side by
side are as good as one. Streams that nobody goes on with are dropped for others, the oldest first.

What is read ahead passes the same checks as any read. Where that fails, whatever the reason, the stream is dropped and
the reader's own read finds out. Batches never change, so none is ever out of date; a deleted ledger is ``forget``-ed.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from tallybook.core.errors import StorageError
from tallybook.core.ids import MAX_ID
from tallybook.core.limits import KIB, MIB
from tallybook.runtime.logging import logger

from .index import MAX_FIND_ROWS, Index
from .location import IndexRow

_log = logger("bookie.read_ahead")

FIRST_WINDOW_BYTES: Final = 512 * KIB
"""What is read ahead when a stream goes on for the first time."""

SHARES: Final = 8
"""A stream gets at most one part in so many of the budget."""

PIECE_BYTES: Final = MIB
"""What one read of the disk brings, about."""

MAX_STREAMS: Final = 64
MAX_CANDIDATES: Final = 1_024
"""Readers that have asked once, and may be streams."""

PIECES_AT_ONCE: Final = 2
"""Reads of all streams on their way to the disk: whoever waits for an answer of its own has at most these before it."""

Spawn = Callable[[Coroutine[Any, Any, None], str], asyncio.Task[None]]
"""Runs something in the background under a name."""


class BatchReader(Protocol):
    """The part of the entry logs that gives batches back."""

    async def read_many(self, rows: Sequence[IndexRow]) -> list[bytes]:
        """The batches of ``rows``, up to the first that cannot be had; see ``EntryLogs.read_many``."""


@dataclass(slots=True, eq=False)
class _Piece:
    """Batches that are read together, until they are taken."""

    rows: deque[IndexRow]
    held_bytes: int
    batches: deque[bytes] = field(default_factory=deque)
    read: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when there is nothing more to wait for. Fewer batches than rows: the rest cannot be had."""


@dataclass(slots=True, eq=False)
class _Stream:
    """A reader that goes on in order."""

    ledger_id: int
    next_id: int
    """The entry it will ask for."""
    last: int = MAX_ID
    """The last entry it wants."""
    batch_bytes: int = 1
    """Size of the last batch it was given; the next ones are taken to be like it."""
    window_bytes: int = 0
    pieces: deque[_Piece] = field(default_factory=deque)
    """From ``next_id`` on, without a gap."""
    end_id: int = 0
    """The first entry behind them."""
    work: dict[asyncio.Task[None], None] = field(default_factory=dict)
    looked: asyncio.Event = field(default_factory=asyncio.Event)
    """Not set while the index is asked what comes next."""
    dropped: bool = False

    @property
    def held_bytes(self) -> int:
        return sum(piece.held_bytes for piece in self.pieces)


class ReadAhead:
    """What is read before it is asked for.

    Args:
        max_bytes: of all batches that are being read ahead or wait to be taken; 0: nothing is read ahead.
    """

    def __init__(self, index: Index, logs: BatchReader, spawn: Spawn, max_bytes: int) -> None:
        self._index = index
        self._logs = logs
        self._spawn = spawn
        self.max_bytes = max_bytes
        self._streams: OrderedDict[tuple[int, int], _Stream] = OrderedDict()
        self._candidates: OrderedDict[tuple[int, int], None] = OrderedDict()
        """Where whoever asks next becomes a stream."""
        self._waiting: OrderedDict[_Piece, _Stream] = OrderedDict()
        """Pieces whose turn has not come, in the order in which they were found."""
        self._wanted: OrderedDict[_Piece, _Stream] = OrderedDict()
        """Those of them that somebody waits for: they come first."""
        self._under_way = 0
        """Pieces on their way from the disk."""
        self.held_bytes = 0
        self.read_batches = 0
        """Batches read ahead."""
        self.used_batches = 0
        """Of those, what somebody asked for."""

    def __len__(self) -> int:
        return len(self._streams)

    async def take(self, ledger_id: int, first: int, last: int, max_bytes: int) -> list[tuple[IndexRow, bytes]]:
        """Batches from the one that begins with ``first``, up to ``last`` or about ``max_bytes``, if they were read
        ahead; where that is still under way, waits for it. They are gone from here then."""
        stream = self._streams.get((ledger_id, first))
        if stream is None:
            return []
        if not stream.pieces:
            # What its own look into the index would find is being looked for.
            await stream.looked.wait()
        if not stream.pieces:
            return []
        self._hurry(stream.pieces[0])
        await stream.pieces[0].read.wait()
        taken: list[tuple[IndexRow, bytes]] = []
        left = max_bytes
        # Another reader of the same entries may have taken them meanwhile.
        while not stream.dropped and stream.pieces and stream.pieces[0].read.is_set():
            piece = stream.pieces[0]
            if not piece.batches:
                self._drop(stream)
                break
            row, batch = piece.rows[0], piece.batches[0]
            expected = taken[-1][0].last_entry_id + 1 if taken else first
            left -= len(batch)
            if row.first_entry_id != expected or expected > last or (taken and left < 0):
                break
            taken.append((row, batch))
            self._pass(stream)
        self.used_batches += len(taken)
        return taken

    def note(self, ledger_id: int, first: int, next_id: int, last: int, batch_bytes: int) -> None:
        """Somebody who wants entries up to ``last`` asked for ``first``, and was given all below ``next_id``.

        Args:
            batch_bytes: size of the last batch that was given.
        """
        if not self.max_bytes:
            return
        stream = self._streams.pop((ledger_id, first), None)
        if stream is None:
            if (ledger_id, next_id) in self._streams:
                return  # somebody looks again at what it has
            expected = (ledger_id, first) in self._candidates
            self._candidates.pop((ledger_id, first), None)
            if not expected:
                self._candidates[ledger_id, next_id] = None
                if len(self._candidates) > MAX_CANDIDATES:
                    self._candidates.popitem(last=False)
                return
            stream = _Stream(ledger_id, next_id, end_id=next_id)
            stream.looked.set()
        stream.batch_bytes = max(1, batch_bytes)
        self._go_on(stream, next_id, last)

    def _go_on(self, stream: _Stream, next_id: int, last: int) -> None:
        other = self._streams.pop((stream.ledger_id, next_id), None)
        if other is not None:
            self._drop(other)
        if stream.last == last < next_id:
            self._drop(stream)  # it has what it wanted
            return
        stream.next_id = next_id
        # Who asks for one entry after the other names no end.
        stream.last = last if last >= next_id else MAX_ID
        while stream.pieces and stream.pieces[0].rows[0].first_entry_id < next_id:
            self._pass(stream)  # it was found elsewhere
        stream.end_id = max(stream.end_id, next_id)
        self._streams[stream.ledger_id, next_id] = stream
        if len(self._streams) > MAX_STREAMS:
            self._drop(next(iter(self._streams.values())))
        share = self.max_bytes // max(SHARES, len(self._streams))
        stream.window_bytes = min(share, max(FIRST_WINDOW_BYTES, 2 * stream.window_bytes))
        self._look_ahead(stream)

    def close(self) -> None:
        """Drop everything, and read nothing ahead any more."""
        self.max_bytes = 0
        for stream in list(self._streams.values()):
            self._drop(stream)

    def forget(self, ledger_id: int) -> None:
        """Drop what was read of a ledger."""
        for stream in [each for each in self._streams.values() if each.ledger_id == ledger_id]:
            self._drop(stream)

    # -- reading ------------------------------------------------------------------------------

    def _look_ahead(self, stream: _Stream) -> None:
        """Read more for ``stream``, if it has less than half of what it may have."""
        wanted = stream.window_bytes - stream.held_bytes
        if stream.looked.is_set() and 2 * wanted >= stream.window_bytes:
            stream.looked.clear()
            self._work(stream, self._look(stream, wanted))

    def _work(self, stream: _Stream, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = self._spawn(work, f"read ahead of ledger {stream.ledger_id}")
        stream.work[task] = None
        task.add_done_callback(lambda done: stream.work.pop(done, None))
        return task

    async def _look(self, stream: _Stream, wanted: int) -> None:
        """Find out what comes next, and have it read."""
        try:
            # Not more rows than that: each costs time.
            limit = min(MAX_FIND_ROWS, wanted // stream.batch_bytes + 1)
            rows = await self._index.find_range(stream.ledger_id, stream.end_id, stream.last, limit)
            for piece in _pieces(rows, stream.end_id, wanted):
                if stream.dropped or not self._make_room(stream, piece.held_bytes):
                    return
                self.held_bytes += piece.held_bytes
                stream.end_id = piece.rows[-1].last_entry_id + 1
                stream.pieces.append(piece)
                self._waiting[piece] = stream
                self._start_next()
        except StorageError as error:
            _log.error("index cannot be read ahead", ledger_id=stream.ledger_id, error=error.message)
            self._drop(stream)
        finally:
            stream.looked.set()

    def _hurry(self, piece: _Piece) -> None:
        """Somebody waits for it: if it waits for its turn, it goes before those that nobody waits for."""
        stream = self._waiting.pop(piece, None)
        if stream is not None:
            self._wanted[piece] = stream

    def _leave_out(self, piece: _Piece) -> None:
        """It need not be read any more."""
        self._waiting.pop(piece, None)
        self._wanted.pop(piece, None)

    def _start_next(self) -> None:
        while self._under_way < PIECES_AT_ONCE and (line := self._wanted or self._waiting):
            piece, stream = line.popitem(last=False)
            self._under_way += 1
            # Told of the end also where it is cancelled before it has begun.
            self._work(stream, self._read(piece)).add_done_callback(self._ended)

    def _ended(self, _: asyncio.Task[None]) -> None:
        self._under_way -= 1
        self._start_next()

    async def _read(self, piece: _Piece) -> None:
        rows = list(piece.rows)
        try:
            batches = await self._logs.read_many(rows)
            # The first of them may have been found elsewhere meanwhile.
            piece.batches.extend(batches[len(rows) - len(piece.rows) :])
            self.read_batches += len(batches)
            if len(batches) < len(rows):
                _tell_unread(rows[len(batches)], "a later read tells why")
        except StorageError as error:
            _tell_unread(rows[0], error.message)
        finally:
            piece.read.set()

    def _make_room(self, stream: _Stream, size: int) -> bool:
        """Drop others that nobody goes on with, until there is room."""
        while self.held_bytes + size > self.max_bytes:
            oldest = next((each for each in self._streams.values() if each.pieces), stream)
            if oldest is stream:
                return False
            self._drop(oldest)
        return True

    def _pass(self, stream: _Stream) -> None:
        """The next batch of ``stream`` is not needed here any more."""
        piece = stream.pieces[0]
        size = piece.rows.popleft().location.size
        if piece.batches:
            piece.batches.popleft()
        piece.held_bytes -= size
        self.held_bytes -= size
        if not piece.rows:
            self._leave_out(stream.pieces.popleft())

    def _drop(self, stream: _Stream) -> None:
        stream.dropped = True
        stream.looked.set()
        if self._streams.get((stream.ledger_id, stream.next_id)) is stream:
            del self._streams[stream.ledger_id, stream.next_id]
        self.held_bytes -= stream.held_bytes
        for piece in stream.pieces:
            self._leave_out(piece)
            piece.read.set()
        stream.pieces.clear()
        for task in list(stream.work):
            task.cancel()


def _pieces(rows: Sequence[IndexRow], first: int, max_bytes: int) -> Iterator[_Piece]:
    """The rows from ``first`` up to the first gap, or to ``max_bytes``, so many together."""
    piece = _Piece(deque(), 0)
    next_id, left = first, max_bytes
    for row in rows:
        if row.first_entry_id < first:
            continue  # somebody was faster
        if row.first_entry_id != next_id or left <= 0:
            break
        if piece.rows and piece.held_bytes + row.location.size > PIECE_BYTES:
            yield piece
            piece = _Piece(deque(), 0)
        piece.rows.append(row)
        piece.held_bytes += row.location.size
        next_id, left = row.last_entry_id + 1, left - row.location.size
    if piece.rows:
        yield piece


def _tell_unread(row: IndexRow, why: str) -> None:
    _log.error("batch cannot be read ahead", ledger_id=row.ledger_id, first_entry_id=row.first_entry_id, error=why)
