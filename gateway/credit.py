"""The credit of an Append stream: what the client may have unacknowledged, and which acks give it back.

    sent(first_entry_id=0, count=2, payload_bytes=100)    600 bytes of the window are taken
    settled(1) -> Ack(0, 2, 600)                          entries 0 and 1 are durable: they come back

Pure: no clock, no waiting. One message of a client is acknowledged as a whole, and acks of messages that are settled at
once become one.
"""

from __future__ import annotations

from collections import deque
from typing import Final, NamedTuple

from tallybook.core.config import GatewaySettings
from tallybook.core.errors import CreditExceeded, check

PAYLOAD_OVERHEAD_BYTES: Final = 256
"""What an unacknowledged payload counts for besides its length: about what it costs in memory."""

SMALLEST_WINDOW_BYTES: Final = 4096
ROOM_PARTS: Final = 8
"""One stream gets at most so small a part of the room that is left."""

RETRY_MS: Final = 100


class Ack(NamedTuple):
    """What is durable since the ack before, and what the client gets back for it."""

    first_entry_id: int
    entry_count: int
    credit_bytes: int


def window_bytes(wanted_bytes: int, settings: GatewaySettings, room_bytes: int) -> int:
    """What a client is given that wants so much; 0: whatever it may have.

    Args:
        room_bytes: what is left for it and for those who come after it: so it gets no more than a part of that.
    """
    most = min(int(settings.credit_bytes), room_bytes // ROOM_PARTS)
    return max(SMALLEST_WINDOW_BYTES, min(wanted_bytes or most, most))


class Credit:
    """The window of one stream.

    Args:
        window_bytes: what may be unacknowledged.
    """

    def __init__(self, window_bytes: int) -> None:
        self.window_bytes = window_bytes
        self.taken_bytes = 0
        self._unacknowledged: deque[Ack] = deque()

    @property
    def max_payload_bytes(self) -> int:
        """The largest payload that fits the window."""
        return self.window_bytes - PAYLOAD_OVERHEAD_BYTES

    def take(self, count: int, payload_bytes: int) -> int:
        """Take room for the payloads of one message; what they cost.

        Raises:
            CreditExceeded: there is not so much left; nothing was taken.
        """
        cost = payload_bytes + count * PAYLOAD_OVERHEAD_BYTES
        if self.taken_bytes + cost > self.window_bytes:
            raise CreditExceeded(
                f"{count} payloads count for {cost} bytes, and {self.window_bytes - self.taken_bytes} of "
                f"{self.window_bytes} bytes of credit are left: wait for acks",
                retry_after_ms=RETRY_MS,
            )
        self.taken_bytes += cost
        return cost

    def sent(self, first_entry_id: int, count: int, cost: int) -> None:
        """The payloads of one message are on their way, as entries from ``first_entry_id`` on."""
        self._unacknowledged.append(Ack(first_entry_id, count, cost))

    def settled(self, last_entry_id: int) -> Ack | None:
        """Everything up to ``last_entry_id`` is durable: what the client is to be told, if anything."""
        line, count, cost = self._unacknowledged, 0, 0
        first = line[0].first_entry_id if line else 0
        while line and line[0].first_entry_id + line[0].entry_count - 1 <= last_entry_id:
            message = line.popleft()
            check(message.first_entry_id == first + count, "messages of one stream follow each other without a gap")
            count += message.entry_count
            cost += message.credit_bytes
        self.taken_bytes -= cost
        return Ack(first, count, cost) if count else None
