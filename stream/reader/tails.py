"""Reading what is appended to open segments, once for all who follow them.

All who tail a stream through one client share what is read of its last segment: one long poll and one read of
each batch, however many follow. What was read last is kept, up to ``KEPT_BYTES``; a reader that falls behind that reads
for itself, until it has caught up.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import aclosing
from typing import Final, NamedTuple

from tallybook.client.client import Client
from tallybook.client.reader.handle import LedgerReader
from tallybook.core.batch import Entry
from tallybook.core.errors import BookieUnavailable, EnvelopeDamaged, TallybookError
from tallybook.core.limits import MIB
from tallybook.runtime.tasks import Tasks

from ..envelope import Envelope
from ..load import StreamLoad

KEPT_BYTES: Final = 4 * MIB
"""Payload of the envelopes that a tail keeps for those who follow it."""


class Unreadable(NamedTuple):
    """An entry that nobody can read, in the place of its envelope."""

    entry: int
    error: TallybookError


def opened(entry: Entry, number: int, tag: str) -> Envelope | Unreadable:
    """What an entry of a segment holds."""
    try:
        return Envelope(entry.payload, number, entry.entry_id, tag)
    except EnvelopeDamaged as error:
        return Unreadable(entry.entry_id, error)


class _Piece(NamedTuple):
    """Envelopes that came together."""

    envelopes: list[Envelope | Unreadable]
    size: int


class SharedTail:
    """Follows one ledger for everybody.

    Args:
        number, tag: of the segment; see ``Position``.
        first: entry to begin with.
        load: counts it, and what it keeps.
    """

    def __init__(self, reader: LedgerReader, number: int, tag: str, first: int, tasks: Tasks, load: StreamLoad) -> None:
        self.reader = reader
        self._load = load
        load.tails += 1
        self._number = number
        self._tag = tag
        self._kept: deque[_Piece] = deque()
        self._kept_bytes = 0
        self._news = asyncio.Event()
        self.first = first
        """The first entry that is kept, or will be."""
        self.next = first
        """The entry that is to come next."""
        self.followers = 0
        self.ended = False
        """Whether the ledger is closed, and all of it was read."""
        self.error: TallybookError | None = None
        """Why nothing comes any more."""
        self._task = tasks.spawn(self._run(), name=f"tail-{reader.id}")

    async def _run(self) -> None:
        try:
            async with aclosing(self.reader.tail_batches(self.next)) as batches:
                async for batch in batches:
                    envelopes = [opened(entry, self._number, self._tag) for entry in batch]
                    self._keep(envelopes, sum(each.memory_bytes for each in envelopes if isinstance(each, Envelope)))
            self.ended = True
        except TallybookError as error:
            self.error = error
        except BaseException as error:
            # Whoever follows must not wait for a tail that is no more.
            self.error = BookieUnavailable(f"the tail of ledger {self.reader.id} has ended: {error!r}")
            raise
        finally:
            self._news.set()

    def _keep(self, envelopes: list[Envelope | Unreadable], size: int) -> None:
        self._kept.append(_Piece(envelopes, size))
        self._grow(size)
        self.next = envelopes[-1].entry + 1
        # What came last stays, whatever its size: somebody waits for it.
        while self._kept_bytes > KEPT_BYTES and len(self._kept) > 1:
            gone = self._kept.popleft()
            self._grow(-gone.size)
            self.first = self._kept[0].envelopes[0].entry
        news, self._news = self._news, asyncio.Event()
        news.set()

    def kept(self, entry: int) -> list[Envelope | Unreadable]:
        """The envelopes from an entry on, which is not before ``first``; none, if it is still to come."""
        found: list[Envelope | Unreadable] = []
        for piece in reversed(self._kept):
            if piece.envelopes[-1].entry < entry:
                break
            found = [each for each in piece.envelopes if each.entry >= entry] + found
        return found

    async def more(self) -> None:
        """Return when something has come, or nothing will any more."""
        if not self.ended and self.error is None:
            await self._news.wait()

    def joined(self, followers: int) -> None:
        """So many more follow it, or fewer. When nobody does any more, it stops."""
        self.followers += followers
        self._load.tail_followers += followers
        if not self.followers:
            self._task.cancel()
            self._load.tails -= 1
            self._grow(-self._kept_bytes)

    def _grow(self, size: int) -> None:
        self._kept_bytes += size
        self._load.tail_bytes += size


class Tails:
    """The tails of one client, by ledger.

    Args:
        tasks: where they run.
        load: what they are counted in from now on.
    """

    def __init__(self, client: Client, tasks: Tasks, load: Callable[[], StreamLoad]) -> None:
        self._client = client
        self._tasks = tasks
        self._load = load
        self._tails: dict[int, SharedTail] = {}

    def follow(self, reader: LedgerReader, number: int, tag: str) -> SharedTail:
        """The tail of a ledger, begun at what is confirmed by now where nobody follows it yet.

        To be let go of by ``leave``.
        """
        tail = self._tails.get(reader.id)
        if tail is None or tail.error is not None:
            tail = SharedTail(reader, number, tag, reader.last_add_confirmed + 1, self._tasks, self._load())
            self._tails[reader.id] = tail
        tail.joined(1)
        return tail

    def leave(self, ledger_id: int, tail: SharedTail) -> None:
        """Follow it no more. When nobody does, it ends."""
        tail.joined(-1)
        if not tail.followers and self._tails.get(ledger_id) is tail:
            del self._tails[ledger_id]
