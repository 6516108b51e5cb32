"""Spans that stay in memory, numbered in the order in which they began: the twin of ``otel`` for tests."""

from __future__ import annotations

from collections.abc import Mapping

from tallybook.runtime.meter import Reading
from tallybook.runtime.traceparent import TraceContext, decode_traceparent
from tallybook.runtime.tracing import NO_TRACER, Attribute, Span, SpanKind, current_span, header_above, is_decided


class MemorySpan:
    """A span, and everything that was said of it."""

    def __init__(self, tracer: MemoryTracer, name: str, kind: SpanKind, trace: int, parent: int) -> None:
        self._tracer = tracer
        tracer.spans.append(self)
        self.context = TraceContext(trace, len(tracer.spans), sampled=True)
        self.name = name
        self.kind = kind
        self.parent_id = parent
        """0: none."""
        self.attributes: dict[str, Attribute] = {}
        self.events: list[str] = []
        self.links: list[str] = []
        self.ends = 0
        """How often it was ended."""
        self.error: BaseException | str | None = None

    @property
    def over(self) -> bool:
        """Whether it was ended."""
        return self.ends > 0

    @property
    def trace_id(self) -> str:
        """Of the whole trace."""
        return f"{self.context.trace_id:032x}"

    @property
    def traceparent(self) -> str:
        """For whoever goes on elsewhere."""
        return self.context.traceparent

    def child(self, name: str, kind: SpanKind = SpanKind.INTERNAL, **attributes: Attribute) -> Span:
        """A part of this."""
        return self._tracer.made(name, kind, self.context, attributes)

    def past(self, name: str, began: float, **attributes: Attribute) -> None:
        """A part of this that is over."""
        self._tracer.made(name, SpanKind.INTERNAL, self.context, attributes).end()

    def set(self, **attributes: Attribute) -> None:
        """Say more of it."""
        self.attributes.update(attributes)

    def event(self, name: str, **attributes: Attribute) -> None:
        """Something happened."""
        self.events.append(name)

    def link(self, traceparent: str) -> None:
        """It serves another trace, too."""
        self.links.append(traceparent)

    def end(self, error: BaseException | str | None = None) -> None:
        """It is over."""
        self.ends += 1
        self.error = error


class MemoryTracer:
    """A ``Tracer`` that keeps what it is told.

    Attributes:
        sampling: whether it samples what nobody has decided about.
        around: the header of a trace of the program that surrounds what begins; empty: there is none.
    """

    def __init__(self) -> None:
        self.spans: list[MemorySpan] = []
        self.sampling = True
        self.around = ""
        self._traces = 0

    def made(
        self, name: str, kind: SpanKind, above: TraceContext | None, attributes: Mapping[str, Attribute]
    ) -> MemorySpan:
        """A span below another one, or one that begins a trace."""
        if above is None:
            self._traces += 1
        trace, parent = (self._traces, 0) if above is None else above[:2]
        span = MemorySpan(self, name, kind, trace, parent)
        span.set(**attributes)
        return span

    def root(self, name: str, kind: SpanKind = SpanKind.INTERNAL, **attributes: Attribute) -> Span | None:
        """A span of whatever surrounds the caller, or of a new trace; see the port."""
        above = current_span()
        if above is not None:
            return above.child(name, kind, **attributes)
        told = decode_traceparent(self.around)
        if is_decided() or not (told.sampled if told else self.sampling):
            return None
        return self.made(name, kind, told, attributes)

    def follow(self, traceparent: str, name: str, **attributes: Attribute) -> Span | None:
        """The serving end of a request; see the port."""
        told = decode_traceparent(traceparent)
        return self.made(name, SpanKind.SERVER, told, attributes) if told is not None and told.sampled else None

    def surrounding(self) -> str:
        """The header of the trace that surrounds the caller; see the port."""
        above = header_above()
        return self.around if above is None else above

    def readings(self) -> Mapping[str, Reading]:
        """Nothing is sent."""
        return NO_TRACER.readings()

    async def close(self) -> None:
        """Nothing is left."""
