"""Limit of the requests that each principal has in flight at a process, over all ports together.

    with in_flight.request(principal):    # or Busy
        ...

The limit of a principal is ``max_requests`` in its rules. Pure bookkeeping: nothing here waits.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from tallybook.core.access import Principal
from tallybook.core.errors import Busy

_RETRY_MS: Final = 1_000


class RequestsInFlight:
    """Requests in flight of one process, by principal. All ports of the process share one instance."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}

    def of(self, principal: Principal) -> int:
        """Number of counted requests of a principal."""
        return self._counts.get(principal.name, 0)

    @contextmanager
    def request(self, principal: Principal) -> Iterator[None]:
        """Count a request until the block is left, if its principal has a limit.

        Raises:
            Busy: the principal has reached its limit.
        """
        limit = principal.limits.max_requests
        if limit is None:
            yield
            return
        count = self.of(principal)
        if count >= limit:
            raise Busy(
                f"{principal.name} has {count} requests in flight, and its limit is {limit}",
                retry_after_ms=_RETRY_MS,
                own_limit=True,
            )
        with self.granted(principal, 1):
            yield

    @contextmanager
    def granted(self, principal: Principal, count: int) -> Iterator[None]:
        """Count ``count`` requests until the block is left, without a check: the caller has enforced the limit."""
        name = principal.name
        self._counts[name] = self.of(principal) + count
        try:
            yield
        finally:
            self._counts[name] -= count
            if not self._counts[name]:
                del self._counts[name]
