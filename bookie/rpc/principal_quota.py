"""What each principal may take of a bookie: its streams share the bytes and requests that it is allowed.

    unlimited          every stream gets what a bookie grants anybody
    max_bytes, ...     a stream is granted a quarter of what is left, and is refused where that is too little

The grant holds while the stream lasts, and the stream keeps to it as to any credit, so all streams of a principal
together never have more under way than it is allowed. Pure bookkeeping: nothing here waits.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, NamedTuple

from tallybook.core.access import Principal
from tallybook.core.errors import Busy
from tallybook.core.limits import MAX_BATCH_BYTES
from tallybook.runtime.transport import Lane
from tallybook.runtime.under_way import UnderWay
from tallybook.runtime.wire import MAX_ADD_COST_BYTES

LEAST_BYTES: Final = MAX_ADD_COST_BYTES + MAX_BATCH_BYTES
"""Of a stream: any one batch fits its credit, and an answer brings one batch and a piece of the next."""
LEAST_REQUESTS: Final = 4
_PART: Final = 4
_RETRY_MS: Final = 1_000


class Share(NamedTuple):
    """What one stream may have under way."""

    credit_bytes: int
    """Of batches that were sent and are not answered."""
    answer_bytes: int
    """Of answers that are read, or wait to be sent."""
    requests: int
    waits: int
    """Long polls."""


@dataclass(slots=True)
class _Taken:
    """What the streams of a principal have, besides requests."""

    streams: int = 0
    bytes: int = 0


class Shares:
    """What is taken of one bookie, by principals that are not to take all of it.

    Args:
        most: what a stream is granted of which nobody counts.
        under_way: what is asked of the process, where it is asked elsewhere, too.
    """

    def __init__(self, most: Share, under_way: UnderWay | None = None) -> None:
        self._most = most
        self._under_way = under_way or UnderWay()
        self._taken: dict[str, _Taken] = {}

    @contextmanager
    def share(self, principal: Principal, lane: Lane) -> Iterator[Share]:
        """What a stream may take until the block is left.

        Raises:
            Busy: its principal has too little left.
        """
        limits = principal.limits
        if limits.max_bytes is None and limits.max_requests is None:
            yield self._most
            return
        taken = self._taken.setdefault(principal.name, _Taken())
        taken.streams += 1
        size = 0
        try:
            # Both kinds of bytes are under way on a Control stream, one of them on the others.
            kinds = 2 if lane is Lane.CONTROL else 1
            each = self._granted(principal, "bytes", limits.max_bytes, taken.bytes, LEAST_BYTES * kinds) // kinds
            asked = self._under_way.of(principal)
            asks = self._granted(principal, "requests", limits.max_requests, asked, LEAST_REQUESTS)
            share = self._cut(each, asks)
            size = kinds * max(share.credit_bytes, share.answer_bytes)
            taken.bytes += size
            # Long polls are requests, too.
            with self._under_way.granted(principal, share.requests + share.waits):
                yield share
        finally:
            taken.streams -= 1
            taken.bytes -= size
            if not taken.streams:
                del self._taken[principal.name]

    @staticmethod
    def _granted(principal: Principal, what: str, most: int | None, taken: int, least: int) -> int:
        if most is None:
            return 1 << 60
        granted = (most - taken) // _PART
        if granted < least:
            raise Busy(
                f"{principal.name} may have {most} {what} under way; {taken} of these are taken, and one more stream "
                f"would get too few",
                retry_after_ms=_RETRY_MS,
            )
        return granted

    def _cut(self, each_bytes: int, requests: int) -> Share:
        most = self._most
        return Share(
            min(most.credit_bytes, each_bytes),
            min(most.answer_bytes, each_bytes),
            min(most.requests, requests // 2),
            min(most.waits, requests - requests // 2),
        )
