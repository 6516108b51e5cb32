"""The send window of an Add stream: additive increase, multiplicative decrease (AIMD, as in TCP).

    BUSY ----> half of it, down to MIN_WINDOW_BYTES; one batch at a time is sent in any case
    acked ---> STEP_BYTES more for each whole window, up to the credit

Batches that do not fit are queued. While the window is reduced, at most one more window is queued, so that a slow
bookie does not seem dead to a writer that measures from when it queued the batch. Further batches are refused here, as
the bookie would refuse them.

Reason: a refused batch was sent, received and checksummed for nothing, and unprocessed batches take the bookie's
memory. An overloaded bookie would hold a whole credit of every client. AIMD shares its capacity evenly.
"""

from __future__ import annotations

from typing import Final

from tallybook.core.limits import KIB

MIN_WINDOW_BYTES: Final = 128 * KIB
STEP_BYTES: Final = 32 * KIB
"""A larger step makes clients of an overloaded bookie probe, and be refused, more often. At this step, growing from the
minimum to a credit of 4 MiB takes a hundred windows, about a second."""


class AddWindow:
    """The send window of one Add stream.

    Args:
        credit_bytes: bytes that the bookie allows to be unanswered.
    """

    def __init__(self, credit_bytes: int) -> None:
        self._credit_bytes = credit_bytes
        self._size_bytes = credit_bytes
        self._sent_before = 0

    @property
    def size_bytes(self) -> int:
        """Bytes that may be unanswered."""
        return self._size_bytes

    def fits(self, unanswered_bytes: int, cost_bytes: int) -> bool:
        """Whether one more batch may be sent."""
        return unanswered_bytes + cost_bytes <= (self._size_bytes if unanswered_bytes else self._credit_bytes)

    def may_wait(self, before_bytes: int, cost_bytes: int) -> bool:
        """Whether one more batch may be queued.

        Args:
            before_bytes: cost of the unanswered and the queued batches.
            cost_bytes: cost of the batch.
        """
        return self._size_bytes == self._credit_bytes or before_bytes + cost_bytes <= 2 * self._size_bytes

    def refused(self, number: int, sent: int) -> None:
        """A batch was answered with Busy. Batches that were in flight with it do not reduce the window again.

        Args:
            number: the batch's number.
            sent: the number of the last batch that was sent.
        """
        if number <= self._sent_before:
            return
        self._sent_before = sent
        self._size_bytes = min(max(self._size_bytes // 2, MIN_WINDOW_BYTES), self._credit_bytes)

    def taken(self, cost_bytes: int) -> None:
        """A batch was acked."""
        if self._size_bytes < self._credit_bytes:
            grown = self._size_bytes + STEP_BYTES * cost_bytes // self._size_bytes + 1
            self._size_bytes = min(grown, self._credit_bytes)
