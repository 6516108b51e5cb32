"""TLS for gRPC: the certificates of a process, always those in force, and what a peer has presented.

Servers ask for the certificates at each handshake, clients for each connection, so that files which are replaced count
from the next connection on. gRPC speaks TLS 1.2 and 1.3 only, and a client checks the host or address that it means.
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

from .identity import Certified, Identity

_NAMES: Final = {"peer_dns": NameKind.HOST, "peer_uri": NameKind.URI, "peer_ip": NameKind.ADDRESS}
"""What gRPC calls them. It has a property of all names as well, which mailboxes are among and which tells no kinds."""
_TRANSPORT: Final = "transport_security_type"
_MAX_NAMES: Final = 100

EXCHANGE_SECONDS: Final = 0.25
"""What a handshake may take from asking for certificates to having them, and gRPC to exchange them: a thousandth of it,
unless the machine is very busy."""


def add_port(server: grpc.aio.Server, address: str, security: Certified | None, *, certificates: bool = True) -> int:
    """Let ``server`` serve ``address``; its port there, 0 if it cannot be bound.

    Args:
        security: ``None``: without TLS.
        certificates: whether clients have to have one; else they may not even show one.
    """
    try:
        if security is None:
            bound: int = server.add_insecure_port(address)
        else:
            bound = server.add_secure_port(address, _server_credentials(security, certificates))
    except RuntimeError:
        return 0
    return bound


def _server_credentials(security: Certified, certificates: bool) -> grpc.ServerCredentials:
    exchange = _Exchange(security, certificates)
    return grpc.dynamic_ssl_server_credentials(
        _configuration(exchange.told, certificates), exchange.fresh, require_client_authentication=certificates
    )


class _Exchange:
    """Hands new certificates to gRPC, which asks with every handshake, in a thread of its own.

    gRPC lets go of the old certificates without a look at handshakes that are just about to take them: the process dies
    of it. So while they are exchanged no handshake may begin. Those that have begun get a moment to go on, and those
    that come meanwhile wait.
    """

    def __init__(self, security: Certified, certificates: bool) -> None:
        self._security = security
        self._certificates = certificates
        self._lock = threading.Lock()
        self._done_at = 0.0
        self.told = security.identity
        """The certificates that gRPC has."""

    def fresh(self) -> Any:
        """The certificates, if they are others than gRPC has."""
        with self._lock:
            identity, now = self._security.identity, time.monotonic()
            exchanging = now >= self._done_at and identity is not self.told
            if exchanging:
                self.told, self._done_at = identity, now + 2 * EXCHANGE_SECONDS
            pause = EXCHANGE_SECONDS if exchanging else self._done_at - now
        if pause > 0:
            time.sleep(pause)
        return _configuration(identity, self._certificates) if exchanging else None


def _configuration(identity: Identity, certificates: bool) -> Any:
    pair = [(identity.secret, identity.chain)]
    return grpc.ssl_server_certificate_configuration(pair, identity.authorities if certificates else None)


def open_channel(address: str, security: Certified | None, options: Any) -> grpc.aio.Channel:
    """A channel to ``address``; it connects when it is used."""
    if security is None:
        return grpc.aio.insecure_channel(address, options=options)
    identity = security.identity
    credentials = grpc.ssl_channel_credentials(identity.authorities, identity.secret, identity.chain)
    return grpc.aio.secure_channel(address, credentials, options=options)


def presented(context: Any) -> Presented:
    """What came with a call. To be asked before the call can have ended: gRPC brings the process down afterwards."""
    found = context.auth_context()
    metadata = context.invocation_metadata() or ()
    # Of several, none is meant.
    traces = _headers(metadata, "traceparent")
    trace = traces[0] if len(traces) == 1 else ""
    return Presented(_names(found) if found.get(_TRANSPORT) else (), _headers(metadata, "authorization"), trace)


def _names(found: Mapping[str, Sequence[bytes]]) -> tuple[CertificateName, ...]:
    named = ((kind, name) for key, kind in _NAMES.items() for name in found.get(key, ()))
    return tuple(
        CertificateName.named(kind, name.decode("utf-8", "replace")) for kind, name in islice(named, _MAX_NAMES)
    )


def _headers(metadata: Any, wanted: str) -> tuple[str, ...]:
    return tuple(
        value if isinstance(value, str) else value.decode("latin-1") for name, value in metadata if name == wanted
    )
