"""The header ``traceparent`` of W3C Trace Context, of 55 characters. Pure.

    00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01
    version, trace id, parent span id, flags (1: sampled)

The header is untrusted input. A malformed one is ignored: the request is served without a trace. Of later versions the
known part is read, as the standard requires.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

MAX_CHARACTERS: Final = 512
"""Maximum length of a header, also of later versions."""

_SAMPLED: Final = 1
_VERSION: Final = "00"
_FORM: Final = re.compile(
    r"(?P<version>[0-9a-f]{2})-(?P<trace>[0-9a-f]{32})-(?P<span>[0-9a-f]{16})-(?P<flags>[0-9a-f]{2})(?P<more>-.*)?"
)
_NO_TRACE: Final = "0" * 32
_NO_SPAN: Final = "0" * 16


class TraceContext(NamedTuple):
    """Trace id, span id and sampling flag of a remote span."""

    trace_id: int
    """128 bits, not 0."""
    span_id: int
    """64 bits, not 0."""
    sampled: bool

    @property
    def traceparent(self) -> str:
        """The header."""
        return f"{_VERSION}-{self.trace_id:032x}-{self.span_id:016x}-{self.sampled:02x}"


def decode_traceparent(value: str) -> TraceContext | None:
    """Parse a header; ``None`` if it is malformed."""
    match = _FORM.fullmatch(value) if len(value) <= MAX_CHARACTERS else None
    if match is None or match["version"] == "ff" or (match["version"] == _VERSION and match["more"]):
        return None
    if match["trace"] == _NO_TRACE or match["span"] == _NO_SPAN:
        return None
    return TraceContext(int(match["trace"], 16), int(match["span"], 16), bool(int(match["flags"], 16) & _SAMPLED))
