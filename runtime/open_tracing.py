"""From the option ``traces`` to a tracer. The library behind it is loaded here, and only if spans are wanted."""

from __future__ import annotations

import os
import socket

from tallybook.core.errors import InvalidConfig
from tallybook.core.trace_option import parse_traces

from .tracing import NO_TRACER, Tracer


def open_tracer(traces: str, service: str, *, security: str = "") -> Tracer:
    """A tracer as the option says; one that traces nothing where it is empty.

    Args:
        service: what the process is called in traces, such as ``tallybook-bookie``.
        security: the security directory of this process; where there is one, spans leave this host by TLS only.

    Raises:
        InvalidConfig: the option cannot be right, or the library is not installed; or spans would go to another host
            in plain text, and there is security.
    """
    option = parse_traces(traces)
    if option is None:
        return NO_TRACER
    if security:
        option.check_private()
    try:
        from .otel import OtelTracer  # noqa: PLC0415
    except ImportError as error:
        raise InvalidConfig("traces need OpenTelemetry: pip install 'tallybook[traces]'") from error
    return OtelTracer(option, service, f"{socket.gethostname()}:{os.getpid()}")
