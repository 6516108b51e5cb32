"""Ends the process when the bookie can no longer keep its promises."""

from __future__ import annotations

from collections.abc import Callable


class FailSafe:
    """Ends the process, once, and keeps the reason.

    Args:
        end_node: does not return in a real process; where it does (simulation, tests), the
            listeners make sure that nothing is acked any more.
    """

    def __init__(self, end_node: Callable[[str], None]) -> None:
        self._end_node = end_node
        self._listeners: list[Callable[[], None]] = []
        self.reason = ""

    def on_trip(self, listener: Callable[[], None]) -> None:
        """Also call ``listener``, in case ``end_node`` returns."""
        self._listeners.append(listener)

    def trip(self, reason: str) -> None:
        """End the process."""
        if self.reason:
            return
        self.reason = reason
        self._end_node(reason)
        for listener in self._listeners:
            listener()
