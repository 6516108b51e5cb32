"""Since when ledgers wait for the archive.

Metadata say when a ledger was created, and not when it was closed. So what an offloader has not seen waiting before
waits since now. Of what is there when it looks for the first time it cannot tell, and takes the longest that may be:
a backlog does not become young because another offloader leads, or the same one again. Pure: whoever looks says what
time it is.
"""

from __future__ import annotations

from collections.abc import Iterable

from tallybook.core.config import OffloadSettings
from tallybook.metadata.model import LedgerMetadata

from .policy import lets_go_at_ms


class WaitingSince:
    """When each ledger that waits was seen waiting first."""

    def __init__(self, settings: OffloadSettings) -> None:
        self._settings = settings
        self._since_ms: dict[int, int] | None = None

    def forget(self) -> None:
        """Look for the first time again: what waits now may have come while nobody looked here."""
        self._since_ms = None

    def look(self, waiting: Iterable[LedgerMetadata], now_ms: int) -> int:
        """Take what waits now, and forget the rest; for how many seconds the oldest has waited."""
        known = self._since_ms
        self._since_ms = {
            metadata.ledger_id: min(now_ms, lets_go_at_ms(metadata, self._settings))
            if known is None
            else known.get(metadata.ledger_id, now_ms)
            for metadata in waiting
        }
        return (now_ms - min(self._since_ms.values(), default=now_ms)) // 1000
