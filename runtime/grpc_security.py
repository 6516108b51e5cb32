"""TLS for gRPC: the certificates of a process, always those in force, and what a peer has presented.

Servers ask for the certificates at each handshake, clients for each connection, so that files which are replaced count
from the next connection on. gRPC speaks TLS 1.2 and 1.3 only, and a client checks the host or address that it means.
"""

from __future__ import annotations

from typing import Any, Final

import grpc
import grpc.aio

from tallybook.core.access import Presented

from .identity import Certified, Identity

_NAMES: Final = "x509_subject_alternative_name"
_TRANSPORT: Final = "transport_security_type"
_MAX_NAMES: Final = 100


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
    made: tuple[Identity, Any] = security.identity, _configuration(security.identity, certificates)

    def in_force() -> Any:
        nonlocal made
        identity = security.identity
        if made[0] is not identity:
            made = identity, _configuration(identity, certificates)
        return made[1]

    return grpc.dynamic_ssl_server_credentials(made[1], in_force, require_client_authentication=certificates)


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
    names = found.get(_NAMES, ()) if found.get(_TRANSPORT) else ()
    headers = tuple(
        value if isinstance(value, str) else value.decode("latin-1")
        for name, value in context.invocation_metadata() or ()
        if name == "authorization"
    )
    return Presented(tuple(name.decode("utf-8", "replace") for name in names[:_MAX_NAMES]), headers)
