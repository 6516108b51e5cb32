"""Follows a ledger: polls bookies for the last add confirmed, and reads what has been confirmed."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Final

from tallybook.core.answers import LacAnswer
from tallybook.core.coverage import sometimes
from tallybook.core.errors import InvalidBatch, MetadataUnavailable, NewerFormat, PeerError, check
from tallybook.core.ids import check_entry_id

from .context import ReaderContext
from .fetcher import EntryFetcher, FetchedBatches, VerifiedBatches
from .lac import TailPolls
from .view import LedgerView

METADATA_AGE_S: Final = 30.0
"""Age at which a tail reads the metadata again even without a change notification."""


class LedgerTail:
    """The batches of a ledger from ``position`` on, as they are confirmed; ends at the end of the closed ledger."""

    def __init__(self, position: int, view: LedgerView, fetcher: EntryFetcher, context: ReaderContext) -> None:
        self._position = position
        self._view = view
        self._fetcher = fetcher
        self._context = context

    async def pieces(self) -> AsyncGenerator[FetchedBatches, None]:
        """A generator of batches; another one after an error continues where this one was."""
        check_entry_id(self._position)
        waiter = TailWaiter(self._view, self._fetcher, self._context)
        try:
            while True:
                if self._position <= (end := self._view.lac):
                    ahead = self._fetcher.read_ahead(self._position, end)
                    try:
                        while fetched := await ahead.next():
                            yield self._piece(fetched, end)
                    except PeerError as error:
                        if not await self._worth_another_try(error):
                            raise
                    finally:
                        await ahead.close()
                elif self._view.metadata.closed:
                    return
                elif fetched := await waiter.wait_for_more(self._position):
                    yield self._piece(fetched, self._view.lac)
        finally:
            await waiter.polls.close()

    def _piece(self, fetched: VerifiedBatches, end: int) -> FetchedBatches:
        piece = FetchedBatches(fetched, self._position, end)
        self._position = piece.behind
        return piece

    async def _worth_another_try(self, error: PeerError) -> bool:
        """Whether to retry a failed read: the metadata have changed, or cannot be read (then after a pause)."""
        try:
            if not isinstance(error, MetadataUnavailable):
                return await self._view.refresh()
        except MetadataUnavailable:
            pass
        await self._context.pause()
        return True


class TailWaiter:
    """Waits for more entries: polls of bookies, and a watch on the metadata."""

    def __init__(self, view: LedgerView, fetcher: EntryFetcher, context: ReaderContext) -> None:
        retry_s, watch = context.settings.reconnect_ms / 1000, context.watch(view.metadata.ledger_id)
        self.polls = TailPolls(
            context.connections, watch, clock=context.clock, rng=context.rng, tasks=context.tasks, retry_s=retry_s
        )
        self._view = view
        self._fetcher = fetcher
        self._context = context
        self._read_at = context.clock.monotonic()
        """When the metadata were read."""
        self._changed = True
        """The metadata may have changed since they were read; true at the start."""
        self._store_away = False
        """Whether the metadata store did not answer last time."""

    async def wait_for_more(self, position: int) -> VerifiedBatches:
        """Wait until the LAC moves, the metadata may have changed, or the poll ends.

        Returns:
            Batches from ``position`` on that came with the answer; there may be more.
        """
        check(
            not self._view.metadata.closed,
            f"ledger {self._view.metadata.ledger_id}: waiting for more of a closed ledger",
        )
        clock = self._context.clock
        # Metadata that may have changed are read at once, unless the store is unavailable: then wait for the bookies.
        no_wait = self._changed and not self._store_away
        timeout_ms = 0 if no_wait else self._context.settings.tail_wait_ms
        with_entries = position == self._view.lac + 1
        update = await self.polls.poll(
            self._view.metadata, above=self._view.lac, timeout_ms=timeout_ms, with_entries=with_entries
        )
        self._changed = self._changed or update.metadata_changed
        before = self._view.lac
        if update.answer is not None:
            self._view.seen(update.answer.lac)
        if self._view.lac > before:
            return self._piggybacked(position, update.answer)
        fenced = update.answer is not None and update.answer.fenced
        if not (self._changed or fenced or clock.monotonic() - self._read_at >= METADATA_AGE_S):
            return []
        try:
            await self._view.refresh()
        except MetadataUnavailable:
            sometimes("tail: the metadata store is away")
            # Continue with the known metadata: bookies still report new entries.
            self._store_away = True
            await self._context.pause()
            return []
        self._changed, self._store_away, self._read_at = False, False, clock.monotonic()
        if fenced and not self._view.metadata.closed:
            sometimes("tail: waits for a recovery")
            await self._wait_for_recovery()
        return []

    def _piggybacked(self, position: int, answer: LacAnswer | None) -> VerifiedBatches:
        """The valid batches that came with a poll's answer; damaged ones are read again from other replicas."""
        if answer is None or not answer.batches:
            return []
        try:
            return [
                each
                for each in self._fetcher.verified(position, answer.batches)
                if each[0].first_entry_id <= self._view.lac
            ]
        except (InvalidBatch, NewerFormat):
            sometimes("tail: what came along is damaged")
            return []

    async def _wait_for_recovery(self) -> None:
        """Wait for a metadata change while a recovery runs: fenced bookies answer every poll at once."""
        if await self.polls.changed(self._context.settings.tail_wait_ms / 1000):
            self._changed = True
