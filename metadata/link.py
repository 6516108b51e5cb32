"""How the connection to a metadata store does, as its driver knows it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Link:
    """The numbers of one client. A driver that needs no connection leaves them as they are."""

    connected: bool = True
    """Whether the store can be asked now."""
    expiries: int = 0
    """Sessions that the store has ended: what was registered in them is gone."""
