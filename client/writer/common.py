"""What the writers of a client do together, so that thousands of them cost its event loop little more than one.

A bookie that dies concerns every ledger that is open on it. What each writer has to do then (time-outs, another
connection, a replacement, a note of what is missed) is little, and thousands at the same moment are seconds in which no
ack is looked at. So timers and tasks are of the client and of its connections, and not of each writer; they work in
slices of the event loop's time; and only so many writers work on the metadata at a time. Of its own a writer has a task
while it looks for a replacement, which mostly waits (``replacing``), and for a moment to note what a member misses.
"""

from __future__ import annotations

from tallybook.core.config import ClientSettings
from tallybook.runtime.clock import Clock
from tallybook.runtime.slices import Slices
from tallybook.runtime.tasks import Tasks

from ..ports import Connections
from .attention import Attention
from .explicit_lacs import ExplicitLacs
from .metadata_line import MetadataLine
from .reaching import Reaching
from .rounds import Rounds
from .search_pauses import SearchPauses


class CommonWork:
    """Shared by the writers of one client.

    Attributes:
        attention: the time by which writers judge their bookies.
        slices: of the event loop's time, for what writers send.
        lacs: calls writers whose LAC nothing has carried yet.
        reaching: connections to bookies that were lost.
        metadata: whose turn it is to work on the metadata in the background.
        search_pauses: of writers that look for bookies to take a place.
    """

    def __init__(self, connections: Connections, clock: Clock, tasks: Tasks, settings: ClientSettings) -> None:
        self.attention = Attention(clock)
        self.slices, later = Slices(clock), Slices(clock)
        self.lacs = ExplicitLacs(clock, later)
        self.reaching = Reaching(connections, clock, tasks, later, pause_s=settings.reconnect_ms / 1000)
        self.metadata = MetadataLine()
        self.search_pauses = SearchPauses()
        period_s = max(min(100, settings.add_timeout_ms // 8, settings.away_timeout_ms // 16), 10) / 1000
        silence_s = settings.add_timeout_ms / 1000
        self._rounds, self._urgent_rounds = (
            Rounds(clock, tasks, self.attention, period_s=period_s, silence_s=silence_s, name=name)
            for name in ("writers' timers", "timers of writers without an ack quorum")
        )

    def rounds(self, *, urgent: bool) -> Rounds:
        """The timer of writers; those without an ack quorum have one of their own, and do not wait for the others."""
        return self._urgent_rounds if urgent else self._rounds
