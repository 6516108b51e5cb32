"""Read-ahead for readers that read a ledger in order, above all catch-up readers.

A read of the entry after the last one returned makes a *stream*. For a stream that continues, batches are read before
they are requested, in pieces of about a MiB, a few at a time for all streams together; the window doubles with each
read, up to a share of the budget. A jump starts a new stream without read-ahead. A piece that a reader waits for is
read before all that are not requested yet.

A stream is identified by the entry that it will request next, not by the client, which the bookie does not know. Idle
streams are dropped for others, the oldest first.

Read-ahead batches pass the same checks as any read. On any error the stream is dropped, and the reader's own read
reports it. Batches never change, so none is ever stale; a deleted ledger is ``forget``-ed.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from tallybook.core.errors import StorageError
from tallybook.core.ids import MAX_ID
from tallybook.core.limits import KIB, MIB
from tallybook.runtime.logging import logger
from tallybook.runtime.metrics.part_metrics import PartMetrics

from .index.port import MAX_FIND_ROWS, Index
from .location import IndexRow

_log = logger("bookie.read_ahead")

FIRST_WINDOW_BYTES: Final = 512 * KIB
"""Read-ahead window when a stream continues for the first time."""

SHARES: Final = 8
"""A stream gets at most one part in this many of the budget."""

PIECE_BYTES: Final = MIB
"""About how many bytes one read of the disk returns."""

MAX_STREAMS: Final = 64
MAX_CANDIDATES: Final = 1_024
"""Readers with one read so far, which may become streams."""

MAX_CONCURRENT_PIECES: Final = 2
"""Concurrent read-ahead reads of all streams: an ordinary read waits for at most these on the disk."""

Spend = Callable[[int], Awaitable[None]]
Spawn = Callable[[Coroutine[Any, Any, None], str], asyncio.Task[None]]
"""Runs a coroutine in the background under a name."""


class BatchReader(Protocol):
    """The part of the entry logs that reads batches."""

    async def read_many(self, rows: Sequence[IndexRow]) -> list[bytes]:
        """The batches of ``rows``, up to the first unreadable one; see ``EntryLogs.read_many``."""


@dataclass(slots=True, eq=False)
class _Piece:
    """Batches that are read together, until they are taken."""

    rows: deque[IndexRow]
    held_bytes: int
    batches: deque[bytes] = field(default_factory=deque)
    read: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the read has ended. Fewer batches than rows: the others cannot be read."""


@dataclass(slots=True, eq=False)
class _Stream:
    """A reader that continues in order."""

    ledger_id: int
    next_id: int
    """The entry that it will request next."""
    last: int = MAX_ID
    """The last entry that it wants."""
    spends: bool = True
    """Whether its read-ahead spends from the budget: the reads of a repair or an offload do that themselves."""
    batch_bytes: int = 1
    """Size of the last batch returned; an estimate for the next ones."""
    window_bytes: int = 0
    pieces: deque[_Piece] = field(default_factory=deque)
    """Pieces from ``next_id`` on, without a gap."""
    end_id: int = 0
    """The first entry after the pieces."""
    work: dict[asyncio.Task[None], None] = field(default_factory=dict)
    looked: asyncio.Event = field(default_factory=asyncio.Event)
    """Not set during the index lookup for the next rows."""
    dropped: bool = False

    @property
    def held_bytes(self) -> int:
        return sum(piece.held_bytes for piece in self.pieces)


