"""Shared tails: follow an open segment once for all readers of a client.

The readers of a stream's tail share one long poll and one read of each batch. The latest envelopes are kept, up to
``KEPT_BYTES``. A reader that falls behind them reads by itself until it has caught up.
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import aclosing
from typing import Final, NamedTuple

from tallybook.client.client import Client
from tallybook.client.reader.handle import LedgerReader
from tallybook.core.batch import Entry
from tallybook.core.errors import BookieUnavailable, EnvelopeDamaged, TallybookError
from tallybook.core.limits import MIB
from tallybook.runtime.tasks import Tasks

from ..load import StreamLoad
from ..records.envelope import Envelope

KEPT_BYTES: Final = 4 * MIB
"""Bytes of envelopes that a tail keeps for its followers."""


class Unreadable(NamedTuple):
    """A lost or damaged entry, in place of its envelope."""

    entry: int
    error: TallybookError


def opened(entry: Entry, number: int, tag: str) -> Envelope | Unreadable:
    """The envelope in an entry of a segment, or ``Unreadable``."""
    try:
        return Envelope(entry.payload, number, entry.entry_id, tag)
    except EnvelopeDamaged as error:
        return Unreadable(entry.entry_id, error)


class _EnvelopeRun(NamedTuple):
    """Envelopes of one batch."""

    envelopes: list[Envelope | Unreadable]
    size: int


class SharedTail:
    """Follows one ledger on behalf of several readers.

    Args:
        number, tag: of the segment; see ``Position``.
        first: the entry to start with.
        load: counts tails, followers and kept bytes.
    """

    def __init__(self, reader: LedgerReader, number: int, tag: str, first: int, tasks: Tasks, load: StreamLoad) -> None:
        self.reader = reader
        self._load = load
        load.tails += 1
        self._number = number
        self._tag = tag
        self._kept: deque[_EnvelopeRun] = deque()
        self._kept_bytes = 0
        self._news = asyncio.Event()
        self.first = first
        """The first kept entry, or the first one that will be kept."""
        self.next = first
        """The next entry to be read."""
        self.followers = 0
        self.ended = False
        """Whether the ledger is closed and completely read."""
        self.error: TallybookError | None = None
        """The error that ended the tail."""
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
            # Followers must not wait for a tail that has ended.
            self.error = BookieUnavailable(f"the tail of ledger {self.reader.id} has ended: {error!r}")
            raise
        finally:
            self._news.set()

    def _keep(self, envelopes: list[Envelope | Unreadable], size: int) -> None:
        self._kept.append(_EnvelopeRun(envelopes, size))
        self._grow(size)
        self.next = envelopes[-1].entry + 1
        # The latest envelopes are kept regardless of size: a follower waits for them.
        while self._kept_bytes > KEPT_BYTES and len(self._kept) > 1:
            gone = self._kept.popleft()
            self._grow(-gone.size)
            self.first = self._kept[0].envelopes[0].entry
        news, self._news = self._news, asyncio.Event()
        news.set()

    def kept(self, entry: int) -> list[Envelope | Unreadable]:
        """The kept envelopes from ``entry`` on, which must not be before ``first``; none if it was not read yet."""
        found: list[Envelope | Unreadable] = []
        for piece in reversed(self._kept):
            if piece.envelopes[-1].entry < entry:
                break
            found = [each for each in piece.envelopes if each.entry >= entry] + found
        return found

    async def more(self) -> None:
        """Wait until more was read, or the tail has ended."""
        if not self.ended and self.error is None:
            await self._news.wait()

    def joined(self, followers: int) -> None:
        """Change the number of followers by ``followers``; with none left, stop."""
        self.followers += followers
        self._load.tail_followers += followers
        if not self.followers:
            self._task.cancel()
            self._load.tails -= 1
            self._grow(-self._kept_bytes)

    def _grow(self, size: int) -> None:
        self._kept_bytes += size
        self._load.tail_bytes += size


class SharedTails:
    """The tails of one client, by ledger.

    Args:
        tasks: runs the tails.
        load: counts tails, followers and kept bytes.
    """

    def __init__(self, client: Client, tasks: Tasks, load: StreamLoad) -> None:
        self._client = client
        self._tasks = tasks
        self._load = load
        self._tails: dict[int, SharedTail] = {}

    def count_in(self, load: StreamLoad) -> None:
        """Count in ``load`` from now on."""
        self._load = load

    def follow(self, reader: LedgerReader, number: int, tag: str) -> SharedTail:
        """Follow the tail of a ledger; a new tail starts after the last confirmed entry. Release it with ``leave``."""
        tail = self._tails.get(reader.id)
        if tail is None or tail.error is not None:
            tail = SharedTail(reader, number, tag, reader.last_add_confirmed + 1, self._tasks, self._load)
            self._tails[reader.id] = tail
        tail.joined(1)
        return tail

    def leave(self, ledger_id: int, tail: SharedTail) -> None:
        """Stop following a tail; it ends with its last follower."""
        tail.joined(-1)
        if not tail.followers and self._tails.get(ledger_id) is tail:
            del self._tails[ledger_id]
