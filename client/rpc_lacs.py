"""LACs of ledgers to which nothing is added, on their way to one bookie.

Those that wait share a message, and only some messages are under way at a time. Of a ledger that waits the newest LAC
is told. What is not taken is not told again: the next batch of the ledger, or its close, carries it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeAlias

from tallybook.core.errors import InvalidArgument, TallybookError
from tallybook.runtime.grpc_messages import LedgerLac
from tallybook.runtime.tasks import Tasks
from tallybook.runtime.tracing import under
from tallybook.runtime.wire import MAX_LACS

from .background import defect_of

AT_ONCE: Final = 16
"""Messages that may be under way."""

SendLacs: TypeAlias = Callable[[Sequence[LedgerLac]], Awaitable[None]]
"""Tells them, in one message; ``InvalidArgument``: the bookie takes one in a message only."""


class LacLine:
    """Those for one bookie.

    Args:
        name: of the tasks.
    """

    def __init__(self, send: SendLacs, tasks: Tasks, name: str) -> None:
        self._send = send
        self._tasks = tasks
        self._name = name
        self._waiting: OrderedDict[int, LedgerLac] = OrderedDict()
        self._senders = 0
        self._in_message = MAX_LACS

    def tell(self, lac: LedgerLac) -> None:
        """Tell it, as soon as there is room."""
        self._waiting[lac.ledger_id] = lac
        if self._senders < AT_ONCE and not self._tasks.closing:
            self._senders += 1
            with under(None):
                sender = self._tasks.spawn(self._run(), name=self._name)
            sender.add_done_callback(defect_of)

    def end(self) -> None:
        """Tell nothing more: the connection is lost."""
        self._waiting.clear()

    async def _run(self) -> None:
        try:
            while self._waiting:
                lacs = [self._waiting.popitem(last=False)[1]
                        for _ in range(min(len(self._waiting), self._in_message))]  # fmt: skip
                try:
                    await self._send(lacs)
                except InvalidArgument:
                    if len(lacs) > 1:
                        self._in_message = 1
                        self._waiting = OrderedDict({lac.ledger_id: lac for lac in lacs}) | self._waiting
                except TallybookError:
                    continue
        finally:
            self._senders -= 1
