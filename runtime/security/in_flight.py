"""How many requests each principal has under way at a process, by whatever port they came.

    with under_way.request(principal):    # or Busy
        ...

Whoever has a bound (``max_requests``) has one for all of them together. Pure bookkeeping: nothing here waits.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from tallybook.core.access import Principal
from tallybook.core.errors import Busy

_RETRY_MS: Final = 1_000


class UnderWay:
    """Those of one process: whatever counts requests in it has the same one."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}

    def of(self, principal: Principal) -> int:
        """How many there are, of those that were counted."""
        return self._counts.get(principal.name, 0)

    @contextmanager
    def request(self, principal: Principal) -> Iterator[None]:
        """Count one until the block is left, if its principal has a bound.

        Raises:
            Busy: as many as it may have are under way.
        """
        most = principal.limits.max_requests
        if most is None:
            yield
            return
        count = self.of(principal)
        if count >= most:
            raise Busy(
                f"{count} requests of {principal.name} are under way, and it may have {most}",
                retry_after_ms=_RETRY_MS,
                own_limit=True,
            )
        with self.granted(principal, 1):
            yield

    @contextmanager
    def granted(self, principal: Principal, count: int) -> Iterator[None]:
        """Count ``count`` until the block is left: a part of the bound that somebody else has seen to."""
        name = principal.name
        self._counts[name] = self.of(principal) + count
        try:
            yield
        finally:
            self._counts[name] -= count
            if not self._counts[name]:
                del self._counts[name]
