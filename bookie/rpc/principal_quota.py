"""Per-principal quota: the streams of one principal share its allowed bytes and requests.

    unlimited          every stream gets the bookie's default
    max_bytes, ...     a stream gets a quarter of what is left, and is refused if that is too little

A grant lasts as long as the stream, which keeps to it as to any credit; so all streams of a principal together never
have more in flight than allowed. Pure bookkeeping: nothing here waits.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, NamedTuple

from tallybook.core.access import Principal
from tallybook.core.errors import Busy
from tallybook.core.limits import MAX_BATCH_BYTES
from tallybook.runtime.security.in_flight import RequestsInFlight
from tallybook.wire.batches import MAX_ADD_COST_BYTES
from tallybook.wire.lanes import Lane

MIN_STREAM_BYTES: Final = MAX_ADD_COST_BYTES + MAX_BATCH_BYTES
"""Minimum of a stream: its credit fits any one batch, and an answer fits one batch and a piece of the next."""
MIN_STREAM_REQUESTS: Final = 4
_PART: Final = 4
_RETRY_MS: Final = 1_000


class StreamQuota(NamedTuple):
    """Limits of what one stream has in flight."""

    credit_bytes: int
    """Bytes of batches that are sent and not answered."""
    answer_bytes: int
    """Bytes of answers that are being read or wait to be sent."""
    requests: int
    waits: int
    """Long polls."""


@dataclass(slots=True)
class _PrincipalUsage:
    """Quotas granted to the streams of a principal, apart from requests."""

    streams: int = 0
    bytes: int = 0


class PrincipalQuotas:
    """Grants of one bookie to principals with a quota.

    Args:
        unlimited: the grant of a stream without a quota.
        in_flight: counter of requests, if shared with other services of the process.
    """

    def __init__(self, unlimited: StreamQuota, in_flight: RequestsInFlight | None = None) -> None:
        self._unlimited = unlimited
        self._in_flight = in_flight or RequestsInFlight()
        self._taken: dict[str, _PrincipalUsage] = {}

    @contextmanager
    def share(self, principal: Principal, lane: Lane) -> Iterator[StreamQuota]:
        """The grant of a stream, held until the block ends.

        Raises:
            Busy: its principal has too little left.
        """
        limits = principal.limits
        if limits.max_bytes is None and limits.max_requests is None:
            yield self._unlimited
            return
        taken = self._taken.setdefault(principal.name, _PrincipalUsage())
        taken.streams += 1
        size = 0
        try:
            # A Control stream uses both kinds of bytes, the other streams one.
            kinds = 2 if lane is Lane.CONTROL else 1
            each = self._granted(principal, "bytes", limits.max_bytes, taken.bytes, MIN_STREAM_BYTES * kinds) // kinds
            asked = self._in_flight.of(principal)
            asks = self._granted(principal, "requests", limits.max_requests, asked, MIN_STREAM_REQUESTS)
            share = self._cut(each, asks)
            size = kinds * max(share.credit_bytes, share.answer_bytes)
            taken.bytes += size
            # Long polls are requests, too.
            with self._in_flight.granted(principal, share.requests + share.waits):
                yield share
        finally:
            taken.streams -= 1
            taken.bytes -= size
            if not taken.streams:
                del self._taken[principal.name]

    @staticmethod
    def _granted(principal: Principal, what: str, limit: int | None, taken: int, least: int) -> int:
        if limit is None:
            return 1 << 60
        granted = (limit - taken) // _PART
        if granted < least:
            raise Busy(
                f"{principal.name} may have {limit} {what} in flight; {taken} of these are taken, "
                f"and too few are left for one more stream",
                retry_after_ms=_RETRY_MS,
            )
        return granted

    def _cut(self, each_bytes: int, requests: int) -> StreamQuota:
        unlimited = self._unlimited
        return StreamQuota(
            min(unlimited.credit_bytes, each_bytes),
            min(unlimited.answer_bytes, each_bytes),
            min(unlimited.requests, requests // 2),
            min(unlimited.waits, requests - requests // 2),
        )
