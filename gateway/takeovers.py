"""Streams and subscriptions that another owner took over recently; the gateway does not take them back at once.

Otherwise two clients that both call with ``take_over`` would fence each other in a loop, and neither would progress.
"""

from __future__ import annotations

from typing import Final

from tallybook.runtime.clock import Clock

LEAVE_ALONE_SECONDS: Final = 10.0
"""How long a lost stream or subscription is not taken back: as long as an owner's session."""


class RecentTakeovers:
    """Names of streams or subscriptions that this gateway lost in the last ``LEAVE_ALONE_SECONDS``."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lost: dict[str, float] = {}
        """The time of each loss."""

    def note(self, name: str) -> bool:
        """Note that another owner took it over; returns whether this was not known yet."""
        news = not self.is_recent(name)
        self._lost[name] = self._clock.monotonic()
        return news

    def is_recent(self, name: str) -> bool:
        """Whether it was lost in the last ``LEAVE_ALONE_SECONDS``."""
        now = self._clock.monotonic()
        self._lost = {each: when for each, when in self._lost.items() if now - when < LEAVE_ALONE_SECONDS}
        return name in self._lost
