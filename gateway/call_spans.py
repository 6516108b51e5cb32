"""Which calls of a gateway are traced, and as part of which trace.

    the caller says so, or says that it is not (traceparent)    as it says, for any method
    it has one answer                                           by chance, as a whole
    it is a stream                                              each add and each read by chance, of its own

A stream may last for days, so as a whole it is traced only for whoever asks for that.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Final

from tallybook.runtime.calls import Call
from tallybook.runtime.span_catalogue import CALL
from tallybook.runtime.traceparent import decode_traceparent
from tallybook.runtime.tracing import NO_TRACER, Span, SpanKind, Tracer, begin, whole

STREAMS: Final = frozenset({"Append", "Read", "Subscribe", "Tail"})
"""Methods that have any number of answers."""

_NOTHING: Final = nullcontext()


def span_of(tracer: Tracer, method: str, call: Call) -> AbstractContextManager[Span | None]:
    """The block in which a call is served."""
    if tracer is NO_TRACER:
        return _NOTHING
    traceparent = call.presented.traceparent
    if traceparent and decode_traceparent(traceparent) is not None:
        return whole(tracer.follow(traceparent, CALL, method=method, peer=call.peer))
    if method.rpartition("/")[2] in STREAMS:
        return _NOTHING
    return begin(tracer, CALL, SpanKind.SERVER, method=method, peer=call.peer)
