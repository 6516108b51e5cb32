"""The tracer on OpenTelemetry; the only module that imports it, and only if traces are on.

    ended spans -> queue of at most MAX_WAITING -> a thread of the library -> OTLP over HTTP, in protobuf

Nothing here blocks the event loop, and failures of the endpoint do not affect adds or reads: spans are dropped when the
queue is full and lost when the endpoint fails; both are counted. The tracer provider belongs to one client or server,
not to the process: a program that uses the client library may have its own. If that program has a current span, spans
of the client are children of it.

The variables of the library work: OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES, and for the endpoint
OTEL_EXPORTER_OTLP_HEADERS, _CERTIFICATE, _CLIENT_CERTIFICATE, _CLIENT_KEY and _COMPRESSION. Proxy variables apply only
to an endpoint on another host.
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

from ..metrics.usage import MetricValue
from ..settings import variable
from .catalog import MAX_ATTRIBUTE_CHARACTERS, MAX_ATTRIBUTES, MAX_EVENTS, MAX_LINKS, PREFIX
from .port import Attribute, Span, SpanKind, current_span, header_above, is_decided
from .traceparent import TraceContext, decode_traceparent

MAX_WAITING: Final = 4_096
"""Queue of ended spans; more are dropped. About 1 kB each."""

CLOSE_SECONDS: Final = 3.0
"""How long ``close`` waits until queued spans are sent."""

_BATCH_SPANS: Final = 512
_EVERY_MS: Final = 1_000
_REQUEST_SECONDS: Final = 5.0
"""Timeout of one batch, including retries."""

_KINDS: Final = {
    SpanKind.INTERNAL: api.SpanKind.INTERNAL,
    SpanKind.CLIENT: api.SpanKind.CLIENT,
    SpanKind.SERVER: api.SpanKind.SERVER,
}


class OtelTracer:
    """A ``Tracer`` that sends spans to an endpoint.

    Args:
        service: service name in traces, unless OTEL_SERVICE_NAME is set.
        instance: service instance id.
    """

    def __init__(self, option: TraceOption, service: str, instance: str) -> None:
        named = variable("OTEL_SERVICE_NAME") or "service.name=" in variable("OTEL_RESOURCE_ATTRIBUTES")
        name = {} if named else {SERVICE_NAME: service}
        session: requests.Session | None = None
        if option.is_local:
            # A proxy of the environment is usually on another host and could read the spans.
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
        """A span in the current trace or a new one; see the port."""
        above = current_span()
        if above is not None:
            return above.child(name, kind, **attributes)
        if is_decided():
            return None
        # Without a span of ours, that of the program that uses this library is the parent.
        return self._sampled(name, kind, None if _goes_on(api.get_current_span()) else Context(), attributes)

    def follow(self, traceparent: str, name: str, **attributes: Attribute) -> Span | None:
        """The serving end of a request; see the port."""
        parent = decode_traceparent(traceparent)
        if parent is None or not parent.sampled:
            return None
        return self._sampled(name, SpanKind.SERVER, _context_of(_remote(parent)), attributes)

    def surrounding(self) -> str:
        """The header of the current sampled span; see the port."""
        above = header_above()
        if above is not None:
            return above
        around = get_current()
        if around is not self._seen:
            # Cached: it is usually the same as for the append before.
            self._seen, self._seen_span = around, api.get_current_span(around)
            found = self._seen_span.get_span_context()
            self._seen_header = _header(found) if found.is_valid and found.trace_flags.sampled else ""
        return self._seen_header if self._seen_header and _goes_on(self._seen_span) else ""

    def readings(self) -> Mapping[str, MetricValue]:
        """Values of ``TRACE_METRICS``."""
        sent, failed = self._exporter.sent, self._exporter.failed
        return {"spans_sent": sent, "spans_dropped": self._processor.dropped, "spans_failed": failed}

    async def close(self) -> None:
        """Send queued spans for ``CLOSE_SECONDS`` at most; the rest is lost."""
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[None] = loop.create_future()

        def tell() -> None:
            if not ended.done():
                ended.set_result(None)

        def shut_down() -> None:
            self._provider.shutdown()
            # After the timeout the loop may be closed.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(tell)

        # A separate thread, because the end of the loop would wait for a thread of its executor.
        threading.Thread(target=shut_down, name="traces-end", daemon=True).start()
        await asyncio.wait([ended], timeout=CLOSE_SECONDS)
        if not ended.done():
            # The thread ends with the request in flight; no other request follows.
            self._exporter.give_up()

    def _sampled(
        self, name: str, kind: SpanKind, context: Context | None, attributes: Mapping[str, Attribute]
    ) -> Span | None:
        span = self._tracer.start_span(name, context, _KINDS[kind], _shown(attributes))
        return _OtelSpan(self._tracer, span) if span.is_recording() else None


class _OtelSpan:
    """A recorded span."""

    __slots__ = ("_span", "_tracer", "over")

    def __init__(self, tracer: api.Tracer, span: api.Span) -> None:
        self._tracer = tracer
        self._span = span
        self.over = False

    @property
    def trace_id(self) -> str:
        """Id of the trace."""
        return f"{self._span.get_span_context().trace_id:032x}"

    @property
    def traceparent(self) -> str:
        """The header for requests to other processes."""
        return _header(self._span.get_span_context())

    def child(self, name: str, kind: SpanKind = SpanKind.INTERNAL, **attributes: Attribute) -> Span:
        """Start a child span; see the port."""
        context = api.set_span_in_context(self._span, Context())
        span = self._tracer.start_span(name, context, _KINDS[kind], _shown(attributes))
        return _OtelSpan(self._tracer, span)

    def past(self, name: str, began: float, **attributes: Attribute) -> None:
        """Add a child span that has ended; see the port."""
        at = time.time_ns() - int((time.monotonic() - began) * 1e9)
        context = api.set_span_in_context(self._span, Context())
        self._tracer.start_span(name, context, attributes=_shown(attributes), start_time=at).end()

    def set(self, **attributes: Attribute) -> None:
        """Set attributes."""
        self._span.set_attributes(_shown(attributes))

    def event(self, name: str, **attributes: Attribute) -> None:
        """Add an event, now."""
        self._span.add_event(name, _shown(attributes))

    def link(self, traceparent: str) -> None:
        """Link this span to another trace."""
        linked = decode_traceparent(traceparent)
        if linked is not None:
            self._span.add_link(_remote(linked))

    def end(self, error: BaseException | str | None = None) -> None:
        """End the span; see the port."""
        if isinstance(error, asyncio.CancelledError):
            self.set(cancelled=True)
        elif error is not None:
            kind = error if isinstance(error, str) else type(error).__name__
            self._span.set_attribute("error.type", kind)
            self._span.set_status(Status(StatusCode.ERROR, kind))
        self.over = True
        self._span.end()


class _BoundedProcessor(BatchSpanProcessor):
    """Queues at most ``MAX_WAITING`` spans and counts dropped ones; the library drops, too, but does not count."""

    def __init__(self, exporter: _CountingExporter) -> None:
        # Its own queue is larger than the limit here, so it drops nothing.
        super().__init__(exporter, 2 * MAX_WAITING, _EVERY_MS, _BATCH_SPANS, _REQUEST_SECONDS * 1_000)
        self._counts = exporter
        self._taken = 0
        self.dropped = 0

    def on_end(self, span: ReadableSpan) -> None:
        """Queue a span, or drop it."""
        counts = self._counts
        if counts.given_up or self._taken - counts.sent - counts.failed >= MAX_WAITING:
            self.dropped += 1
            return
        self._taken += 1
        super().on_end(span)


class _CountingExporter(SpanExporter):
    """Sends spans and counts the outcomes. Used by one thread at a time."""

    def __init__(self, exporter: SpanExporter) -> None:
        self._exporter = exporter
        self.sent = 0
        self.failed = 0
        self.given_up = False

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Send a batch once; after a failure it is lost."""
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
        """Stop sending."""
        self.given_up = True
        self._exporter.shutdown()

    def shutdown(self) -> None:
        """Close connections."""
        if not self.given_up:
            self.given_up = True
            self._exporter.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Nothing to flush: spans are not queued here."""
        return True


def _shown(attributes: Mapping[str, Attribute]) -> dict[str, Attribute]:
    # The library cuts long texts, too, but logs that each time.
    return {
        f"{PREFIX}{name}": value[:MAX_ATTRIBUTE_CHARACTERS] if isinstance(value, str) else value
        for name, value in attributes.items()
    }


def _goes_on(span: api.Span) -> bool:
    """Whether a span of the program may get children: tasks that continue may still have an ended span as current."""
    return span.is_recording() or isinstance(span, api.NonRecordingSpan)


def _header(context: SpanContext) -> str:
    return TraceContext(context.trace_id, context.span_id, context.trace_flags.sampled).traceparent


def _remote(context: TraceContext) -> SpanContext:
    flags = TraceFlags(TraceFlags.SAMPLED if context.sampled else TraceFlags.DEFAULT)
    return SpanContext(context.trace_id, context.span_id, is_remote=True, trace_flags=flags)


def _context_of(parent: SpanContext) -> Context:
    return api.set_span_in_context(api.NonRecordingSpan(parent), Context())
