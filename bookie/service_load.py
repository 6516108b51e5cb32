"""What clients ask of a bookie, over all their streams: requests by kind, how long they took, the errors answered."""

from __future__ import annotations

from typing import Final

from tallybook.runtime.clock import Clock
from tallybook.runtime.grpc_inspection import INSPECTION_ASKS
from tallybook.runtime.meter import Reading
from tallybook.runtime.metric_catalogue import ErrorCounts

from .attached_ledgers import AttachedLedgers

REQUEST_KINDS: Final = (
    *("ReadBatches", "ReadEntry", "ReadLac", "WaitLac", "Fence", "RecoveryRead", "RecoveryAdd", "WriteLac"),
    *("WriteLacs", "Force"),
    *(ask.__name__ for ask in INSPECTION_ASKS),
)
"""Every kind of request on the lanes that answer each; one that a newer client knows counts as none of them."""


class ServiceLoad:
    """The counts of one bookie."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.attached = AttachedLedgers(clock)
        self.errors = ErrorCounts()
        """Answered to adds and requests, and to streams that were refused."""
        self._requests = dict.fromkeys(REQUEST_KINDS, 0)
        self._seconds = dict.fromkeys(REQUEST_KINDS, 0.0)

    def served(self, kind: str, began: float) -> None:
        """A request that began at ``began`` was answered, or nobody waits for its answer any more."""
        if kind in self._requests:
            self._requests[kind] += 1
            self._seconds[kind] += self.clock.monotonic() - began

    def readings(self) -> dict[str, Reading]:
        """All of it."""
        return {
            **{f"requests_{kind}": count for kind, count in self._requests.items()},
            **{f"request_seconds_{kind}": seconds for kind, seconds in self._seconds.items()},
            **self.errors.readings("errors"),
        }
