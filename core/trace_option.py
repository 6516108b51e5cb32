"""The option ``traces``: where spans go, and which share of adds and reads is traced. Pure.

    http://collector:4318                  OTLP over HTTP, to /v1/traces there; one in a hundred
    https://collector:4318,share=0.001     with TLS; one in a thousand
    https://example.com/otlp/traces        a path is taken as it stands

One value says both, so that there is one thing to set, and one to take away. Headers that an endpoint wants (keys,
tenants) are no part of it: settings are shown and logged, secrets must not be.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Final

from .errors import InvalidConfig

DEFAULT_SHARE: Final = 0.01
"""Of adds and reads that nobody has decided about before, those that are traced."""

DEFAULT_PATH: Final = "/v1/traces"
"""Where OTLP has traces, on an endpoint that is given without a path."""

MAX_OPTION_CHARACTERS: Final = 2_048

_SHARE: Final = ",share="
_ENDPOINT: Final = re.compile(
    r"(?P<scheme>https?)://(?P<host>[A-Za-z0-9._-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\])(?::(?P<port>[0-9]{1,5}))?"
    r"(?P<path>/[A-Za-z0-9._~!$&'()*+,;=:@%/-]*)?"
)
_LOOPBACK: Final = re.compile(r"localhost|127(?:\.[0-9]{1,3}){3}|\[::1\]")
_NUMBER: Final = re.compile(r"[0-9]{1,3}(?:\.[0-9]{1,12})?|\.[0-9]{1,12}")
_HELP: Final = "expected http://HOST:PORT or https://HOST:PORT, and after it, if wanted, ,share=0.01"


@dataclass(frozen=True, slots=True)
class TraceOption:
    """Where spans go, and how many there are of them."""

    endpoint: str
    """With its path."""
    share: float = DEFAULT_SHARE
    """More than 0, at most 1."""

    @property
    def stays_here(self) -> bool:
        """Whether they go to a collector on this host."""
        match = _ENDPOINT.fullmatch(self.endpoint)
        return match is not None and _LOOPBACK.fullmatch(match["host"].lower()) is not None

    def check_private(self) -> None:
        """See that spans are read by nobody on their way.

        Raises:
            InvalidConfig: they go to another host, and without TLS.
        """
        if not self.stays_here and not self.endpoint.startswith("https://"):
            raise InvalidConfig("with security, spans go by https://, or to a collector on this host")


def parse_traces(value: str) -> TraceOption | None:
    """Understand the option; ``None`` if it is empty: nothing is traced.

    Raises:
        InvalidConfig: it is no endpoint, or no share; the message repeats no part that may be secret.
    """
    if not value:
        return None
    if len(value) > MAX_OPTION_CHARACTERS:
        raise InvalidConfig(f"at most {MAX_OPTION_CHARACTERS} characters are wanted: {_HELP}")
    before, sign, told = value.rpartition(_SHARE)
    endpoint, share = (before, _share(told)) if sign else (value, DEFAULT_SHARE)
    return TraceOption(_endpoint(endpoint), share)


def _endpoint(value: str) -> str:
    scheme, colon, rest = value.partition("://")
    if not colon or scheme not in ("http", "https"):
        raise InvalidConfig(f"no endpoint of OTLP over HTTP: {_HELP}")
    if "@" in rest.partition("/")[0] or "?" in rest or "#" in rest:
        raise InvalidConfig(
            "an endpoint has no user, password, query or fragment; headers, keys among them, come from "
            f"OTEL_EXPORTER_OTLP_HEADERS: {_HELP}"
        )
    match = _ENDPOINT.fullmatch(value)
    if match is None or not 0 < int(match["port"] or 1) <= 65_535:
        raise InvalidConfig(f"no host, port and path of an endpoint: {_HELP}")
    return value if (match["path"] or "/") != "/" else value.removesuffix("/") + DEFAULT_PATH


def _share(value: str) -> float:
    share = float(value) if _NUMBER.fullmatch(value) else math.nan
    if not 0 < share <= 1:
        raise InvalidConfig(f"a share is a number above 0 and up to 1, as in ,share=0.01: {_HELP}")
    return share
