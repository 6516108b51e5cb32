"""The tracing seam: spans of one add, read or call across components. Without tracing it costs almost nothing.

    Tracer.root(...)    starts where an add, a read or a call starts: sampled at random, or like the trace around it
    Tracer.follow(...)  starts at the server of a request: sampled if the client's span is
    part(...)           a child of the current span; nothing if there is none

Only code that starts a root needs a tracer. All other code uses the *current* span, which a task passes on to the tasks
that it starts. Most requests are not sampled and have none; then a part costs one lookup: no clock is read, no name is
built and nothing is sent. ``otel`` implements real spans.

Each part has a catalog of its spans and their attributes (``catalog``).
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar, Token
from enum import Enum
from types import TracebackType
from typing import Final, Protocol, TypeAlias

from ..metrics.usage import MetricValue

Attribute: TypeAlias = str | int | float | bool


class SpanKind(Enum):
    """The side of a remote request that a span is on."""

    INTERNAL = "internal"
    CLIENT = "client"
    SERVER = "server"


class Span(Protocol):
    """A timed operation in a trace. Used on one event loop; ended once."""

    @property
    def over(self) -> bool:
        """Whether it has ended. Tasks that outlive it belong to no trace."""

    @property
    def trace_id(self) -> str:
        """Id of the trace: 32 hexadecimal digits."""

    @property
    def traceparent(self) -> str:
        """The header that makes a span in another process a child of this one."""

    def child(self, name: str, kind: SpanKind = SpanKind.INTERNAL, **attributes: Attribute) -> Span:
        """Start a child span."""

    def past(self, name: str, began: float, **attributes: Attribute) -> None:
        """Add a child span that began at this monotonic second and ends now."""

    def set(self, **attributes: Attribute) -> None:
        """Set attributes."""

    def event(self, name: str, **attributes: Attribute) -> None:
        """Add an event, now."""

    def link(self, traceparent: str) -> None:
        """Link this span to another trace."""

    def end(self, error: BaseException | str | None = None) -> None:
        """End the span, with an error if there is one. A cancellation does not count as an error."""


class Tracer(Protocol):
    """Starts and exports spans. Only ``close`` waits, and no method raises."""

    def root(self, name: str, kind: SpanKind = SpanKind.INTERNAL, **attributes: Attribute) -> Span | None:
        """Start a span in the current trace or a new one; ``None``: it is not sampled."""

    def follow(self, traceparent: str, name: str, **attributes: Attribute) -> Span | None:
        """Start the server's span of a request; ``None`` if the client did not sample it or the header is malformed."""

    def surrounding(self) -> str:
        """The header of the current sampled span; empty: there is none."""

    def readings(self) -> Mapping[str, MetricValue]:
        """Values of ``catalog.TRACE_METRICS``."""

    async def close(self) -> None:
        """Send queued spans, for a few seconds at most."""


class NoTracer:
    """Traces nothing."""

    def root(self, name: str, kind: SpanKind = SpanKind.INTERNAL, **attributes: Attribute) -> Span | None:
        """None."""
        return None

    def follow(self, traceparent: str, name: str, **attributes: Attribute) -> Span | None:
        """None."""
        return None

    def surrounding(self) -> str:
        """No trace."""
        return ""

    def readings(self) -> Mapping[str, MetricValue]:
        """Zeroes."""
        return {"spans_sent": 0, "spans_dropped": 0, "spans_failed": 0}

    async def close(self) -> None:
        """Nothing is left."""


NO_TRACER: Final = NoTracer()


class _Unsampled:
    """Stands for a span that was not sampled, so that no root starts below it."""

    __slots__ = ("over",)

    traceparent: Final = ""

    def __init__(self) -> None:
        self.over = False

    def end(self, _error: BaseException | None = None) -> None:
        """End the effect of the sampling decision."""
        self.over = True


_current: ContextVar[Span | _Unsampled | None] = ContextVar("tallybook_span", default=None)
_nothing: Final = nullcontext()


def current_span() -> Span | None:
    """The current span; ``None`` if there is none, or it has ended or is not sampled."""
    span = _current.get()
    return None if span is None or span.over or isinstance(span, _Unsampled) else span


def is_decided() -> bool:
    """Whether a sampling decision is in effect, either way."""
    above = _current.get()
    return above is not None and not above.over


def header_above() -> str | None:
    """The header of the current span; empty: not sampled; ``None``: no sampling decision is in effect."""
    above = _current.get()
    return None if above is None or above.over else above.traceparent


def begin(
    tracer: Tracer, name: str, kind: SpanKind = SpanKind.INTERNAL, **attributes: Attribute
) -> AbstractContextManager[Span | None]:
    """Context manager of a root span, if it is sampled; otherwise nothing in the block is traced."""
    return _nothing if tracer is NO_TRACER else whole(tracer.root(name, kind, **attributes))


def part(name: str, kind: SpanKind = SpanKind.INTERNAL, **attributes: Attribute) -> AbstractContextManager[Span | None]:
    """Context manager of a child of the current span, which is current in the block; nothing if there is none."""
    span = current_span()
    return _nothing if span is None else whole(span.child(name, kind, **attributes))


def whole(span: Span | None) -> AbstractContextManager[Span | None]:
    """Context manager that makes ``span`` current and ends it; ``None``: nothing in the block is traced."""
    return _Block(_Unsampled() if span is None else span, ends=True)


def under(span: Span | None) -> AbstractContextManager[Span | None]:
    """Context manager that makes ``span`` current but does not end it; ``None``: nothing in the block is traced."""
    return whole(None) if span is None else _Block(span, ends=False)


class _Block:
    """Makes a span current in a block."""

    __slots__ = ("_ends", "_span", "_token")

    def __init__(self, span: Span | _Unsampled, *, ends: bool) -> None:
        self._span = span
        self._ends = ends
        self._token: Token[Span | _Unsampled | None] | None = None

    def __enter__(self) -> Span | None:
        self._token = _current.set(self._span)
        return None if isinstance(self._span, _Unsampled) else self._span

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._token is not None:
            _current.reset(self._token)
        if self._ends:
            self._span.end(error)
