"""Flow-control credit of an Append call: how many bytes may be unacknowledged, and which acks return them.

    take(count=2, payload_bytes=100) -> 612           612 bytes of the window are used
    sent(first_entry_id=0, count=2, cost=612)
    confirmed(1) -> CreditAck(0, 2, 612)              entries 0 and 1 are durable: the credit is returned

Pure: no clock, no waiting. One message of a client is acknowledged as a whole; messages confirmed together share one
ack.
"""

from __future__ import annotations

from collections import deque
from typing import Final, NamedTuple

from tallybook.core.errors import CreditExceeded, check
from tallybook.core.settings import GatewaySettings

PAYLOAD_OVERHEAD_BYTES: Final = 256
"""Overhead counted for each unacknowledged payload, about what it costs in memory."""

MIN_WINDOW_BYTES: Final = 4096
MAX_WINDOW_DIVISOR: Final = 8
"""A call gets at most this fraction (1/8) of the free memory as its window, to leave memory for later calls."""

RETRY_MS: Final = 100


class CreditAck(NamedTuple):
    """Entries that became durable since the previous ack, and the credit that the client gets back."""

    first_entry_id: int
    entry_count: int
    credit_bytes: int


def window_bytes(wanted_bytes: int, settings: GatewaySettings, free_bytes: int) -> int:
    """The credit window of a call.

    Args:
        wanted_bytes: the window that the client asked for; 0: the largest allowed.
        free_bytes: memory left for this call and later ones; the window is at most a fraction of it.
    """
    limit = min(int(settings.credit_bytes), free_bytes // MAX_WINDOW_DIVISOR)
    return max(MIN_WINDOW_BYTES, min(wanted_bytes or limit, limit))


class Credit:
    """The credit window of one call.

    Args:
        window_bytes: how much may be unacknowledged.
    """

    def __init__(self, window_bytes: int) -> None:
        self.window_bytes = window_bytes
        self.taken_bytes = 0
        self._unacknowledged: deque[CreditAck] = deque()

    @property
    def max_payload_bytes(self) -> int:
        """The largest payload that fits the window."""
        return self.window_bytes - PAYLOAD_OVERHEAD_BYTES

    def take(self, count: int, payload_bytes: int) -> int:
        """Take credit for the payloads of one message; returns their cost in bytes.

        Raises:
            CreditExceeded: not enough credit is left; nothing was taken.
        """
        cost = payload_bytes + count * PAYLOAD_OVERHEAD_BYTES
        if self.taken_bytes + cost > self.window_bytes:
            raise CreditExceeded(
                f"{count} payloads need {cost} bytes of credit, and {self.window_bytes - self.taken_bytes} of "
                f"{self.window_bytes} are left: wait for acks",
                retry_after_ms=RETRY_MS,
            )
        self.taken_bytes += cost
        return cost

    def sent(self, first_entry_id: int, count: int, cost: int) -> None:
        """Note that the payloads of one message were sent as entries from ``first_entry_id`` on."""
        self._unacknowledged.append(CreditAck(first_entry_id, count, cost))

    def confirmed(self, last_entry_id: int) -> CreditAck | None:
        """Note that all entries up to ``last_entry_id`` are durable; returns the ack to send, if any."""
        line, count, cost = self._unacknowledged, 0, 0
        first = line[0].first_entry_id if line else 0
        while line and line[0].first_entry_id + line[0].entry_count - 1 <= last_entry_id:
            message = line.popleft()
            check(message.first_entry_id == first + count, "messages of one stream follow each other without a gap")
            count += message.entry_count
            cost += message.credit_bytes
        self.taken_bytes -= cost
        return CreditAck(first, count, cost) if count else None
