"""Around every call of a gateway: counting, and the status of an error."""

from __future__ import annotations

import asyncio

from tallybook.core.errors import (
    Busy,
    CreditExceeded,
    Fault,
    InvariantViolation,
    ReaderTooSlow,
    TallybookError,
    is_defect,
)
from tallybook.runtime.calls import Call, CallerGone, CallHandler
from tallybook.runtime.logging import logger

from .errors import status_of
from .metrics import CallCounts

_log = logger("gateway")


def counted(method: str, handler: CallHandler, counts: CallCounts) -> CallHandler:
    """The handler as the network calls it: its errors become statuses, and what passes is counted."""

    async def serve(call: Call) -> None:
        counts.calls += 1
        counts.open += 1
        try:
            await handler(_CountedCall(call, counts))
        except (asyncio.CancelledError, CallerGone):
            counts.cancelled += 1
            raise
        except Exception as error:
            counts.failed += 1
            counts.rejected += isinstance(error, Busy | CreditExceeded)
            known = error if isinstance(error, TallybookError) else InvariantViolation(f"{method} failed: {error!r}")
            if is_defect(error):
                _log.defect("call failed", error, method=method, peer=call.peer)
            elif known.fault is not Fault.CALLER and not isinstance(known, Busy):
                _log.warning("call failed", method=method, reason=type(known).__name__, error=known.message)
            raise status_of(known) from error
        finally:
            counts.open -= 1

    return serve


class _CountedCall:
    """A call, and how many bytes it has moved."""

    def __init__(self, call: Call, counts: CallCounts) -> None:
        self._call = call
        self._counts = counts

    @property
    def peer(self) -> str:
        """The connection that the call came on."""
        return self._call.peer

    async def receive(self) -> bytes | None:
        """The next message; see the port."""
        message = await self._call.receive()
        if message is not None:
            self._counts.received_bytes += len(message)
        return message

    async def send(self, message: bytes) -> None:
        """Hand over one message; see the port."""
        await self._call.send(message)
        self._counts.sent_bytes += len(message)


async def send_in_time(call: Call, message: bytes, timeout_ms: int) -> None:
    """Hand over one message to a client that takes it within ``timeout_ms``.

    Raises:
        ReaderTooSlow: it does not. It may get the message all the same.
    """
    try:
        async with asyncio.timeout(timeout_ms / 1000):
            await call.send(message)
    except TimeoutError:
        raise ReaderTooSlow(f"nothing was taken for {timeout_ms} ms") from None
