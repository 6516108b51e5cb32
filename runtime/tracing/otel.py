"""Spans by OpenTelemetry: the only place that knows the library, loaded only where traces are wanted.

    ended spans -> at most MAX_WAITING of them -> a thread of the library -> OTLP over HTTP, in protobuf

Nothing here holds up the event loop, and nothing that goes wrong with the endpoint reaches an add or a read: what
cannot wait any longer is dropped, what the endpoint does not take is lost, and both are counted. The provider belongs
to one client or one server, and is not that of the whole process: a program that uses the client library may have one
itself. Where such a program has a span that is current, ours are parts of its trace.

The usual variables of the library hold: OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES, and for the way to the endpoint
OTEL_EXPORTER_OTLP_HEADERS, _CERTIFICATE, _CLIENT_CERTIFICATE, _CLIENT_KEY and _COMPRESSION. Those that name a proxy
hold for an endpoint on another host only.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Final

import requests
from opentelemetry import trace as api
from opentelemetry.context import Context, get_current
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_INSTANCE_ID, SERVICE_NAME, Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanLimits, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
from opentelemetry.trace import SpanContext, Status, StatusCode, TraceFlags

from tallybook.core.trace_option import TraceOption

from .meter import Reading
from .settings import variable
from .span_catalogue import MAX_ATTRIBUTE_CHARACTERS, MAX_ATTRIBUTES, MAX_EVENTS, MAX_LINKS, PREFIX
from .traceparent import TraceContext, decode_traceparent
from .tracing import Attribute, Span, SpanKind, current_span, header_above, is_decided

MAX_WAITING: Final = 4_096
"""Ended spans that wait to be sent; more are dropped. About a kilobyte each."""

CLOSE_SECONDS: Final = 3.0
"""How long the end of a process waits for what is still to be sent."""

_BATCH_SPANS: Final = 512
_EVERY_MS: Final = 1_000
_REQUEST_SECONDS: Final = 5.0
"""How long the endpoint may take for one batch, all tries included."""

_KINDS: Final = {
    SpanKind.INTERNAL: api.SpanKind.INTERNAL,
    SpanKind.CLIENT: api.SpanKind.CLIENT,
    SpanKind.SERVER: api.SpanKind.SERVER,
}


class OtelTracer:
    """A ``Tracer`` that sends spans to an endpoint.

    Args:
        service: what the process is called in traces, unless OTEL_SERVICE_NAME says otherwise.
        instance: which of them it is.
    """

    def __init__(self, option: TraceOption, service: str, instance: str) -> None:
        told = variable("OTEL_SERVICE_NAME") or "service.name=" in variable("OTEL_RESOURCE_ATTRIBUTES")
        name = {} if told else {SERVICE_NAME: service}
        session: requests.Session | None = None
        if option.stays_here:
            # A proxy that the environment names is on another host, as a rule, and would read them.
            session = requests.Session()
            session.trust_env = False
        sending = OTLPSpanExporter(option.endpoint, timeout=_REQUEST_SECONDS, session=session)
        self._exporter = _CountingExporter(sending)
        self._processor = _BoundedProcessor(self._exporter)
        self._provider = TracerProvider(
            sampler=ParentBased(TraceIdRatioBased(option.share)),
            resource=Resource.create({**name, SERVICE_INSTANCE_ID: instance}),
            shutdown_on_exit=False,
            span_limits=SpanLimits(
                max_span_attributes=MAX_ATTRIBUTES,
                max_span_attribute_length=MAX_ATTRIBUTE_CHARACTERS,
                max_attribute_length=MAX_ATTRIBUTE_CHARACTERS,
                max_events=MAX_EVENTS,
                max_links=MAX_LINKS,
            ),
        )
        self._provider.add_span_processor(self._processor)
        self._tracer = self._provider.get_tracer("tallybook")
        self._seen: Context | None = None
        self._seen_span: api.Span = api.INVALID_SPAN
        self._seen_header = ""

    def root(self, name: str, kind: SpanKind = SpanKind.INTERNAL, **attributes: Attribute) -> Span | None:
        """A span of whatever trace surrounds the caller, or of a new one; see the port."""
        above = current_span()
        if above is not None:
            return above.child(name, kind, **attributes)
        if is_decided():
            return None
        # With no context of ours, that of the program which uses this library counts.
        return self._sampled(name, kind, None if _goes_on(api.get_current_span()) else Context(), attributes)

    def follow(self, traceparent: str, name: str, **attributes: Attribute) -> Span | None:
        """The serving end of a request; see the port."""
        told = decode_traceparent(traceparent)
        if told is None or not told.sampled:
            return None
        return self._sampled(name, SpanKind.SERVER, _context_of(_remote(told)), attributes)

    def surrounding(self) -> str:
        """The header of the sampled trace that surrounds the caller; see the port."""
        above = header_above()
        if above is not None:
            return above
        around = get_current()
        if around is not self._seen:
            # As a rule it is the same as for the append before.
            self._seen, self._seen_span = around, api.get_current_span(around)
            found = self._seen_span.get_span_context()
            self._seen_header = _header(found) if found.is_valid and found.trace_flags.sampled else ""
        return self._seen_header if self._seen_header and _goes_on(self._seen_span) else ""

    def readings(self) -> Mapping[str, Reading]:
        """Numbers for metrics."""
        sent, failed = self._exporter.sent, self._exporter.failed
        return {"spans_sent": sent, "spans_dropped": self._processor.dropped, "spans_failed": failed}

    async def close(self) -> None:
        """Send what is left, for ``CLOSE_SECONDS`` at most; what remains then is lost."""
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[None] = loop.create_future()

        def tell() -> None:
            if not ended.done():
                ended.set_result(None)

        def shut_down() -> None:
            self._provider.shutdown()
            # Where it took too long, nobody may be left to be told.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(tell)

        # A thread of its own, since the loop's would have to be waited for when the loop ends.
        threading.Thread(target=shut_down, name="traces-end", daemon=True).start()
        await asyncio.wait([ended], timeout=CLOSE_SECONDS)
        if not ended.done():
            # A request under way ends its thread when it ends itself; there is no other after it.
            self._exporter.give_up()

    def _sampled(
        self, name: str, kind: SpanKind, context: Context | None, attributes: Mapping[str, Attribute]
    ) -> Span | None:
        span = self._tracer.start_span(name, context, _KINDS[kind], _shown(attributes))
        return _OtelSpan(self._tracer, span) if span.is_recording() else None


class _OtelSpan:
    """A span that is recorded."""

    __slots__ = ("_span", "_tracer", "over")

    def __init__(self, tracer: api.Tracer, span: api.Span) -> None:
        self._tracer = tracer
        self._span = span
        self.over = False

    @property
    def trace_id(self) -> str:
        """Of the whole trace."""
        return f"{self._span.get_span_context().trace_id:032x}"

    @property
    def traceparent(self) -> str:
        """For whoever goes on elsewhere."""
        return _header(self._span.get_span_context())

    def child(self, name: str, kind: SpanKind = SpanKind.INTERNAL, **attributes: Attribute) -> Span:
        """A part of this; see the port."""
        context = api.set_span_in_context(self._span, Context())
        span = self._tracer.start_span(name, context, _KINDS[kind], _shown(attributes))
        return _OtelSpan(self._tracer, span)

    def past(self, name: str, began: float, **attributes: Attribute) -> None:
        """A part of this that is over; see the port."""
        at = time.time_ns() - int((time.monotonic() - began) * 1e9)
        context = api.set_span_in_context(self._span, Context())
        self._tracer.start_span(name, context, attributes=_shown(attributes), start_time=at).end()

    def set(self, **attributes: Attribute) -> None:
        """Say more of it."""
        self._span.set_attributes(_shown(attributes))

    def event(self, name: str, **attributes: Attribute) -> None:
        """Something happened, now."""
        self._span.add_event(name, _shown(attributes))

    def link(self, traceparent: str) -> None:
        """It serves another trace, too."""
        told = decode_traceparent(traceparent)
        if told is not None:
            self._span.add_link(_remote(told))

    def end(self, error: BaseException | str | None = None) -> None:
        """It is over; see the port."""
        if isinstance(error, asyncio.CancelledError):
            self.set(cancelled=True)
        elif error is not None:
            kind = error if isinstance(error, str) else type(error).__name__
            self._span.set_attribute("error.type", kind)
            self._span.set_status(Status(StatusCode.ERROR, kind))
        self.over = True
        self._span.end()


class _BoundedProcessor(BatchSpanProcessor):
    """Hands over spans while not too many wait. The library drops as well, but does not say how many."""

    def __init__(self, exporter: _CountingExporter) -> None:
        # Its own queue has room for more than is ever let in, so it drops nothing.
        super().__init__(exporter, 2 * MAX_WAITING, _EVERY_MS, _BATCH_SPANS, _REQUEST_SECONDS * 1_000)
        self._counts = exporter
        self._taken = 0
        self.dropped = 0

    def on_end(self, span: ReadableSpan) -> None:
        """Take one, or drop it."""
        counts = self._counts
        if counts.given_up or self._taken - counts.sent - counts.failed >= MAX_WAITING:
            self.dropped += 1
            return
        self._taken += 1
        super().on_end(span)


class _CountingExporter(SpanExporter):
    """Sends spans, and counts what came of them. Used by one thread at a time."""

    def __init__(self, exporter: SpanExporter) -> None:
        self._exporter = exporter
        self.sent = 0
        self.failed = 0
        self.given_up = False

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Send a batch; whatever goes wrong, it is not sent again."""
        result = SpanExportResult.FAILURE
        try:
            if not self.given_up:
                result = self._exporter.export(spans)
        finally:
            if result is SpanExportResult.SUCCESS:
                self.sent += len(spans)
            else:
                self.failed += len(spans)
        return result

    def give_up(self) -> None:
        """Send nothing more."""
        self.given_up = True
        self._exporter.shutdown()

    def shutdown(self) -> None:
        """Release connections."""
        if not self.given_up:
            self.given_up = True
            self._exporter.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Nothing is kept here."""
        return True


def _shown(attributes: Mapping[str, Attribute]) -> dict[str, Attribute]:
    # The library cuts long texts, too, but says so in the log each time.
    return {
        f"{PREFIX}{name}": value[:MAX_ATTRIBUTE_CHARACTERS] if isinstance(value, str) else value
        for name, value in attributes.items()
    }


def _goes_on(span: api.Span) -> bool:
    """Whether a span of the program may have parts: one that has ended is left behind in tasks that go on."""
    return span.is_recording() or isinstance(span, api.NonRecordingSpan)


def _header(context: SpanContext) -> str:
    return TraceContext(context.trace_id, context.span_id, context.trace_flags.sampled).traceparent


def _remote(told: TraceContext) -> SpanContext:
    flags = TraceFlags(TraceFlags.SAMPLED if told.sampled else TraceFlags.DEFAULT)
    return SpanContext(told.trace_id, told.span_id, is_remote=True, trace_flags=flags)


def _context_of(parent: SpanContext) -> Context:
    return api.set_span_in_context(api.NonRecordingSpan(parent), Context())
