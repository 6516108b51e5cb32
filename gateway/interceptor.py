"""Around every call of a gateway: who makes it, as long as that is allowed, counting, and the status of an error."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final, TypeAlias

from tallybook.core.access import Presented
from tallybook.core.errors import (
    AccessDenied,
    Busy,
    CreditExceeded,
    Fault,
    InvariantViolation,
    PeerError,
    ReaderTooSlow,
    TallybookError,
    Unauthenticated,
    is_defect,
)
from tallybook.runtime.allowed import while_allowed
from tallybook.runtime.calls import Call, CallerGone, CallHandler
from tallybook.runtime.clock import Clock
from tallybook.runtime.logging import logger
from tallybook.runtime.seldom import Seldom
from tallybook.runtime.tracing import NO_TRACER, Tracer

from .authorizer import AuthorizedCall, Authorizer, Caller
from .call_spans import span_of
from .errors import status_of
from .limits import Limits
from .metrics import CallCounts, Counts, cause_of

AuthorizedHandler: TypeAlias = Callable[[AuthorizedCall], Awaitable[None]]
"""Serves one call of somebody who was let in."""

_log = logger("gateway")

_DEFECT: Final = InvariantViolation("this is a defect; the log of the gateway says more")
"""What is told of what nobody has foreseen: it may say anything, and to whom that may be told is not known."""


def counted(
    method: str,
    handler: AuthorizedHandler,
    all_counts: Counts,
    clock: Clock,
    authorizer: Authorizer,
    limits: Limits,
    tracer: Tracer = NO_TRACER,
) -> CallHandler:
    """The handler as the network calls it: for those who may, its errors made statuses, and what passes counted."""
    counts = all_counts.methods[method]
    lines = Seldom()

    async def serve(call: Call) -> None:
        began = clock.monotonic()
        counts.calls += 1
        counts.open += 1
        caller: Caller | None = None
        try:
            caller = authorizer.let_in(method, call)
            with limits.request(caller.principal), span_of(tracer, method, call):
                serving = handler(_CountedCall(call, counts, caller))
                await while_allowed(
                    serving, caller.principal, partial(authorizer.look_again, method, call, caller), clock
                )
        except (asyncio.CancelledError, CallerGone):
            counts.cancelled += 1
            raise
        except Exception as error:
            counts.failed += 1
            counts.rejected += isinstance(error, Busy | CreditExceeded)
            known = _told(error, caller)
            all_counts.errors.count(known.wire_code)
            all_counts.failures[cause_of(known)] += 1
            ours = is_defect(error) or known is not error
            if ours or (known.fault is not Fault.CALLER and not isinstance(known, Busy)):
                # An outage of the metadata fails every call there is.
                untold = lines.due(clock.monotonic(), type(error).__name__)
                if untold is not None:
                    _tell(method, call, caller, error, known, untold)
            authorizer.refusals.note(
                known, call.presented, call.peer, method, None if caller is None else caller.principal
            )
            raise status_of(known) from error
        finally:
            counts.open -= 1
            counts.seconds.observe(clock.monotonic() - began)

    return serve


def _told(error: Exception, caller: Caller | None) -> TallybookError:
    """What the client is told of."""
    if not isinstance(error, TallybookError):
        return _DEFECT
    denied = isinstance(error, AccessDenied | Unauthenticated)
    if caller is not None and denied and error not in caller.refusals:
        # A client that took that for its own would look for what is wrong with itself.
        return PeerError(f"this gateway was denied what it needs for the call: {error.message}", outcome=error.outcome)
    return error


def _tell(method: str, call: Call, caller: Caller | None, error: Exception, known: TallybookError, untold: int) -> None:
    """Log that a call has failed, and ``untold`` others like it since the last line."""
    about = {} if caller is None else {"principal": caller.principal.name, **caller.about}
    if is_defect(error):
        _log.defect("call failed", error, method=method, peer=call.peer, untold_count=untold, **about)
        return
    what, said = type(error).__name__, known.message
    _log.warning(
        "call failed", method=method, peer=call.peer, error_type=what, error=said, untold_count=untold, **about
    )


class _CountedCall:
    """A call, and how many bytes it has moved."""

    def __init__(self, call: Call, counts: CallCounts, caller: Caller) -> None:
        self._call = call
        self._counts = counts
        self._caller = caller

    @property
    def peer(self) -> str:
        """The connection that the call came on."""
        return self._call.peer

    @property
    def caller(self) -> Caller:
        """Whose call it is."""
        return self._caller

    @property
    def presented(self) -> Presented:
        """What the client has come with."""
        return self._call.presented

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
