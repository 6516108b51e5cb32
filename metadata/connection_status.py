"""Status of the connection to a metadata store, maintained by its driver."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class ConnectionStatus:
    """Connection status of one client. Drivers without a connection leave the defaults."""

    connected: bool = True
    """Whether the store is reachable."""
    expiries: int = 0
    """Sessions that the store has expired; their registrations are gone."""
