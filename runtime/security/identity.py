"""Certificates of a process, as the TLS code uses them.

``process_security`` loads and checks them.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from tallybook.core.access import Access


@dataclass(frozen=True, slots=True)
class Identity:
    """Certificates and key of a process, in PEM."""

    authorities: bytes
    """Certificates of the trusted authorities."""
    chain: bytes
    """Certificate of this process and intermediate certificates."""
    secret: bytes
    """Private key."""
    names: tuple[str, ...]
    """Alternative names of the certificate."""
    expires_at: datetime

    def __repr__(self) -> str:
        """Without secrets."""
        return f"Identity(names={self.names!r}, expires_at={self.expires_at.isoformat()})"


class CertificateSource(Protocol):
    """Supplies the certificates of the process, which may be replaced at any time."""

    @property
    def identity(self) -> Identity:
        """The current certificates."""


class ServerSecurity(Access, CertificateSource, Protocol):
    """Certificates and authentication of callers, for a server."""
