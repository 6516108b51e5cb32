"""Interceptor of every gateway RPC: authentication, reauthorization, request limit, metrics, tracing, error status."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, nullcontext
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
from tallybook.runtime.calls import Call, CallerGone, CallHandler
from tallybook.runtime.clock import Clock
from tallybook.runtime.logging import logger
from tallybook.runtime.rate_limited_log import LogRateLimiter
from tallybook.runtime.security.reauthorization import run_while_authorized
from tallybook.runtime.tracing.catalog import SpanInfo
from tallybook.runtime.tracing.port import NO_TRACER, Span, SpanKind, Tracer, begin, whole
from tallybook.runtime.tracing.traceparent import decode_traceparent

from .auth import AuthorizedCall, Authorizer, Caller
from .errors import status_of
from .limits import GatewayLimits
from .metrics import GatewayCounters, MethodCounters, cause_of

AuthorizedHandler: TypeAlias = Callable[[AuthorizedCall], Awaitable[None]]
"""Serves one call of an authenticated caller."""

STREAMING_METHODS: Final = frozenset({"Append", "Read", "Subscribe", "Tail"})
"""Streaming methods."""

CALL: Final = SpanInfo(
    "gateway.call",
    "gateway",
    "A unary call of a client, or a stream that its client traces.",
    ("method", "peer", "cancelled"),
)

_NOTHING: Final = nullcontext()

_log = logger("gateway")

_DEFECT: Final = InvariantViolation("internal error: see the gateway's log")
"""The reply to an unexpected exception, whose text may contain data that the client may not see."""


def intercepted(
    method: str,
    handler: AuthorizedHandler,
    all_counts: GatewayCounters,
    clock: Clock,
    authorizer: Authorizer,
    limits: GatewayLimits,
    tracer: Tracer = NO_TRACER,
) -> CallHandler:
    """Wrap a handler for the network: authenticate the caller, map errors to statuses, and count calls and bytes."""
    counts = all_counts.methods[method]
    lines = LogRateLimiter()

    async def serve(call: Call) -> None:
        began = clock.monotonic()
        counts.calls += 1
        counts.open += 1
        caller: Caller | None = None
        try:
            caller = authorizer.authenticate(method, call)
            with limits.request(caller.principal), span_of(tracer, method, call):
                serving = handler(_MeteredCall(call, counts, caller))
                await run_while_authorized(
                    serving, caller.principal, partial(authorizer.reauthorize, method, call, caller), clock
                )
        except (asyncio.CancelledError, CallerGone):
            counts.cancelled += 1
            raise
        except Exception as error:
            counts.failed += 1
            counts.rejected += isinstance(error, Busy | CreditExceeded)
            known = _client_error(error, caller)
            all_counts.errors.count(known.wire_code)
            all_counts.failures[cause_of(known)] += 1
            ours = is_defect(error) or known is not error
            if ours or (known.fault is not Fault.CALLER and not isinstance(known, Busy)):
                # An outage of the metadata fails every call there is.
                suppressed = lines.due(clock.monotonic(), type(error).__name__)
                if suppressed is not None:
                    _log_failure(method, call, caller, error, known, suppressed)
            authorizer.denials.note(
                known, call.presented, call.peer, method, None if caller is None else caller.principal
            )
            raise status_of(known) from error
        finally:
            counts.open -= 1
            counts.seconds.observe(clock.monotonic() - began)

    return serve


def _client_error(error: Exception, caller: Caller | None) -> TallybookError:
    """The error that the client gets."""
    if not isinstance(error, TallybookError):
        return _DEFECT
    denied = isinstance(error, AccessDenied | Unauthenticated)
    if caller is not None and denied and error not in caller.denied:
        # The cluster denied the gateway. As AccessDenied, it would send the client to check its own credentials.
        return PeerError(f"this gateway was denied what it needs for the call: {error.message}", outcome=error.outcome)
    return error


def _log_failure(
    method: str, call: Call, caller: Caller | None, error: Exception, known: TallybookError, suppressed: int
) -> None:
    """Log that a call has failed, and ``suppressed`` others like it since the last line."""
    log_fields = {} if caller is None else {"principal": caller.principal.name, **caller.log_fields}
    if is_defect(error):
        _log.defect("call failed", error, method=method, peer=call.peer, untold_count=suppressed, **log_fields)
        return
    what, said = type(error).__name__, known.message
    _log.warning(
        "call failed", method=method, peer=call.peer, error_type=what, error=said, untold_count=suppressed, **log_fields
    )


class _MeteredCall:
    """A call with counters of the bytes received and sent."""

    def __init__(self, call: Call, counts: MethodCounters, caller: Caller) -> None:
        self._call = call
        self._counts = counts
        self._caller = caller

    @property
    def peer(self) -> str:
        """Address of the connection."""
        return self._call.peer

    @property
    def caller(self) -> Caller:
        """The caller."""
        return self._caller

    @property
    def presented(self) -> Presented:
        """The credentials that the client presented."""
        return self._call.presented

    async def receive(self) -> bytes | None:
        """The next message; see the port."""
        message = await self._call.receive()
        if message is not None:
            self._counts.received_bytes += len(message)
        return message

    async def send(self, message: bytes) -> None:
        """Send one message; see the port."""
        await self._call.send(message)
        self._counts.sent_bytes += len(message)


async def send_in_time(call: Call, message: bytes, timeout_ms: int) -> None:
    """Send one message to a client, which must take it within ``timeout_ms``.

    Raises:
        ReaderTooSlow: the client did not take it in time. It may still receive it.
    """
    try:
        async with asyncio.timeout(timeout_ms / 1000):
            await call.send(message)
    except TimeoutError:
        raise ReaderTooSlow(f"the client accepted no message for {timeout_ms} ms") from None


def span_of(tracer: Tracer, method: str, call: Call) -> AbstractContextManager[Span | None]:
    """The context in which a call is served: a span, or nothing.

    - A call with a traceparent follows the sampling decision of its caller.
    - Any other unary call is sampled as a whole.
    - Any other streaming call, which may last for days, has no span: its adds and reads are sampled one by one.
    """
    if tracer is NO_TRACER:
        return _NOTHING
    traceparent = call.presented.traceparent
    if traceparent and decode_traceparent(traceparent) is not None:
        return whole(tracer.follow(traceparent, CALL.name, method=method, peer=call.peer))
    if method.rpartition("/")[2] in STREAMING_METHODS:
        return _NOTHING
    return begin(tracer, CALL.name, SpanKind.SERVER, method=method, peer=call.peer)
