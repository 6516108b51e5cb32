"""The option ``traces``: the endpoint for spans, and the share of adds and reads that is traced.

    http://collector:4318                  OTLP over HTTP, to /v1/traces there; one in a hundred
    https://collector:4318,share=0.001     with TLS; one in a thousand
    https://example.com/otlp/traces        a path is taken as it stands

One value has both, so that there is one option to set. Headers for the endpoint (keys, tenants) are not part of it:
settings are shown and logged, secrets must not be.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Final

from .errors import InvalidConfig

DEFAULT_SHARE: Final = 0.01
"""Share of adds and reads traced, among those without a decision by the caller."""

DEFAULT_PATH: Final = "/v1/traces"
"""Path for OTLP traces on an endpoint without a path."""

MAX_OPTION_CHARACTERS: Final = 2_048

_SHARE: Final = ",share="
_ENDPOINT: Final = re.compile(
    r"(?P<scheme>https?)://(?P<host>[A-Za-z0-9._-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\])(?::(?P<port>[0-9]{1,5}))?"
    r"(?P<path>/[A-Za-z0-9._~!$&'()*+,;=:@%/-]*)?"
)
_LOOPBACK: Final = re.compile(r"localhost|127(?:\.[0-9]{1,3}){3}|\[::1\]")
_NUMBER: Final = re.compile(r"[0-9]{1,3}(?:\.[0-9]{1,12})?|\.[0-9]{1,12}")
_HELP: Final = "expected http://HOST:PORT or https://HOST:PORT, optionally followed by ,share=0.01"


@dataclass(frozen=True, slots=True)
class TraceOption:
    """Endpoint for spans, and the traced share."""

    endpoint: str
    """URL with path."""
    share: float = DEFAULT_SHARE
    """Greater than 0, at most 1."""

    @property
    def is_local(self) -> bool:
        """Whether the endpoint is on this host."""
        match = _ENDPOINT.fullmatch(self.endpoint)
        return match is not None and _LOOPBACK.fullmatch(match["host"].lower()) is not None

    def require_private_endpoint(self) -> None:
        """Require an endpoint that third parties cannot read.

        Raises:
            InvalidConfig: the endpoint is on another host and does not use TLS.
        """
        if not self.is_local and not self.endpoint.startswith("https://"):
            raise InvalidConfig("with security, traces need an https:// endpoint, or a collector on this host")


def parse_traces(value: str) -> TraceOption | None:
    """Parse the option; ``None`` if it is empty: no traces.

    Raises:
        InvalidConfig: invalid endpoint or share; the message does not repeat parts that may be secret.
    """
    if not value:
        return None
    if len(value) > MAX_OPTION_CHARACTERS:
        raise InvalidConfig(f"longer than {MAX_OPTION_CHARACTERS} characters: {_HELP}")
    before, sign, share_text = value.rpartition(_SHARE)
    endpoint, share = (before, _share(share_text)) if sign else (value, DEFAULT_SHARE)
    return TraceOption(_endpoint(endpoint), share)


def _endpoint(value: str) -> str:
    scheme, colon, rest = value.partition("://")
    if not colon or scheme not in ("http", "https"):
        raise InvalidConfig(f"not an OTLP over HTTP endpoint: {_HELP}")
    if "@" in rest.partition("/")[0] or "?" in rest or "#" in rest:
        raise InvalidConfig(
            "an endpoint must not have a user, password, query or fragment; set headers, including keys, with "
            f"OTEL_EXPORTER_OTLP_HEADERS: {_HELP}"
        )
    match = _ENDPOINT.fullmatch(value)
    if match is None or not 0 < int(match["port"] or 1) <= 65_535:
        raise InvalidConfig(f"invalid host, port or path of the endpoint: {_HELP}")
    return value if (match["path"] or "/") != "/" else value.removesuffix("/") + DEFAULT_PATH


def _share(value: str) -> float:
    share = float(value) if _NUMBER.fullmatch(value) else math.nan
    if not 0 < share <= 1:
        raise InvalidConfig(f"the share must be above 0 and at most 1, as in ,share=0.01: {_HELP}")
    return share
