"""An endpoint for spans, OTLP over HTTP, on a free port of the loopback interface; only this module parses the format.

    python -m tallybook.bench.profile.span_endpoint

It prints a line of JSON with its URL, and then one with the spans of each request.
"""

from __future__ import annotations

import http.server
import time
from pathlib import Path
from typing import Final, Self

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from ..equipment.programs import Server, module, print_json_line
from .waterfall import TimedSpan

_START_SECONDS: Final = 30.0
_QUIET_SECONDS: Final = 2.5
"""Without a span for so long, all have arrived: processes send theirs every second."""
_MAX_WAIT_SECONDS: Final = 30.0
_POLL_SECONDS: Final = 0.1


class SpanEndpoint:
    """The program, while the block lasts.

    Args:
        output: file for the spans.
    """

    def __init__(self, output: Path) -> None:
        self._output = output
        self._seen = 1
        self._server = Server(module("tallybook.bench.profile.span_endpoint"), output)

    def __enter__(self) -> Self:
        self.url: str = self._server.ready(_START_SECONDS)["url"]
        return self

    def __exit__(self, *_: object) -> None:
        self._server.stop()

    def drain(self) -> list[TimedSpan]:
        """Wait until no further spans arrive, and return all since the last call."""
        deadline, size, quiet_since = time.monotonic() + _MAX_WAIT_SECONDS, -1, time.monotonic()
        while (now := time.monotonic()) < deadline and now - quiet_since < _QUIET_SECONDS:
            if (grown := self._output.stat().st_size) != size:
                size, quiet_since = grown, now
            time.sleep(_POLL_SECONDS)
        lines = self._server.said()
        new, self._seen = lines[self._seen :], len(lines)
        return [TimedSpan(*span) for line in new for span in line["spans"]]


def parse(body: bytes) -> list[TimedSpan]:
    """The spans of a request."""
    return [
        TimedSpan(
            span.name, span.trace_id.hex(), span.span_id.hex(), span.parent_span_id.hex(),
            span.start_time_unix_nano, span.end_time_unix_nano,
            {event.name: event.time_unix_nano for event in span.events},
        )
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
    ]  # fmt: skip


class _Handler(http.server.BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        print_json_line({"spans": parse(self.rfile.read(int(self.headers["Content-Length"])))})
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Print nothing."""


def main() -> None:
    """Serve until SIGTERM."""
    with http.server.HTTPServer(("127.0.0.1", 0), _Handler) as server:
        print_json_line({"url": f"http://127.0.0.1:{server.server_port}"})
        server.serve_forever()


if __name__ == "__main__":
    main()
