"""TLS for gRPC with the current certificates of the process, and the credentials that a client has presented.

Servers fetch the certificates at each handshake and clients for each connection, so replaced files count from the next
connection on. gRPC uses TLS 1.2 or 1.3, and a client checks the server's host name or address.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any, Final

import grpc
import grpc.aio

from tallybook.core.access import Presented
from tallybook.core.certificate_names import CertificateName, NameKind

from ..security.identity import CertificateSource, Identity

_NAMES: Final = {"peer_dns": NameKind.HOST, "peer_uri": NameKind.URI, "peer_ip": NameKind.ADDRESS}
"""gRPC's properties for alternative names. Its property for all names has no kinds and includes mail addresses."""
_TRANSPORT: Final = "transport_security_type"
_MAX_NAMES: Final = 100

EXCHANGE_SECONDS: Final = 0.25
"""Time for a handshake to get its certificates after it asked for them, and for gRPC to exchange them. Normally they
take a thousandth of it."""


def add_port(
    server: grpc.aio.Server, address: str, security: CertificateSource | None, *, certificates: bool = True
) -> int:
    """Add the port of ``address`` to ``server``; returns the port number, 0 if it cannot be bound.

    Args:
        security: certificates; ``None``: no TLS.
        certificates: whether clients must present a certificate; otherwise they cannot present one.
    """
    try:
        if security is None:
            bound: int = server.add_insecure_port(address)
        else:
            bound = server.add_secure_port(address, _server_credentials(security, certificates))
    except RuntimeError:
        return 0
    return bound


def _server_credentials(security: CertificateSource, certificates: bool) -> grpc.ServerCredentials:
    exchange = _Exchange(security, certificates)
    return grpc.dynamic_ssl_server_credentials(
        _configuration(exchange.current, certificates), exchange.fresh, require_client_authentication=certificates
    )


class _Exchange:
    """Supplies gRPC with new certificates. gRPC asks in each handshake, on its own threads.

    gRPC frees the old certificates even if a handshake is about to use them, which crashes the process. So no handshake
    may start during an exchange: those that have started get ``EXCHANGE_SECONDS`` to proceed, and new ones wait.
    """

    def __init__(self, security: CertificateSource, certificates: bool) -> None:
        self._security = security
        self._certificates = certificates
        self._lock = threading.Lock()
        self._done_at = 0.0
        self.current = security.identity
        """The certificates that gRPC uses."""

    def fresh(self) -> Any:
        """The certificates, if gRPC uses older ones; else ``None``."""
        with self._lock:
            identity, now = self._security.identity, time.monotonic()
            exchanging = now >= self._done_at and identity is not self.current
            if exchanging:
                self.current, self._done_at = identity, now + 2 * EXCHANGE_SECONDS
            pause = EXCHANGE_SECONDS if exchanging else self._done_at - now
        if pause > 0:
            time.sleep(pause)
        return _configuration(identity, self._certificates) if exchanging else None


def _configuration(identity: Identity, certificates: bool) -> Any:
    pair = [(identity.secret, identity.chain)]
    return grpc.ssl_server_certificate_configuration(pair, identity.authorities if certificates else None)


def open_channel(address: str, security: CertificateSource | None, options: Any) -> grpc.aio.Channel:
    """A channel to ``address``; it connects on first use."""
    if security is None:
        return grpc.aio.insecure_channel(address, options=options)
    identity = security.identity
    credentials = grpc.ssl_channel_credentials(identity.authorities, identity.secret, identity.chain)
    return grpc.aio.secure_channel(address, credentials, options=options)


def presented(context: Any) -> Presented:
    """The credentials and trace header of a call. Use it at the start of the call: after its end gRPC crashes."""
    found = context.auth_context()
    metadata = context.invocation_metadata() or ()
    # Several trace headers count as none.
    traces = _headers(metadata, "traceparent")
    trace = traces[0] if len(traces) == 1 else ""
    return Presented(_names(found) if found.get(_TRANSPORT) else (), _headers(metadata, "authorization"), trace)


def _names(found: Mapping[str, Sequence[bytes]]) -> tuple[CertificateName, ...]:
    named = ((kind, name) for key, kind in _NAMES.items() for name in found.get(key, ()))
    return tuple(
        CertificateName.of_kind(kind, name.decode("utf-8", "replace")) for kind, name in islice(named, _MAX_NAMES)
    )


def _headers(metadata: Any, wanted: str) -> tuple[str, ...]:
    return tuple(
        value if isinstance(value, str) else value.decode("latin-1") for name, value in metadata if name == wanted
    )
