"""A tracer that keeps spans in memory, numbered in order; the counterpart of ``otel`` for tests."""

from __future__ import annotations

from collections.abc import Mapping

from tallybook.runtime.metrics.usage import MetricValue
from tallybook.runtime.tracing.port import NO_TRACER, Attribute, Span, SpanKind, current_span, header_above, is_decided
from tallybook.runtime.tracing.traceparent import TraceContext, decode_traceparent


class MemorySpan:
    """A span with its attributes, events and links."""

    def __init__(self, tracer: MemoryTracer, name: str, kind: SpanKind, trace: int, parent: int) -> None:
        self._tracer = tracer
        tracer.spans.append(self)
        self.context = TraceContext(trace, len(tracer.spans), sampled=True)
        self.name = name
        self.kind = kind
        self.parent_id = parent
        """Id of the parent span; 0 for none."""
        self.attributes: dict[str, Attribute] = {}
        self.events: list[str] = []
        self.links: list[str] = []
        self.ends = 0
        """Number of calls of ``end``."""
        self.error: BaseException | str | None = None

    @property
    def over(self) -> bool:
        """Whether it was ended."""
        return self.ends > 0

    @property
    def trace_id(self) -> str:
        """Id of the trace, in hex."""
        return f"{self.context.trace_id:032x}"

    @property
    def traceparent(self) -> str:
        """Header that continues the trace in another process."""
        return self.context.traceparent

    def child(self, name: str, kind: SpanKind = SpanKind.INTERNAL, **attributes: Attribute) -> Span:
        """Start a child span."""
        return self._tracer.new_span(name, kind, self.context, attributes)

    def past(self, name: str, began: float, **attributes: Attribute) -> None:
        """Add a child span that has ended."""
        self._tracer.new_span(name, SpanKind.INTERNAL, self.context, attributes).end()

    def set(self, **attributes: Attribute) -> None:
        """Add attributes."""
        self.attributes.update(attributes)

    def event(self, name: str, **attributes: Attribute) -> None:
        """Add an event."""
        self.events.append(name)

    def link(self, traceparent: str) -> None:
        """Link it to another trace."""
        self.links.append(traceparent)

    def end(self, error: BaseException | str | None = None) -> None:
        """End it."""
        self.ends += 1
        self.error = error


class MemoryTracer:
    """A ``Tracer`` that keeps all spans.

    Attributes:
        sampling: whether it samples traces without a sampling decision.
        around: trace header of the surrounding program; empty if there is none.
    """

    def __init__(self) -> None:
        self.spans: list[MemorySpan] = []
        self.sampling = True
        self.around = ""
        self._traces = 0

    def new_span(
        self, name: str, kind: SpanKind, above: TraceContext | None, attributes: Mapping[str, Attribute]
    ) -> MemorySpan:
        """A child span of ``above``, or a new trace."""
        if above is None:
            self._traces += 1
        trace, parent = (self._traces, 0) if above is None else above[:2]
        span = MemorySpan(self, name, kind, trace, parent)
        span.set(**attributes)
        return span

    def root(self, name: str, kind: SpanKind = SpanKind.INTERNAL, **attributes: Attribute) -> Span | None:
        """A child of the current span or of the surrounding program's trace, or a new trace; see the port."""
        above = current_span()
        if above is not None:
            return above.child(name, kind, **attributes)
        parent = decode_traceparent(self.around)
        if is_decided() or not (parent.sampled if parent else self.sampling):
            return None
        return self.new_span(name, kind, parent, attributes)

    def follow(self, traceparent: str, name: str, **attributes: Attribute) -> Span | None:
        """A server span of a request; see the port."""
        parent = decode_traceparent(traceparent)
        if parent is None or not parent.sampled:
            return None
        return self.new_span(name, SpanKind.SERVER, parent, attributes)

    def surrounding(self) -> str:
        """The header of the trace that surrounds the caller; see the port."""
        above = header_above()
        return self.around if above is None else above

    def readings(self) -> Mapping[str, MetricValue]:
        """See the port: nothing is exported."""
        return NO_TRACER.readings()

    async def close(self) -> None:
        """See the port: nothing to close."""
