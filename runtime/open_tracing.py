"""From the option ``traces`` to a tracer. The library behind it is loaded here, and only if spans are wanted."""

from __future__ import annotations

import os
import socket

from tallybook.core.errors import InvalidConfig
from tallybook.core.trace_option import parse_traces

from .tracing import NO_TRACER, Tracer


def open_tracer(traces: str, service: str) -> Tracer:
    """A tracer as the option says; one that traces nothing where it is empty.

    Args:
        service: what the process is called in traces, such as ``tallybook-bookie``.

    Raises:
        InvalidConfig: the option cannot be right, or the library is not installed.
    """
    option = parse_traces(traces)
    if option is None:
        return NO_TRACER
    try:
        from .otel import OtelTracer  # noqa: PLC0415
    except ImportError as error:
        raise InvalidConfig("traces need OpenTelemetry: pip install 'tallybook[traces]'") from error
    return OtelTracer(option, service, f"{socket.gethostname()}:{os.getpid()}")
