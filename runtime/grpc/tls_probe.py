"""Finds out why a server takes no TLS connection. gRPC only reports that there is none."""

from __future__ import annotations

import asyncio
import ssl
from typing import Final

from ..security.identity import CertificateSource
from ..security.tls_contexts import new_client_context

_SECONDS: Final = 2.0
_AGAIN_SECONDS: Final = 0.2
_PLAIN: Final = frozenset({"WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG"})
"""Reasons of OpenSSL for bytes that are not TLS."""
_NO_CERTIFICATE: Final = "the server requires TLS, and this client has no security directory"
_REFUSED: Final = "the server does not accept this client's certificate:"


async def tls_problem(address: str, security: CertificateSource | None) -> str | None:
    """Return the reason for which a TLS connection to a server fails; ``None``: not known, or it is not reached.

    Args:
        security: certificates of this client; ``None``: it uses no TLS.
    """
    context = _any_server() if security is None else new_client_context(security.identity)
    context.set_alpn_protocols(["h2"])
    host, _, port = address.rpartition(":")
    try:
        async with asyncio.timeout(_SECONDS):
            if not await _closes(host.strip("[]"), int(port), context, reads=security is not None):
                return None if security is not None else _NO_CERTIFICATE
            # A server that is about to end closes its connections, too, but takes no other one.
            await asyncio.sleep(_AGAIN_SECONDS)
            if await _closes(host.strip("[]"), int(port), context, reads=True):
                return f"{_REFUSED} the server closes connections after the handshake"
    except ssl.SSLCertVerificationError as error:
        return f"the server's certificate is not accepted: {error.verify_message}"
    except ssl.SSLError as error:
        return _meaning(error.reason or "", has_certificate=security is not None)
    except (OSError, TimeoutError):
        pass
    return None


async def _closes(host: str, port: int, context: ssl.SSLContext, *, reads: bool) -> bool:
    """Connect; return whether the server closes the connection after the handshake, if ``reads`` says to wait for that.

    With TLS 1.3 the server checks the client's certificate after the client's end of the handshake. If it accepts it,
    it sends its HTTP/2 settings.

    Raises:
        OSError, ssl.SSLError: there is no connection.
    """
    reader, writer = await asyncio.open_connection(host, port, ssl=context, server_hostname=host)
    try:
        return reads and not await reader.read(1)
    except ConnectionError:
        return True
    finally:
        writer.transport.abort()


def _meaning(reason: str, *, has_certificate: bool) -> str | None:
    if "ALERT" in reason:
        alert = reason.partition("ALERT_")[2].replace("_", " ").lower()
        return f"{_REFUSED} {alert}" if has_certificate else _NO_CERTIFICATE
    if has_certificate and reason in _PLAIN:
        return "this client has a security directory, and the server does not use TLS"
    return None


def _any_server() -> ssl.SSLContext:
    """A context that accepts any certificate: nothing is sent over the connection."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context
