"""Appends on their way: one group per batch, one light awaitable per entry.

A future per entry would cost more than everything else a client does for it. Entries that
travel in one batch are confirmed together, so they share one ``AppendGroup``; what ``append``
hands out only remembers its group and its place in it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from typing import Any

from tallybook.core.errors import TallybookError
from tallybook.core.limits import BATCH_TABLE_ROW_BYTES


class Together:
    """Appends that are settled together, with one outcome."""

    __slots__ = ("_callbacks", "_waiters", "done", "error")

    def __init__(self) -> None:
        self.done = False
        self.error: TallybookError | None = None
        self._waiters: list[asyncio.Future[None]] = []
        self._callbacks: list[Callable[[Any], None]] = []

    def complete(self, error: TallybookError | None = None) -> None:
        """Settle all of them, once."""
        self.done, self.error = True, error
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)
        if self._callbacks:
            loop = asyncio.get_running_loop()
            for callback in self._callbacks:
                # Not from here: what it raises must not keep the writer from what it has to do next.
                loop.call_soon(callback, self)
        self._waiters, self._callbacks = [], []

    def on_complete(self, callback: Callable[[Any], None]) -> None:
        """Call back on the event loop when they are settled; at once if they are."""
        if self.done:
            callback(self)
        else:
            self._callbacks.append(callback)

    async def wait(self) -> None:
        """Return when they are settled. Cancelling the wait takes nothing back."""
        if not self.done:
            # One future per waiter: cancelling one of them must not cancel the others.
            waiter = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            await waiter


class AppendGroup(Together):
    """The entries of one batch, from the first append to the confirmation.

    The group *is* the batch: when it is sealed its boundaries are final.
    """

    __slots__ = ("_sealed_count", "first_entry_id", "held_bytes", "payloads", "sealed_at")

    def __init__(self, first_entry_id: int) -> None:
        super().__init__()
        self.first_entry_id = first_entry_id
        self.payloads: list[bytes] = []
        self.held_bytes = 0
        """What the entries take in a batch, and count for in the client's budget."""
        self.sealed_at = 0.0
        """Monotonic second; of a group that is not sealed yet, nothing."""
        self._sealed_count = 0

    @property
    def entry_count(self) -> int:
        """Entries gathered so far, or sealed."""
        return self._sealed_count or len(self.payloads)

    @property
    def last_entry_id(self) -> int:
        """Id of the last entry gathered."""
        return self.first_entry_id + self.entry_count - 1

    @property
    def payload_bytes(self) -> int:
        """Payload bytes of all entries."""
        return self.held_bytes - self.entry_count * BATCH_TABLE_ROW_BYTES

    def add(self, payload: bytes) -> PendingAppend:
        """Gather one more entry."""
        payloads = self.payloads
        pending = PendingAppend(self, self.first_entry_id + len(payloads))
        payloads.append(payload)
        self.held_bytes += len(payload) + BATCH_TABLE_ROW_BYTES
        return pending

    def seal(self) -> None:
        """The encoded batch took the payloads over: let them go."""
        self._sealed_count = len(self.payloads)
        self.payloads = []


class PendingAppend:
    """One append on its way. Await it for the entry id, once the entry is confirmed.

    It may be awaited any number of times, or never: the entry is written all the same.
    """

    __slots__ = ("entry_id", "group")

    def __init__(self, group: AppendGroup, entry_id: int) -> None:
        self.group = group
        self.entry_id = entry_id

    def __await__(self) -> Generator[object, None, int]:
        group = self.group
        if not group.done:
            yield from group.wait().__await__()
        if group.error is not None:
            raise group.error.with_traceback(None)
        return self.entry_id

    @property
    def done(self) -> bool:
        """Whether the append is settled, either way."""
        return self.group.done

    async def settled(self) -> None:
        """Return once the append is settled; ``outcome`` tells how."""
        await self.group.wait()

    def outcome(self) -> int:
        """The entry id, once the append is settled; for whoever cannot await it.

        Raises:
            LedgerClosed, LedgerFenced, ...: it has failed.
        """
        if self.group.error is not None:
            raise self.group.error.with_traceback(None)
        return self.entry_id
