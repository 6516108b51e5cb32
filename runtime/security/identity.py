"""The certificates by which a process shows who it is, and knows whom to trust.

Where they come from, and how they are checked, is in ``security``; what speaks TLS takes them as they are.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from tallybook.core.access import Access


@dataclass(frozen=True, slots=True)
class Identity:
    """Certificates, in PEM."""

    authorities: bytes
    """Those that are trusted."""
    chain: bytes
    """That of this process, and what lies between it and the authority."""
    secret: bytes
    """Its key."""
    names: tuple[str, ...]
    """The alternative names of the certificate."""
    expires_at: datetime

    def __repr__(self) -> str:
        """Without what must never be shown."""
        return f"Identity(names={self.names!r}, expires_at={self.expires_at.isoformat()})"


class Certified(Protocol):
    """Somebody with certificates, which may be replaced at any time."""

    @property
    def identity(self) -> Identity:
        """Those in force now."""


class Guarded(Access, Certified, Protocol):
    """Somebody who has certificates, and knows who others are."""
