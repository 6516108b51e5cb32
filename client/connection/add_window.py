"""How much of the credit of an Add stream a client uses: less when it is refused for want of room, more as it is not.

    BUSY ----> half of it, down to LEAST_BYTES; one batch at a time goes in any case
    taken ---> STEP_BYTES more for each whole window, up to the credit

What does not fit waits for its turn; while the window is reduced no more than another one of it, for a bookie that is
slow must not seem to be gone to a writer that counts the time since it gave its batch. What may not wait is refused
here, as the bookie would refuse it.

A batch that is refused has been sent, received and summed up in vain, and what has arrived and waits to be looked at is
memory of the bookie. A bookie that is asked for more than it can do would have a whole credit of every client there.
Additive increase and multiplicative decrease, as TCP has them, share its room evenly.
"""

from __future__ import annotations

from typing import Final

from tallybook.core.limits import KIB

LEAST_BYTES: Final = 128 * KIB
STEP_BYTES: Final = 32 * KIB
"""In an overload in which everybody has room for one batch, each client tries for a second one, which is refused: the
more often, the larger this is. From the least to a whole credit of 4 MiB it is a hundred windows, about a second."""


class AddWindow:
    """That of one stream.

    Args:
        credit_bytes: what the bookie grants.
    """

    def __init__(self, credit_bytes: int) -> None:
        self._credit_bytes = credit_bytes
        self._size_bytes = credit_bytes
        self._sent_before = 0

    @property
    def size_bytes(self) -> int:
        """How many may be unanswered."""
        return self._size_bytes

    def fits(self, unanswered_bytes: int, cost_bytes: int) -> bool:
        """Whether one more batch may go."""
        return unanswered_bytes + cost_bytes <= (self._size_bytes if unanswered_bytes else self._credit_bytes)

    def may_wait(self, before_bytes: int, cost_bytes: int) -> bool:
        """Whether one more batch may wait until it fits.

        Args:
            before_bytes: of those that are unanswered, and those that wait already.
            cost_bytes: of the batch.
        """
        return self._size_bytes == self._credit_bytes or before_bytes + cost_bytes <= 2 * self._size_bytes

    def refused(self, number: int, sent: int) -> None:
        """A batch was refused for want of room. Those that were under way with it say nothing new.

        Args:
            number: that of the batch.
            sent: that of the last one that was sent.
        """
        if number <= self._sent_before:
            return
        self._sent_before = sent
        self._size_bytes = min(max(self._size_bytes // 2, LEAST_BYTES), self._credit_bytes)

    def taken(self, cost_bytes: int) -> None:
        """A batch was taken."""
        if self._size_bytes < self._credit_bytes:
            grown = self._size_bytes + STEP_BYTES * cost_bytes // self._size_bytes + 1
            self._size_bytes = min(grown, self._credit_bytes)