class ReadAhead:
    """Batches read before they are requested.

    Args:
        max_bytes: of all batches that are being read ahead or wait to be taken; 0 disables read-ahead.
        spend: waits until background work of so many bytes may begin.
    """

    def __init__(self, index: Index, logs: BatchReader, spawn: Spawn, max_bytes: int, spend: Spend) -> None:
        self._spend = spend
        self._index = index
        self._logs = logs
        self._spawn = spawn
        self.max_bytes = max_bytes
        self._streams: OrderedDict[tuple[int, int], _Stream] = OrderedDict()
        self._candidates: OrderedDict[tuple[int, int], None] = OrderedDict()
        """The entries at which a next read makes a stream."""
        self._waiting: OrderedDict[_Piece, _Stream] = OrderedDict()
        """Pieces that wait for the disk, in the order of their lookup."""
        self._wanted: OrderedDict[_Piece, _Stream] = OrderedDict()
        """Blocks that a reader waits for; they come first."""
        self._in_flight = 0
        """Pieces that are being read."""
        self.held_bytes = 0
        self.read_batches = 0
        """Batches read ahead."""
        self.used_batches = 0
        """Blocks among them that were requested."""

    def __len__(self) -> int:
        return len(self._streams)

    async def take(self, ledger_id: int, first: int, last: int, max_bytes: int) -> list[tuple[IndexRow, bytes]]:
        """Take the batches that were read ahead, from the one that begins with ``first``, up to ``last`` or about
        ``max_bytes``. Waits for a read in flight."""
        stream = self._streams.get((ledger_id, first))
        if stream is None:
            return []
        if not stream.pieces:
            # The lookup in flight will find what this reader's own lookup would.
            await stream.looked.wait()
        if not stream.pieces:
            return []
        self._prioritise(stream.pieces[0])
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
            self._skip(stream)
        self.used_batches += len(taken)
        return taken

    def expects(self, ledger_id: int, entry_id: int) -> bool:
        """Whether a reader that reads in order will continue with this entry."""
        return (ledger_id, entry_id) in self._streams or (ledger_id, entry_id) in self._candidates

    def note(
        self, ledger_id: int, first: int, next_id: int, last: int, batch_bytes: int, *, background: bool = False
    ) -> None:
        """Note a read of ``first`` up to ``last`` that returned everything below ``next_id``.

        Args:
            batch_bytes: size of the last batch returned.
            background: the reader spends from the budget of background work itself.
        """
        if not self.max_bytes:
            return
        stream = self._streams.pop((ledger_id, first), None)
        if stream is None:
            if (ledger_id, next_id) in self._streams:
                return  # a repeated read of the same entries
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
        stream.spends = not background
        self._continue(stream, next_id, last)

    def _continue(self, stream: _Stream, next_id: int, last: int) -> None:
        other = self._streams.pop((stream.ledger_id, next_id), None)
        if other is not None:
            self._drop(other)
        if stream.last == last < next_id:
            self._drop(stream)  # it has all it wanted
            return
        stream.next_id = next_id
        # A reader of single entries names no end.
        stream.last = last if last >= next_id else MAX_ID
        while stream.pieces and stream.pieces[0].rows[0].first_entry_id < next_id:
            self._skip(stream)  # returned from elsewhere
        stream.end_id = max(stream.end_id, next_id)
        self._streams[stream.ledger_id, next_id] = stream
        if len(self._streams) > MAX_STREAMS:
            self._drop(next(iter(self._streams.values())))
        share = self.max_bytes // max(SHARES, len(self._streams))
        stream.window_bytes = min(share, max(FIRST_WINDOW_BYTES, 2 * stream.window_bytes))
        self._read_more(stream)

    def close(self) -> None:
        """Drop everything, and stop reading ahead."""
        self.max_bytes = 0
        for stream in list(self._streams.values()):
            self._drop(stream)

    def forget(self, ledger_id: int) -> None:
        """Drop the batches of a ledger."""
        for stream in [each for each in self._streams.values() if each.ledger_id == ledger_id]:
            self._drop(stream)

    # -- reading ------------------------------------------------------------------------------

    def _read_more(self, stream: _Stream) -> None:
        """Read more for ``stream``, if it has less than half of its window."""
        wanted = stream.window_bytes - stream.held_bytes
        if stream.looked.is_set() and 2 * wanted >= stream.window_bytes:
            stream.looked.clear()
            self._work(stream, self._look_up(stream, wanted))

    def _work(self, stream: _Stream, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = self._spawn(work, f"read ahead of ledger {stream.ledger_id}")
        stream.work[task] = None
        task.add_done_callback(lambda done: stream.work.pop(done, None))
        return task

    async def _look_up(self, stream: _Stream, wanted: int) -> None:
        """Look up the next rows, and have them read."""
        try:
            # No more rows than needed: each costs time.
            limit = min(MAX_FIND_ROWS, wanted // stream.batch_bytes + 1)
            rows = await self._index.find_range(stream.ledger_id, stream.end_id, stream.last, limit)
            for piece in _pieces(rows, stream.end_id, wanted):
                if stream.dropped or not self._make_space(stream, piece.held_bytes):
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

    def _prioritise(self, piece: _Piece) -> None:
        """A reader waits for this piece: move it before those that are not requested yet."""
        stream = self._waiting.pop(piece, None)
        if stream is not None:
            self._wanted[piece] = stream

    def _cancel(self, piece: _Piece) -> None:
        """Cancel the read of a piece."""
        self._waiting.pop(piece, None)
        self._wanted.pop(piece, None)

    def _start_next(self) -> None:
        while self._in_flight < MAX_CONCURRENT_PIECES and (line := self._wanted or self._waiting):
            awaited = bool(self._wanted)
            piece, stream = line.popitem(last=False)
            self._in_flight += 1
            # The callback also runs for a task that is cancelled before it has begun.
            self._work(stream, self._read(piece, gives_way=stream.spends and not awaited)).add_done_callback(
                self._ended
            )

    def _ended(self, _: asyncio.Task[None]) -> None:
        self._in_flight -= 1
        self._start_next()

    async def _read(self, piece: _Piece, *, gives_way: bool) -> None:
        rows = list(piece.rows)
        try:
            if gives_way:
                await self._spend(piece.held_bytes)
            batches = await self._logs.read_many(rows)
            # The first of them may have been returned from elsewhere meanwhile.
            piece.batches.extend(batches[len(rows) - len(piece.rows) :])
            self.read_batches += len(batches)
            if len(batches) < len(rows):
                _log_unread(rows[len(batches)], "the next read of it reports the error")
        except StorageError as error:
            _log_unread(rows[0], error.message)
        finally:
            piece.read.set()

    def _make_space(self, stream: _Stream, size: int) -> bool:
        """Drop idle streams until there is space."""
        while self.held_bytes + size > self.max_bytes:
            oldest = next((each for each in self._streams.values() if each.pieces), stream)
            if oldest is stream:
                return False
            self._drop(oldest)
        return True

    def _skip(self, stream: _Stream) -> None:
        """The next batch of ``stream`` is not needed any more."""
        piece = stream.pieces[0]
        size = piece.rows.popleft().location.size
        if piece.batches:
            piece.batches.popleft()
        piece.held_bytes -= size
        self.held_bytes -= size
        if not piece.rows:
            self._cancel(stream.pieces.popleft())

    def _drop(self, stream: _Stream) -> None:
        stream.dropped = True
        stream.looked.set()
        if self._streams.get((stream.ledger_id, stream.next_id)) is stream:
            del self._streams[stream.ledger_id, stream.next_id]
        self.held_bytes -= stream.held_bytes
        for piece in stream.pieces:
            self._cancel(piece)
            piece.read.set()
        stream.pieces.clear()
        for task in list(stream.work):
            task.cancel()


def _pieces(rows: Sequence[IndexRow], first: int, max_bytes: int) -> Iterator[_Piece]:
    """Split the rows from ``first`` up to the first gap, or to ``max_bytes``, into pieces."""
    piece = _Piece(deque(), 0)
    next_id, left = first, max_bytes
    for row in rows:
        if row.first_entry_id < first:
            continue  # already returned
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


def _log_unread(row: IndexRow, why: str) -> None:
    _log.error("batch cannot be read ahead", ledger_id=row.ledger_id, first_entry_id=row.first_entry_id, error=why)


METRICS: Final = (
    PartMetrics[ReadAhead]()
    .gauge(
        "read_ahead_bytes",
        "tallybook_bookie_read_ahead_bytes",
        "Bytes of read-ahead, including reads in flight.",
        lambda ahead: ahead.held_bytes,
    )
    .gauge(
        "max_read_ahead_bytes",
        "tallybook_bookie_max_read_ahead_bytes",
        "Maximum bytes of read-ahead.",
        lambda ahead: ahead.max_bytes,
    )
    .counter(
        "read_ahead_batches_total",
        "tallybook_bookie_read_ahead_batches_total",
        "Batches read ahead for sequential readers.",
        lambda ahead: ahead.read_batches,
    )
    .counter(
        "read_ahead_used_batches_total",
        "tallybook_bookie_read_ahead_used_batches_total",
        "Batches read ahead that were requested later.",
        lambda ahead: ahead.used_batches,
    )
)
