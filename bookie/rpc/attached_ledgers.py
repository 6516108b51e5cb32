"""Ledgers attached by writers over all Add streams of a bookie: they may have a live writer.

A writer that loses its connection reconnects and attaches its ledgers again. Until then it is unknown whether a ledger
has a writer: after the start of the bookie, after the end of a stream that had the ledger attached, and while a stream
has more ledgers than the bookie remembers.

Only an attachment with the right key and identity counts, since any client may attach any id. They are checked when
the writer of a ledger is asked for, not when thousands of ledgers are attached.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Iterable, Sequence
from typing import Final, Protocol, TypeAlias

from tallybook.core.errors import MetadataUnavailable, NoSuchLedger
from tallybook.runtime.clock import Clock
from tallybook.wire.batches import MAX_ATTACHED_LEDGERS, WRITER_RETURN_SECONDS
from tallybook.wire.messages import Attach

MAX_LOST: Final = 2 * MAX_ATTACHED_LEDGERS
"""Remembered attachments of ended streams: a client with the maximum may reconnect twice within the window."""
MAX_LOST_STREAMS: Final = 1_024
FREED_IN_TURN: Final = 1_000

Shown: TypeAlias = tuple[bytes, bytes]
"""Key and identity of an attachment."""


class OpenableLedgers(Protocol):
    """The part of a ``LedgerStore`` that checks keys."""

    async def any_opens(self, ledger_id: int, shown: Sequence[Shown]) -> bool:
        """See the port."""


class StreamAttachments:
    """The ledgers attached by one Add stream, oldest first.

    Attributes:
        may_write: whether its client has permission to write; otherwise its attachments do not count.
        overflowed: whether an attachment was dropped, since the stream has more than are remembered.
    """

    def __init__(self, may_write: bool) -> None:
        self.may_write = may_write
        self.overflowed = False
        self._ledgers: OrderedDict[int, Attach] = OrderedDict()

    def __len__(self) -> int:
        return len(self._ledgers)

    def get(self, ledger_id: int) -> Attach | None:
        """The attachment of a ledger."""
        return self._ledgers.get(ledger_id)

    def attach(self, attach: Attach) -> None:
        """Attach a ledger, replacing an earlier attachment."""
        self._ledgers.pop(attach.ledger_id, None)
        self._ledgers[attach.ledger_id] = attach
        if len(self._ledgers) > MAX_ATTACHED_LEDGERS:
            self._ledgers.popitem(last=False)
            self.overflowed = True

    def set_may_write(self, may_write: bool) -> None:
        """Apply the current permission of the client."""
        self.may_write = may_write

    def detach(self, ledger_id: int) -> None:
        """The client has finished with a ledger."""
        self._ledgers.pop(ledger_id, None)

    def free(self) -> None:
        """Drop all attachments, some in each turn of the event loop: to free 65,536 at once takes 30 ms."""
        for _ in range(min(FREED_IN_TURN, len(self._ledgers))):
            self._ledgers.popitem()
        if self._ledgers:
            asyncio.get_running_loop().call_soon(self.free)


class AttachedLedgers:
    """The attachments of all streams, including recently ended ones. No step takes time per ledger."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._streams: set[StreamAttachments] = set()
        self._lost: deque[tuple[float, StreamAttachments]] = deque()
        """Recently ended streams, and when each ended."""
        self._lost_count = 0
        self._not_known_until = clock.monotonic() + WRITER_RETURN_SECONDS

    def begin(self, *, may_write: bool) -> StreamAttachments:
        """Register a new stream."""
        stream = StreamAttachments(may_write)
        self._streams.add(stream)
        return stream

    def end(self, stream: StreamAttachments) -> None:
        """Note the end of a stream: its client may be reconnecting."""
        self._streams.discard(stream)
        now = self._clock.monotonic()
        if stream.may_write and len(stream):
            self._lost.append((now, stream))
            self._lost_count += len(stream)
        else:
            stream.free()
        self._forget_lost(now)
        if stream.may_write and stream.overflowed:
            self._not_known_until = now + WRITER_RETURN_SECONDS

    async def writer_of(self, ledgers: OpenableLedgers, ledger_id: int) -> bool | None:
        """Whether a stream has the ledger attached; ``None`` if its writer may be reconnecting, or was forgotten."""
        writing = [stream for stream in self._streams if stream.may_write]
        now = self._clock.monotonic()
        self._forget_lost(now)
        lost = [stream for _, stream in self._lost]
        not_known = now < self._not_known_until or any(stream.overflowed for stream in writing)
        try:
            if await _any_opens(ledgers, ledger_id, writing):
                return True
            return None if not_known or await _any_opens(ledgers, ledger_id, lost) else False
        except MetadataUnavailable:
            return None
        except NoSuchLedger:
            return False

    def _forget_lost(self, now: float) -> None:
        """Drop streams whose writers had time to reconnect; after an overflow, the answer stays unknown for a while."""
        while self._lost and (self._too_many_lost() or now - self._lost[0][0] >= WRITER_RETURN_SECONDS):
            ended_at, stream = self._lost.popleft()
            self._lost_count -= len(stream)
            self._not_known_until = max(self._not_known_until, ended_at + WRITER_RETURN_SECONDS)
            stream.free()

    def _too_many_lost(self) -> bool:
        return self._lost_count > MAX_LOST or len(self._lost) > MAX_LOST_STREAMS


async def _any_opens(ledgers: OpenableLedgers, ledger_id: int, streams: Iterable[StreamAttachments]) -> bool:
    """Whether one of these streams has the ledger attached with the right key.

    Raises:
        MetadataUnavailable: the key verifier is not available.
        NoSuchLedger: there is no such ledger.
    """
    found = (stream.get(ledger_id) for stream in streams)
    shown = list({(attach.key, attach.identity) for attach in found if attach is not None})
    return bool(shown) and await ledgers.any_opens(ledger_id, shown)
