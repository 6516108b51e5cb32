"""The tracing seam: spans of one add or one read, wherever it passes; nothing at all where nobody wants them.

    Tracer.root(...)    begins where an add, a read or a call begins: sampled by chance, or with whoever asks
    Tracer.follow(...)  begins at the other end of a wire: sampled if the asking side has it sampled
    part(...)           a piece of the work of the span that is current; nothing where none is

Only what begins something needs a tracer. Everything below asks for the *current* span, which belongs to the task
and to the tasks that it starts. There is none for nearly every request, and then a part costs a look and nothing is
made: no times are taken, no names are put together, and nothing is sent. ``otel`` has the spans that are real.

Every name and every attribute of a span stands in ``span_catalogue``.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar, Token
from enum import Enum
from types import TracebackType
from typing import Final, Protocol, TypeAlias

from .meter import Reading

Attribute: TypeAlias = str | int | float | bool


class SpanKind(Enum):
    """On which side of a wire a span is."""

    INTERNAL = "internal"
    CLIENT = "client"
    SERVER = "server"


class Span(Protocol):
    """Something that took time, as part of a trace. Used on one event loop; ended once."""

    @property
    def over(self) -> bool:
        """Whether it was ended. Tasks that outlive it belong to no trace."""

    @property
    def trace_id(self) -> str:
        """Of the whole trace: 32 hexadecimal digits."""

    @property
    def traceparent(self) -> str:
        """The header by which a span elsewhere becomes a child of this one."""

    def child(self, name: str, kind: SpanKind = SpanKind.INTERNAL, **attributes: Attribute) -> Span:
        """A part of this."""

    def past(self, name: str, began: float, **attributes: Attribute) -> None:
        """A part of this that began at this monotonic second, and is over now."""

    def set(self, **attributes: Attribute) -> None:
        """Say more of it."""

    def event(self, name: str, **attributes: Attribute) -> None:
        """Something happened, now."""

    def link(self, traceparent: str) -> None:
        """It serves another trace, too."""

    def end(self, error: BaseException | str | None = None) -> None:
        """It is over, well or with an error. A cancellation is no error."""


class Tracer(Protocol):
    """Begins spans, and sees to it that they arrive somewhere. Never waits, and never raises."""

    def root(self, name: str, kind: SpanKind = SpanKind.INTERNAL, **attributes: Attribute) -> Span | None:
        """A span of whatever trace surrounds the caller, or of a new one; ``None``: it is not sampled."""

    def follow(self, traceparent: str, name: str, **attributes: Attribute) -> Span | None:
        """The serving end of a request; ``None`` if its sender has it not sampled, or says what nobody understands."""

    def surrounding(self) -> str:
        """The header of the sampled trace that surrounds the caller; empty: there is none."""

    def readings(self) -> Mapping[str, Reading]:
        """Numbers, named as in ``span_catalogue.TRACE_METRICS``."""

    async def close(self) -> None:
        """Send what is left, for a few seconds at most."""


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

    def readings(self) -> Mapping[str, Reading]:
        """Zeroes."""
        return {"spans_sent": 0, "spans_dropped": 0, "spans_failed": 0}

    async def close(self) -> None:
        """Nothing is left."""


NO_TRACER: Final = NoTracer()


class _Unsampled:
    """In place of a span: it was decided that there is none, so nothing below begins one."""

    __slots__ = ("over",)

    traceparent: Final = ""

    def __init__(self) -> None:
        self.over = False

    def end(self, _error: BaseException | None = None) -> None:
        """From here on it is as if nobody had decided."""
        self.over = True


_current: ContextVar[Span | _Unsampled | None] = ContextVar("tallybook_span", default=None)
_nothing: Final = nullcontext()


def current_span() -> Span | None:
    """The span that whatever is done here belongs to."""
    span = _current.get()
    return None if span is None or span.over or isinstance(span, _Unsampled) else span


def is_decided() -> bool:
    """Whether somebody above has decided about sampling, either way."""
    above = _current.get()
    return above is not None and not above.over


def header_above() -> str | None:
    """The header of the span that is current; empty: decided that there is none; ``None``: nobody has decided."""
    above = _current.get()
    return None if above is None or above.over else above.traceparent


def begin(
    tracer: Tracer, name: str, kind: SpanKind = SpanKind.INTERNAL, **attributes: Attribute
) -> AbstractContextManager[Span | None]:
    """A block that is a root, if it is sampled; then all in it belongs to it, and else nothing does."""
    return _nothing if tracer is NO_TRACER else whole(tracer.root(name, kind, **attributes))


def part(name: str, kind: SpanKind = SpanKind.INTERNAL, **attributes: Attribute) -> AbstractContextManager[Span | None]:
    """A part of the current span, which is current in the block and ends with it; nothing where there is none."""
    span = current_span()
    return _nothing if span is None else whole(span.child(name, kind, **attributes))


def whole(span: Span | None) -> AbstractContextManager[Span | None]:
    """Have a block belong to a span that ends with it; ``None``: nothing in it is traced."""
    return _Block(_Unsampled() if span is None else span, ends=True)


def under(span: Span | None) -> AbstractContextManager[Span | None]:
    """Have a block belong to a span that somebody else ends; ``None``: nothing in it is traced."""
    return whole(None) if span is None else _Block(span, ends=False)


class _Block:
    """A block that belongs to a span."""

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
