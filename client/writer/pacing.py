"""Pacing of the background work of all writers of a client, so that many of them do not stall its event loop.

A bookie that dies concerns every ledger that is open on it. What each has to do then (time-outs, another connection, a
replacement, a note of what is missed) is little, and thousands at the same moment are seconds in which no ack is looked
at. So periodic work gets rarer with the number of writers that have some, each at a moment of its own, and only so many
work on the metadata at a time. Writers without an ack quorum wait for each other only, not for those that have one.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from tallybook.runtime.clock import Clock

from .attention import Attention
from .metadata_line import MetadataLine

WORK_S: Final = 400e-6
"""Of the event loop's time, for each writer with periodic work, in one period: several times what it needs."""

LOOK_S: Final = 2e-3
"""The same for a look at who may take a place, which reads the metadata. News or the loss of a quorum end the pause."""

_GOLDEN: Final = 0.6180339887


class BackgroundPacing:
    """How often each writer of one client does its periodic work; shared by them.

    Attributes:
        metadata: whose turn it is to work on the metadata in the background.
    """

    def __init__(self) -> None:
        self.metadata = MetadataLine()
        self._attention: Attention | None = None
        self._active = 0
        """Writers with periodic work."""
        self._urgent = 0
        """Those of them that have no ack quorum."""

    def attention(self, clock: Clock) -> Attention:
        """The time by which the writers judge their bookies. All have the same clock."""
        if self._attention is None:
            self._attention = Attention(clock)
        return self._attention

    @contextmanager
    def waiting(self, *, urgent: bool) -> Iterator[None]:
        """Count a writer that waits for its next period."""
        self._active += 1
        self._urgent += urgent
        try:
            yield
        finally:
            self._active -= 1
            self._urgent -= urgent

    def pause_s(self, least_s: float, ledger_id: int, *, urgent: bool = False, work_s: float = WORK_S) -> float:
        """How long a writer pauses before its next periodic work: ``least_s``, or more where there are very many.

        Args:
            urgent: it has no ack quorum; those that have one do not make it wait.
            work_s: what the work of one writer may take.
        """
        fair_s = (self._urgent if urgent else self._active) * work_s
        if fair_s <= least_s:
            return least_s
        return max(least_s, fair_s * (0.5 + ledger_id * _GOLDEN % 1.0))
