"""Watch object returned by every driver: notifies that there may be a change.

Drivers call ``notify``; the holder awaits ``changed``. Notifications without a waiter are merged into one, so a slow
holder costs nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from tallybook.core.errors import MetadataUnavailable


class Wakeup:
    """Implements both ``LedgerWatch`` and ``MembershipWatch``.

    Args:
        what: the watched object, for messages.
        forget: called once when the watch is closed, so that the driver removes it.
    """

    def __init__(self, what: str, forget: Callable[[Wakeup], None]) -> None:
        self._what = what
        self._forget = forget
        self._event = asyncio.Event()
        self._closed = False

    def notify(self) -> None:
        """Let ``changed`` return once. Called on the event loop."""
        self._event.set()

    async def changed(self) -> None:
        """Return once there may have been a change since the last return.

        Raises:
            MetadataUnavailable: the watch, or the client it belongs to, is closed.
        """
        await self._event.wait()
        if self._closed:
            raise MetadataUnavailable(f"the watch on {self._what} is closed")
        self._event.clear()

    async def close(self) -> None:
        """Stop watching; a call waiting in ``changed`` gets its error."""
        self.end()

    def end(self) -> None:
        """Same as ``close``, for drivers that are closing."""
        if not self._closed:
            self._closed = True
            self._forget(self)
            self._event.set()
