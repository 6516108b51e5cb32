"""Services shared by the writers of a client, so that thousands of writers cost its event loop little more than one.

A dying bookie concerns every ledger that is open on it. The work of each writer (timeouts, reconnect, replacement,
missed ranges) is small, but thousands of writers at once would block acks for seconds. So timers and tasks belong to
the client, not to each writer; they are sliced over event loop iterations; and the number of writers that use the
metadata concurrently is limited. A writer has a task of its own only while it replaces a member
(``ensemble_change``), and while it records missed ranges.
"""

from __future__ import annotations

from tallybook.core.settings import ClientSettings
from tallybook.runtime.clock import Clock
from tallybook.runtime.concurrency.loop_slices import SlicedCallbacks
from tallybook.runtime.rng import Rng
from tallybook.runtime.tasks import Tasks

from ..ports import Connections
from .ensemble.connecting import BookieConnector
from .ensemble.lag import ClientLag
from .ensemble.metadata_queue import MetadataQueue
from .ensemble.search_backoff import SearchBackoff
from .explicit_lacs import ExplicitLacs
from .loop_attention import LoopAttention
from .timer import WriterTimer


class SharedWriterServices:
    """The shared services of one client's writers.

    Attributes:
        rng: jitter of pauses.
        attention: the clock by which writers judge their bookies.
        slices: spreads the sending of batches over event loop iterations.
        lag: what writers retain for slow members.
        lacs: schedules explicit LACs.
        connector: connects to bookies.
        metadata: limits concurrent use of the metadata store.
        search_pauses: backoff of searches for replacements.
    """

    def __init__(
        self, connections: Connections, clock: Clock, rng: Rng, tasks: Tasks, settings: ClientSettings
    ) -> None:
        self.rng = rng
        self.attention = LoopAttention(clock)
        self.slices, later = SlicedCallbacks(clock), SlicedCallbacks(clock)
        self.lag = ClientLag()
        self.lacs = ExplicitLacs(clock, later)
        self.connector = BookieConnector(connections, clock, rng, tasks, later, pause_s=settings.reconnect_ms / 1000)
        self.metadata = MetadataQueue()
        self.search_pauses = SearchBackoff()
        period_s = max(min(100, settings.add_timeout_ms // 8, settings.away_timeout_ms // 16), 10) / 1000
        silence_s = settings.add_timeout_ms / 1000
        self._timer, self._urgent_timer = (
            WriterTimer(clock, tasks, self.attention, period_s=period_s, silence_s=silence_s, name=name)
            for name in ("writers' timers", "timers of writers without an ack quorum")
        )

    def timer(self, *, urgent: bool) -> WriterTimer:
        """The writers' timer; writers without an ack quorum have a separate one, so as not to wait for others."""
        return self._urgent_timer if urgent else self._timer
