"""Sends explicit LACs of idle ledgers to one bookie.

Queued LACs share a message, and the number of messages in flight is limited. Of each ledger only the newest LAC is
sent::

    queued --sent--> taken
                     refused for now: queued again after a pause, unless a newer one is queued
                     refused otherwise: dropped, since the bookie takes nothing of this ledger
                     connection lost: the writer is notified
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, NamedTuple, TypeAlias

from tallybook.core.coverage import sometimes
from tallybook.core.errors import (
    BookieUnavailable,
    Busy,
    InvalidArgument,
    MetadataUnavailable,
    RequestTimeout,
    TallybookError,
)
from tallybook.runtime.clock import Clock
from tallybook.runtime.concurrency.backoff import Backoff, lengthened
from tallybook.runtime.concurrency.loop_slices import SlicedCallbacks
from tallybook.runtime.rng import Rng
from tallybook.runtime.tasks import Tasks
from tallybook.runtime.tracing.port import under
from tallybook.wire.batches import MAX_LACS
from tallybook.wire.messages import LedgerLac, RefusedLac

from ..background import defect_of

MAX_IN_FLIGHT: Final = 16
"""Messages in flight, or waiting to be sent again."""

FIRST_PAUSE_SECONDS: Final = 0.05
LONGEST_PAUSE_SECONDS: Final = 5.0
"""Pause before LACs that were refused for now are sent again."""

_FOR_NOW: Final = frozenset(error.wire_code for error in (Busy, MetadataUnavailable, RequestTimeout))

SendLacs: TypeAlias = Callable[[Sequence[LedgerLac]], Awaitable[Sequence[RefusedLac]]]
"""Sends LACs in one message and returns the refused ones.

``InvalidArgument``: the bookie takes only one in a message; another error: none was taken.
"""


class _PendingLac(NamedTuple):
    """A LAC, and the callback for a connection lost before it is taken."""

    lac: LedgerLac
    on_lost: Callable[[], None]


class LacSender:
    """Queues and sends the explicit LACs for one bookie.

    Args:
        name: name of its tasks.
    """

    def __init__(self, send: SendLacs, clock: Clock, rng: Rng, tasks: Tasks, name: str) -> None:
        self._send = send
        self._clock = clock
        self._rng = rng
        self._tasks = tasks
        self._name = name
        self._slices = SlicedCallbacks(clock)
        self._waiting: OrderedDict[int, _PendingLac] = OrderedDict()
        self._later: dict[int, _PendingLac] = {}
        """LACs refused for now; the task that sent one queues it again, unless a newer one was queued."""
        self._senders = 0
        self._in_message = MAX_LACS
        self._ended = False

    def queue(self, lac: LedgerLac, on_lost: Callable[[], None]) -> None:
        """Queue a LAC; ``on_lost`` is called, later, if the connection is lost before it is taken."""
        if self._ended:
            self._slices.soon(on_lost)
            return
        self._later.pop(lac.ledger_id, None)
        self._waiting[lac.ledger_id] = _PendingLac(lac, on_lost)
        if self._senders < MAX_IN_FLIGHT and not self._tasks.closing:
            self._senders += 1
            with under(None):
                sender = self._tasks.spawn(self._run(), name=self._name)
            sender.add_done_callback(defect_of)

    def end(self) -> None:
        """Stop: the connection is lost."""
        self._ended = True
        unsent = [*self._waiting.values(), *self._later.values()]
        self._waiting.clear()
        self._later.clear()
        self._lost(unsent)

    def _lost(self, unsent: Sequence[_PendingLac]) -> None:
        for each in unsent:
            self._slices.soon(each.on_lost)

    async def _run(self) -> None:
        pauses = Backoff(self._clock, self._rng, first_s=FIRST_PAUSE_SECONDS, longest_s=LONGEST_PAUSE_SECONDS)
        try:
            while self._waiting:
                sent = [self._waiting.popitem(last=False)[1] for _ in range(min(len(self._waiting), self._in_message))]
                refused = [each for each in await self._refused(sent) if each.code in _FOR_NOW]
                later = [sent[each.at] for each in refused if self._is_newest(sent[each.at].lac)]
                if self._ended:
                    self._lost(later)
                elif later:
                    sometimes("client: a LAC is sent again, after a pause")
                    self._later.update({each.lac.ledger_id: each for each in later})
                    asked_s = min(max(each.retry_after_ms for each in refused) / 1000, LONGEST_PAUSE_SECONDS)
                    await self._clock.sleep(max(pauses.next_s(), lengthened(self._rng, asked_s)))
                    self._put_back(later)
                else:
                    pauses.reset()
        finally:
            self._senders -= 1

    async def _refused(self, sent: Sequence[_PendingLac]) -> Sequence[RefusedLac]:
        """Send LACs; return those that were not taken."""
        try:
            return await self._send([each.lac for each in sent])
        except BookieUnavailable:
            self._lost(sent)
        except InvalidArgument:
            if len(sent) > 1:
                self._in_message = 1
                self._waiting = OrderedDict({each.lac.ledger_id: each for each in sent}) | self._waiting
        except TallybookError as error:
            return [RefusedLac.of(at, error) for at in range(len(sent))]
        return []

    def _is_newest(self, lac: LedgerLac) -> bool:
        """Whether no newer LAC of its ledger is queued: a later one may have been refused earlier."""
        others = (line.get(lac.ledger_id) for line in (self._waiting, self._later))
        return all(other is None or other.lac.lac < lac.lac for other in others)

    def _put_back(self, later: Sequence[_PendingLac]) -> None:
        for each in later:
            ledger_id = each.lac.ledger_id
            if self._later.get(ledger_id) is each:
                self._waiting[ledger_id] = self._later.pop(ledger_id)
