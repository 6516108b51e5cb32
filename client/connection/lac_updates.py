"""LACs of ledgers to which nothing is added, on their way to one bookie.

Those that wait share a message, and only some messages are under way at a time. Of a ledger that waits the newest LAC
is told::

    waiting --sent--> taken
                      refused for now: waits again after a pause, unless a newer one does
                      refused otherwise: dropped, since the bookie takes nothing of this ledger
                      connection lost: its writer hears of it
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, NamedTuple, TypeAlias

from tallybook.core.errors import (
    BookieUnavailable,
    Busy,
    InvalidArgument,
    MetadataUnavailable,
    RequestTimeout,
    TallybookError,
)
from tallybook.core.marks import sometimes
from tallybook.runtime.backoff import Backoff, spread
from tallybook.runtime.clock import Clock
from tallybook.runtime.grpc_messages import LedgerLac, RefusedLac
from tallybook.runtime.rng import Rng
from tallybook.runtime.slices import Slices
from tallybook.runtime.tasks import Tasks
from tallybook.runtime.tracing import under
from tallybook.runtime.wire import MAX_LACS

from .background import defect_of

AT_ONCE: Final = 16
"""Messages that may be under way, or about to be sent again."""

FIRST_PAUSE_SECONDS: Final = 0.05
LONGEST_PAUSE_SECONDS: Final = 5.0
"""Before what was refused for now is told again."""

_FOR_NOW: Final = frozenset(error.wire_code for error in (Busy, MetadataUnavailable, RequestTimeout))

SendLacs: TypeAlias = Callable[[Sequence[LedgerLac]], Awaitable[Sequence[RefusedLac]]]
"""Tells them, in one message, and returns those that were refused.

``InvalidArgument``: the bookie takes one in a message only; another error: none was taken.
"""


class _Told(NamedTuple):
    """A LAC, and whom to call if the connection is lost before it is taken."""

    lac: LedgerLac
    on_lost: Callable[[], None]


class LacLine:
    """Those for one bookie.

    Args:
        name: of the tasks.
    """

    def __init__(self, send: SendLacs, clock: Clock, rng: Rng, tasks: Tasks, name: str) -> None:
        self._send = send
        self._clock = clock
        self._rng = rng
        self._tasks = tasks
        self._name = name
        self._slices = Slices(clock)
        self._waiting: OrderedDict[int, _Told] = OrderedDict()
        self._later: dict[int, _Told] = {}
        """Refused for now; each is put back by the sender that told it, unless a newer one has come."""
        self._senders = 0
        self._in_message = MAX_LACS
        self._ended = False

    def tell(self, lac: LedgerLac, on_lost: Callable[[], None]) -> None:
        """Tell it, as soon as there is room; call ``on_lost``, later, if the connection is lost before it is taken."""
        if self._ended:
            self._slices.soon(on_lost)
            return
        self._later.pop(lac.ledger_id, None)
        self._waiting[lac.ledger_id] = _Told(lac, on_lost)
        if self._senders < AT_ONCE and not self._tasks.closing:
            self._senders += 1
            with under(None):
                sender = self._tasks.spawn(self._run(), name=self._name)
            sender.add_done_callback(defect_of)

    def end(self) -> None:
        """Tell nothing more: the connection is lost."""
        self._ended = True
        untold = [*self._waiting.values(), *self._later.values()]
        self._waiting.clear()
        self._later.clear()
        self._lost(untold)

    def _lost(self, untold: Sequence[_Told]) -> None:
        for each in untold:
            self._slices.soon(each.on_lost)

    async def _run(self) -> None:
        pauses = Backoff(self._rng, first_s=FIRST_PAUSE_SECONDS, longest_s=LONGEST_PAUSE_SECONDS)
        try:
            while self._waiting:
                told = [self._waiting.popitem(last=False)[1] for _ in range(min(len(self._waiting), self._in_message))]
                refused = [each for each in await self._refused(told) if each.code in _FOR_NOW]
                later = [told[each.at] for each in refused if self._is_newest(told[each.at].lac)]
                if self._ended:
                    self._lost(later)
                elif later:
                    sometimes("client: a LAC is told again, after a pause")
                    self._later.update({each.lac.ledger_id: each for each in later})
                    asked_s = min(max(each.retry_after_ms for each in refused) / 1000, LONGEST_PAUSE_SECONDS)
                    await self._clock.sleep(max(pauses.next_s(), 2 * spread(self._rng, asked_s)))
                    self._put_back(later)
                else:
                    pauses.reset()
        finally:
            self._senders -= 1

    async def _refused(self, told: Sequence[_Told]) -> Sequence[RefusedLac]:
        """Send them; which of them were not taken."""
        try:
            return await self._send([each.lac for each in told])
        except BookieUnavailable:
            self._lost(told)
        except InvalidArgument:
            if len(told) > 1:
                self._in_message = 1
                self._waiting = OrderedDict({each.lac.ledger_id: each for each in told}) | self._waiting
        except TallybookError as error:
            return [RefusedLac.of(at, error) for at in range(len(told))]
        return []

    def _is_newest(self, lac: LedgerLac) -> bool:
        """Whether no newer one of its ledger waits: one that was told later may have been refused before."""
        others = (line.get(lac.ledger_id) for line in (self._waiting, self._later))
        return all(other is None or other.lac.lac < lac.lac for other in others)

    def _put_back(self, later: Sequence[_Told]) -> None:
        for each in later:
            ledger_id = each.lac.ledger_id
            if self._later.get(ledger_id) is each:
                self._waiting[ledger_id] = self._later.pop(ledger_id)
