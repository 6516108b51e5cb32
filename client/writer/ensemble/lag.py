"""How much the writers of a client retain for members that are behind, together and each.

Retained bytes count in the client's byte budget, which all its ledgers share. So the limit is for all of them: above
it, the writers that retain the most give up their slowest member, before the budget is used up and every append waits.

    one writer         its limit is the whole one
    four, at 1/4 each  above the whole limit, each may retain the average, and those above it give up
"""

from __future__ import annotations

from typing import Final

_SMALLEST_SHARE: Final = 1 / 512
"""A writer below this part of the limit gives nothing up: thousands of writers with a batch each are not behind."""


class ClientLag:
    """Confirmed bytes retained by all writers of a client, counted once for each member that has not acked them."""

    def __init__(self) -> None:
        self.total_bytes = 0
        self.writers = 0


class WriterLag:
    """The part of one writer.

    Args:
        limit_bytes: bytes that all writers together may retain before any member is given up.
    """

    def __init__(self, client: ClientLag, limit_bytes: int) -> None:
        self._client = client
        self._limit_bytes = limit_bytes
        self._own_bytes = 0
        self._left = False
        client.writers += 1

    @property
    def limit_bytes(self) -> int:
        """Maximum bytes that this writer may retain for one member now."""
        client = self._client
        if client.total_bytes <= self._limit_bytes:
            return self._limit_bytes
        average_bytes = client.total_bytes // max(1, client.writers)
        return min(self._limit_bytes, max(average_bytes, int(self._limit_bytes * _SMALLEST_SHARE)))

    def change(self, by_bytes: int) -> None:
        """Retain more bytes for a member, or fewer."""
        if not self._left:
            self._own_bytes += by_bytes
            self._client.total_bytes += by_bytes

    def leave(self) -> None:
        """The writer has ended, and retains nothing any more; a second call does nothing."""
        if not self._left:
            self._left = True
            self._client.total_bytes -= self._own_bytes
            self._client.writers -= 1
