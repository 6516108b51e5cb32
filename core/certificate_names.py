"""Alternative names of certificates, by kind, and the patterns in access rules that match them.

Hosts, addresses and URIs count. A name matches only patterns of its own kind: a host name that looks like a URI is not
a URI, and a mailbox in a certificate says nothing about a host.
"""

from __future__ import annotations

import ipaddress
from enum import Enum
from typing import NamedTuple, Self


class NameKind(Enum):
    """Kind of a certificate name."""

    HOST = "host"
    ADDRESS = "address"
    URI = "URI"


class CertificateName(NamedTuple):
    """A normalized name, comparable by value. Built by ``of_kind`` or ``parse``."""

    kind: NameKind
    text: str

    @classmethod
    def of_kind(cls, kind: NameKind, text: str) -> Self:
        """Normalize a name of this kind from a certificate.

        Host names are lower-cased, and IPv6 addresses are shortened; URIs stay as they are.
        """
        if kind is NameKind.URI:
            return cls(kind, text)
        return cls(kind, text.lower() if kind is NameKind.HOST else _shortest(text) or text)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse a name or pattern from a rule and detect its kind."""
        if _shortest(text) is not None:
            return cls.of_kind(NameKind.ADDRESS, text)
        return cls.of_kind(NameKind.URI if ":" in text else NameKind.HOST, text)

    @property
    def is_pattern(self) -> bool:
        """Whether, in a rule, it matches more than one name: all hosts of a domain, all URIs below one."""
        if self.kind is NameKind.HOST:
            return self.text.startswith("*.")
        return self.kind is NameKind.URI and self.text.endswith("/*")

    def matches(self, pattern: CertificateName) -> bool:
        """Whether this name matches ``pattern``, for which ``is_pattern`` is true."""
        if self.kind is not pattern.kind:
            return False
        if self.kind is NameKind.URI:
            return self.text.startswith(pattern.text[:-1])
        host, _, domain = self.text.partition(".")
        return bool(host) and domain == pattern.text[2:]


def _shortest(text: str) -> str | None:
    try:
        return str(ipaddress.ip_address(text))
    except ValueError:
        return None
