"""Makes a tracer from the option ``traces``. OpenTelemetry is imported here, and only if traces are on."""

from __future__ import annotations

import os
import socket

from tallybook.core.trace_option import parse_traces

from ..extras import NeedsExtra
from .port import NO_TRACER, Tracer


def open_tracer(traces: str, service: str, *, security: str = "") -> Tracer:
    """The tracer for the option ``traces``; ``NO_TRACER`` if it is empty.

    Args:
        service: service name in traces, such as ``tallybook-bookie``.
        security: the security directory of this process; with security, spans go to other hosts only over TLS.

    Raises:
        InvalidConfig: the option is invalid, the library is not installed, or with security spans would go to another
            host in plain text.
    """
    option = parse_traces(traces)
    if option is None:
        return NO_TRACER
    if security:
        option.require_private_endpoint()
    with NeedsExtra("the option 'traces'"):
        from .otel import OtelTracer  # noqa: PLC0415
    return OtelTracer(option, service, f"{socket.gethostname()}:{os.getpid()}")
