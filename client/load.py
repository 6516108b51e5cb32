"""What a client asks of its bookies, over all connections: how long each took to answer, and what went wrong."""

from __future__ import annotations

from tallybook.runtime.clock import Clock
from tallybook.runtime.histogram import Histogram
from tallybook.runtime.meter import Reading
from tallybook.runtime.metric_catalogue import ErrorCounts


class ClientLoad:
    """The counts of one client.

    Args:
        clock: for how long things take.
    """

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.add_seconds = Histogram()
        """Of each batch and bookie, from its sending to the answer: the bookie's own time, and the network's."""
        self.request_seconds = Histogram()
        """The same of requests; long polls, which wait on purpose, are not among them."""
        self.errors = ErrorCounts()
        """Answered by bookies, or met on the way to them."""
        self.connected = 0
        """Connections that are open."""
        self.connects = 0
        """Attempts to connect."""

    def readings(self) -> dict[str, Reading]:
        """All of it."""
        return {
            "client_add_seconds": self.add_seconds,
            "client_request_seconds": self.request_seconds,
            "client_connections": self.connected,
            "client_connects": self.connects,
            **self.errors.readings("client_errors"),
        }
