"""How much the writers of a client retain for members that are behind, together and each.

Retained bytes count in the client's byte budget, which all its ledgers share. So the limit is for all of them: above
it, the writers that retain the most give up their slowest member, before the budget is used up and every append waits.
"""

from __future__ import annotations


class ClientLag:
    """Bytes of confirmed batches that all writers of a client retain, and how many of the writers retain any."""

    def __init__(self) -> None:
        self.total_bytes = 0
        self.writers = 0


class WriterLag:
    """The part of one writer.

    Args:
        limit_bytes: bytes that all writers together may retain before a slow member is given up.
    """

    def __init__(self, client: ClientLag, limit_bytes: int) -> None:
        self._client = client
        self._limit_bytes = limit_bytes
        self._own_bytes = 0
        self._left = False

    @property
    def above_limit(self) -> bool:
        """Whether all writers retain more than the limit, and this one at least the average of those that do."""
        client = self._client
        return client.total_bytes > self._limit_bytes and self._own_bytes * client.writers >= client.total_bytes

    def change(self, by_bytes: int) -> None:
        """Retain more bytes, or fewer."""
        if self._left:
            return
        client, before = self._client, self._own_bytes
        self._own_bytes = before + by_bytes
        client.total_bytes += by_bytes
        client.writers += (self._own_bytes > 0) - (before > 0)

    def leave(self) -> None:
        """The writer has ended, and retains nothing any more; a second call does nothing."""
        self.change(-self._own_bytes)
        self._left = True
